"""Free questions about pictures of held-out photographs, each asked as a user would ask and judged by a
written key.

The questions and keys were written before any model was asked, by someone who had not seen the training's
wording. After the first model's answers two synonyms were added to the keys ("sinks into the shadows",
"clean"), three keys on strength were narrowed, and a yes/no question was replaced, since "no" was right for
all four. They are kept out of training and out of every choice made in it.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, TypeAdapter

from agentic_iqa_local.images import load_image
from agentic_iqa_local.laboratory.training.evaluate import Progress, _silent, with_interval
from agentic_iqa_local.nodes.summarizer import NO_EVIDENCE, NO_SCORES
from agentic_iqa_local.prompts import chosen_answer
from agentic_iqa_local.reasoning import misstatements, speaks_for_another
from agentic_iqa_local.result import Assessment
from agentic_iqa_local.synthetic.distortions import Part, distort
from agentic_iqa_local.synthetic.photos import split_photos

QuestionType = Literal["place", "type", "strength", "exposure", "use", "compare", "yes/no", "cannot tell"]
# What the program itself adds to the model's words; it answers nothing.
_NOTES = re.compile(rf"{re.escape(NO_EVIDENCE)}|{re.escape(NO_SCORES)}|Fused score [\d.]+ of 5 \([^)]*\)\.")
_SAID = re.compile(
    r"(?:[A-J]\. )?(?:(?P<yes>yes|yeah|s[íi])|(?P<no>no|nope)(?! (?:visible |tool |score)))\b", re.IGNORECASE
)


class Question(BaseModel):
    """A question with its key: an answer is right where a pattern of `right` is found in it and none of
    `wrong` is."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    type: QuestionType
    query: str
    reference: bool  # whether the undistorted photograph is given, too
    right: list[re.Pattern[str]]
    wrong: list[re.Pattern[str]]
    right_example: str
    wrong_example: str
    means: dict[
        Literal["yes", "no"], str
    ] = {}  # what a bare yes or no says of the picture, to hold against the evidence

    def accepts(self, answer: str) -> bool:
        """Whether the key takes `answer` for right; upper and lower case are the same."""
        found = [
            any(re.search(pattern, answer) for pattern in map(_any_case, patterns))
            for patterns in (self.right, self.wrong)
        ]
        return found == [True, False]


def _any_case(pattern: re.Pattern[str]) -> re.Pattern[str]:
    return re.compile(pattern.pattern, re.IGNORECASE)


class QuestionedPicture(BaseModel):
    """A picture, made of a held-out photograph (a file's name), and the questions about it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    photo: str
    parts: list[Part]  # the strongest first; none of a clean picture
    seed: int
    questions: list[Question]

    def make(self, photos: Path) -> tuple[np.ndarray, np.ndarray]:
        """(the picture, the photograph) as uint8 H×W×3. Raises ValueError where the photograph is not one of
        the held-out ones."""
        files = {file.name: file for file in split_photos(photos)[1]}
        if self.photo not in files:
            raise ValueError(
                f"{photos}: expected {self.photo} among its held-out photographs; give the folder that"
                " training used"
            )
        clean = np.asarray(load_image(files[self.photo]).pixels)
        return distort(clean, tuple(self.parts), np.random.default_rng(self.seed)).image, clean


def load_questions(file: Path) -> list[QuestionedPicture]:
    """The pictures of a file of JSON lines. Raises ValueError for a line that is none, and OSError."""
    lines = file.read_text(encoding="utf-8").splitlines()
    return TypeAdapter(list[QuestionedPicture]).validate_json(f"[{','.join(lines)}]")


def told(row: Assessment) -> str:
    """What the user is told: answer and reasoning, without the notes that the program adds."""
    return (
        f"{row.answer.rstrip('.')}. {' '.join(_NOTES.sub('', row.quality_reasoning or '').split())}".strip()
    )


def contradictions(row: Assessment, question: Question) -> list[str]:
    """What the answer says against the row's own evidence, level or chosen answer, a line each; a bare yes or
    no is held against the evidence by what it means."""
    text = told(row)
    said = _SAID.match(text)
    meaning = next((says for word, says in question.means.items() if said and word == said.lastgroup), "")
    lines = misstatements(f"{meaning} {text}", row.evidence, row.level)
    if row.choices and row.letter:
        lines += speaks_for_another(text, row.choices, chosen_answer(row.choices, row.letter))
    return lines


def asked(
    assess: Callable[..., Assessment],
    photos: Path,
    pictures: Sequence[QuestionedPicture],
    progress: Progress = _silent,
) -> dict:
    """Asks every question with `assess` (an `IQA`) and judges what it tells the user; `photos` is the folder
    that training used.

    Intervals are over pictures. A row that failed is a wrong answer.
    """
    answers, groups = [], []
    count = sum(len(picture.questions) for picture in pictures)
    for number, picture in enumerate(pictures):
        image, clean = picture.make(photos)
        for question in picture.questions:
            row = assess(image, reference=clean if question.reference else None, query=question.query)
            groups.append(number)
            answers.append(
                {
                    "photo": picture.photo,
                    "parts": [
                        f"{part.kind} {part.severity} {part.place or 'everywhere'}" for part in picture.parts
                    ],
                    "type": question.type,
                    "query": question.query,
                    "answer": told(row),
                    "right": row.error is None and question.accepts(told(row)),
                    "contradictions": [] if row.error else contradictions(row, question),
                    "replaced": bool(row.reasoning_corrections),
                }
            )
            progress("free questions", len(answers), count)
    right = np.array([answer["right"] for answer in answers], float)
    by_type = defaultdict(list)
    for answer in answers:
        by_type[answer["type"]].append(answer["right"])
    return {
        "right": with_interval(lambda i: float(right[i].mean()), np.array(groups)),
        "by_type": {kind: {"right": sum(found), "n": len(found)} for kind, found in by_type.items()},
        "contradicting": sum(bool(answer["contradictions"]) for answer in answers),
        "replaced": sum(answer["replaced"] for answer in answers),
        "answers": answers,
    }
