"""The free questions' keys against answers written by hand, and the judge on scripted rows. No model is
loaded."""

import json
from collections import Counter

import numpy as np
import pytest
from conftest import DATA
from PIL import Image
from pydantic import ValidationError

from agentic_iqa_local.config_sections import FusionSettings
from agentic_iqa_local.laboratory.training.free_questions import (
    Question,
    QuestionedPicture,
    asked,
    contradictions,
    load_questions,
    told,
)
from agentic_iqa_local.levels import PLACES
from agentic_iqa_local.nodes.summarizer import NO_EVIDENCE
from agentic_iqa_local.result import Assessment
from agentic_iqa_local.state import DistortionAnalysis, ExecutorOutput
from agentic_iqa_local.synthetic.distortions import DISTORTIONS, Part
from agentic_iqa_local.synthetic.photos import HELD_OUT, split_photos

PICTURES = load_questions(DATA / "free_questions.jsonl")
QUESTIONS = [question for picture in PICTURES for question in picture.questions]


def row(answer: str, reasoning: str = "", found: dict[str, str] | None = None, **changes) -> Assessment:
    """What an assessment tells: free text, and an analysis that found `found` (severity by type) in the whole
    picture."""
    evidence = None
    if found is not None:
        items = [
            DistortionAnalysis(type=kind, severity=severity, explanation="It shows.")
            for kind, severity in found.items()
        ]
        evidence = ExecutorOutput(distortion_analysis={"Global": items})
    return Assessment(
        image="x.png", query="?", mode="logits", fusion=FusionSettings(), pipeline="agent",
        final_answer=answer, quality_reasoning=reasoning, evidence=evidence, **changes,
    )  # fmt: skip


def a_question(**changes) -> Question:
    fields = dict(type="place", query="Where?", reference=False, right=["top left"], wrong=["right"], right_example="top left", wrong_example="right")  # fmt: skip
    return Question(**fields | changes)


def test_there_are_forty_questions_on_twenty_pictures_of_every_type():
    assert len(PICTURES) == len({picture.photo for picture in PICTURES}) == 20
    assert len(QUESTIONS) == len({question.query for question in QUESTIONS}) == 40
    assert sum(not picture.parts for picture in PICTURES) == 4
    kinds = Counter(question.type for question in QUESTIONS)
    assert kinds.keys() == {
        "place",
        "type",
        "strength",
        "exposure",
        "use",
        "compare",
        "yes/no",
        "cannot tell",
    }
    assert min(kinds.values()) >= 2


def test_what_is_to_be_done_to_each_photograph_can_be_done():
    parts = [part for picture in PICTURES for part in picture.parts]
    assert all(
        part.kind in DISTORTIONS and part.place in {None, *PLACES} and 1 <= part.severity <= 5
        for part in parts
    )
    assert {part.place for part in parts} == {None, *PLACES}
    assert {part.family for part in parts} == {distortion.family for distortion in DISTORTIONS.values()}


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.query[:40])
def test_each_key_takes_the_right_example_and_refuses_the_wrong_one_and_evasions(question):
    assert question.accepts(question.right_example)
    assert question.accepts(question.right_example.upper())
    assert not question.accepts(question.wrong_example)
    # An answer that says nothing of what is asked. A level is a verdict on use, where "Fair" fits a
    # thumbnail.
    if "thumbnail" not in question.query:
        assert not question.accepts("C Fair, q 3.05. The quality is fair.")
    assert not question.accepts("")


@pytest.mark.parametrize("wanted", PLACES)
def test_a_question_on_place_takes_its_own_quarter_alone(wanted):
    question = next(
        q
        for p in PICTURES
        for q in p.questions
        if q.type == "place" and p.parts and p.parts[0].place == wanted
    )
    quarters = {place: place.replace("top", "upper").replace("bottom", "lower") for place in PLACES}
    assert [place for place in PLACES if question.accepts(f"It is in the {place} quarter.")] == [wanted]
    assert [place for place, other in quarters.items() if question.accepts(f"Look at the {other} part.")] == [
        wanted
    ]
    assert not question.accepts("In the top left, top right, bottom left and bottom right.")


@pytest.mark.parametrize(
    "answer",
    [
        "Yes.",
        "No.",
        "B Good, q 4.02. No visible distortion was found. The quality is good.",
        "C Fair, q 3.01. Moderate compression: blocks. The quality is fair.",
        "E Bad, q 1.20. Severe blur at the bottom left. The quality is bad.",
        "No. Severe color distortions. The quality is poor.",
        "That cannot be told from the picture.",
    ],
)
def test_the_same_answer_to_everything_stays_far_from_the_bar(answer):
    assert sum(question.accepts(answer) for question in QUESTIONS) <= len(QUESTIONS) // 4  # the bar is 70 %


def test_a_picture_is_made_anew_the_same_of_a_held_out_photograph_alone(tmp_path):
    rng = np.random.default_rng(0)
    for i in range(HELD_OUT + 2):
        Image.fromarray(rng.integers(0, 256, (32, 32, 3), np.uint8)).save(tmp_path / f"{i:02d}.png")
    training, held_out = split_photos(tmp_path)
    parts = [Part("white_noise", 4, "top right")]
    picture = QuestionedPicture(photo=held_out[0].name, parts=parts, seed=3, questions=[])
    (image, clean), (again, _) = picture.make(tmp_path), picture.make(tmp_path)
    assert np.array_equal(clean, np.asarray(Image.open(held_out[0])))
    assert np.array_equal(image, again)
    # The edge of a quarter fades over 1/24 of 32 pixels, so that a few pixels from it nothing has changed.
    assert np.array_equal(image[20:], clean[20:])
    assert not np.array_equal(image[:12, 20:], clean[:12, 20:])
    with pytest.raises(ValueError, match="held-out"):
        picture.model_copy(update={"photo": training[0].name}).make(tmp_path)


def test_a_broken_pattern_and_an_unknown_field_are_refused(tmp_path):
    line = json.loads((DATA / "free_questions.jsonl").read_text(encoding="utf-8").splitlines()[0])
    file = tmp_path / "questions.jsonl"
    for change in ({"right": ["("]}, {"rigth": []}, {"type": "colour"}):
        file.write_text(json.dumps(line | {"questions": [line["questions"][0] | change]}), encoding="utf-8")
        with pytest.raises(ValidationError):
            load_questions(file)


def test_what_the_program_adds_of_its_own_answers_nothing():
    notes = f"{NO_EVIDENCE} Fused score 3.18 of 5 (tools' mean 3.19, model's own letter C)."
    assert told(row("At the left.", f"It is noisy. {notes}")) == "At the left. It is noisy."


def test_words_a_level_and_a_bare_yes_are_held_against_the_rows_evidence():
    question = a_question(type="yes/no", means={"yes": "The picture is noisy.", "no": "No visible noise."})
    assert contradictions(row("Severe noise.", found={"Noise": "severe"}), question) == []
    assert contradictions(row("Severe blur.", found={"Noise": "severe"}), question) == [
        "names Blurs, which the evidence does not hold"
    ]
    assert contradictions(row("No.", found={"Noise": "severe"}), question) == [
        "denies Noise, which the evidence holds"
    ]
    assert contradictions(row("Yes.", found={}), question) == [
        "names Noise, which the evidence does not hold"
    ]
    assert contradictions(row("Yes.", found={"Noise": "slight"}), question) == []
    # Without an analysis nothing is known of distortions.
    assert contradictions(row("No."), question) == []
    rated = row("D", "The quality is good. Fused score 2.00 of 5 (tools' mean 2.00, model's own letter D).", {}, q=2.0, p_c={"D": 1.0})  # fmt: skip
    assert contradictions(rated, question) == ["says that the quality is good, the level is poor"]


def test_the_judge_counts_by_picture_and_type_and_a_failed_row_is_wrong(tmp_path):
    rng = np.random.default_rng(0)
    for i in range(HELD_OUT + 1):
        Image.fromarray(rng.integers(0, 256, (32, 32, 3), np.uint8)).save(tmp_path / f"{i:02d}.png")
    names = [file.name for file in split_photos(tmp_path)[1][:2]]
    place, compared = (
        a_question(),
        a_question(type="compare", query="What changed?", reference=True, right=["noise"]),
    )
    pictures = [
        QuestionedPicture(photo=name, parts=[], seed=0, questions=[place, compared]) for name in names
    ]
    rows = iter(
        [
            row("Top left.", found={}),
            row("Severe noise.", found={"Blurs": "severe"}, reasoning_corrections=["names Noise"]),
            row("The quality is fair.", found={}),
            row("Noise.", error="the picture cannot be read"),
        ]
    )
    calls, steps = [], []

    def assess(image, reference, query):
        calls.append((query, reference is not None))
        return next(rows)

    found = asked(assess, tmp_path, pictures, lambda what, done, total: steps.append((done, total)))
    assert calls == [("Where?", False), ("What changed?", True)] * 2
    assert steps == [(1, 4), (2, 4), (3, 4), (4, 4)]
    # The first picture's two answers are right, the second's two wrong: half, and a draw of two pictures
    # gives 0, 0.5 or 1.
    assert found["right"] == {"value": 0.5, "low": 0.0, "high": 1.0, "n": 4}
    assert found["by_type"] == {"place": {"right": 1, "n": 2}, "compare": {"right": 1, "n": 2}}
    assert (found["contradicting"], found["replaced"]) == (1, 1)
    assert [answer["right"] for answer in found["answers"]] == [True, True, False, False]
    assert found["answers"][3]["answer"] == "failed: the picture cannot be read."
    json.dumps(found)
