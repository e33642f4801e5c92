"""Sets of multiple-choice questions, and any file of questions."""

import string
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from agentic_iqa_local.config import check_choices
from agentic_iqa_local.studies.datasets.reader import DatasetReader
from agentic_iqa_local.studies.datasets.tables import (
    csv_rows,
    first_value,
    header,
    json_rows,
    lines,
    row_place,
    text,
)
from agentic_iqa_local.studies.datasets.types import (
    DatasetInfo,
    Layout,
    Question,
    listed,
)

QUESTION_COLUMNS = "image", "question", "choices", "answer"


def load(reader: DatasetReader) -> None:
    """Every .jsonl and .json file of the folder and every .csv file with these columns, or one file: `image`,
    `question`, `choices` (in CSV with | between them), `answer`, and if known `reference`, `task`,
    `question_type`, `split`. AgenticIQA-Eval is read so: how its authors lay it out could not be checked. Its
    tasks are planner, executor_distortion, executor_tool and summarizer."""
    files = [reader.path] if reader.path.is_file() else sorted(reader.root.iterdir())
    within = reader.folders()
    for path in (p for p in files if p.suffix.lower() in (".jsonl", ".json", ".csv")):
        if path.suffix.lower() != ".csv":
            rows = json_rows(path)
        elif reader.path.is_file() or holds_questions(path):
            rows = reader.numbered_table(path, *QUESTION_COLUMNS)
        else:
            continue
        for line, row in rows:
            add_question(reader, row, within, where=row_place(path, line))


def holds_questions(path: Path) -> bool:
    """Whether a CSV file has the columns of questions and no human scores, or a JSON file a question."""
    if path.suffix.lower() != ".csv":
        return any('"question"' in line for line in lines(path))
    return any(
        set(QUESTION_COLUMNS) <= set(names := header(cells)) and "mos" not in names for _, cells in csv_rows(path)[:20]
    )


def add_question(
    reader: DatasetReader,
    row: dict[str, Any],
    within: Iterable[str],
    split: str | None = None,
    where: str = "the file",
) -> None:
    """Adds a question, or notes why not. Choices are a list, a mapping from letters, or a text that separates
    them by |; the answer is an index, a letter or the text of a choice. `where` tells the user which row it
    is. Raises DatasetError."""
    image, question, reference, choices = _asked(reader, row, where)
    facts = (
        first_value(row, "task", "task_type"),
        first_value(row, "question_type", "type"),
        split or first_value(row, "split"),
    )
    if any(isinstance(fact, list | dict) for fact in facts):
        raise reader.error("texts as task, question_type and split", repr(facts), f"correct {where}")
    answer = first_value(row, "answer", "correct_ans", "correct_answer")
    if answer is None:
        reader.left_out["no answer is published"] += 1
        return
    texts, index = _answered(choices, answer)
    if reader.by_user:
        _check(reader, texts, index, answer, where)
    if index is None:
        reader.left_out["the answer is none of the choices"] += 1
    elif paths := reader.locate(image, reference, within):
        reader.questions.append(Question(paths[0], question, tuple(texts), index, paths[1], *map(text, facts)))


def _asked(
    reader: DatasetReader, row: dict[str, Any], where: str
) -> tuple[str, str, str | None, str | list[Any] | dict[str, Any]]:
    """Image, question, reference and choices. Raises DatasetError unless they are there."""
    image, question = first_value(row, "image", "image_path", "img_path"), row.get("question")
    choices = first_value(row, "choices", "options", "candidates")
    reference = first_value(row, "reference", "reference_path")
    if (
        (image and isinstance(image, str))
        and (question and isinstance(question, str))
        and (choices and isinstance(choices, str | list | dict))
        and isinstance(reference, str | None)
    ):
        return image, question, reference, choices
    known = listed(name for name, value in row.items() if value not in (None, ""))
    raise reader.error("image, question and choices in every row", known or "an empty row", f"complete {where}")


def _answered(choices: str | list[Any] | dict[str, Any], answer: Any) -> tuple[list[str], int | None]:
    """The texts of the choices, and the index of the answer; None when it is none of them."""
    if isinstance(choices, str):  # of a CSV file, where blanks around a text mean nothing
        choices = [choice.strip() for choice in choices.split("|")]
        answer = answer.strip() if isinstance(answer, str) else answer
    letters = list(choices) if isinstance(choices, dict) else list(string.ascii_uppercase[: len(choices)])
    texts = [str(choice) for choice in (choices.values() if isinstance(choices, dict) else choices)]
    namings: tuple[list[Any], ...] = (texts, letters, list(range(len(texts))))
    return texts, next((names.index(answer) for names in namings if answer in names), None)


def _check(reader: DatasetReader, texts: list[str], index: int | None, answer: Any, where: str) -> None:
    """What a user wrote has to be an answerable question. Raises DatasetError."""
    try:
        check_choices(texts)
    except ValueError as error:
        expected, _, found = str(error).partition(": expected ")[2].partition(", got ")
        raise reader.error(f"{expected}, separated by | in a CSV file", found, f"correct {where}") from error
    if index is None:
        raise reader.error("as answer one of the choices or its letter", repr(answer), f"correct {where}")


AGENTICIQA_EVAL = Layout(
    DatasetInfo("agenticiqa_eval", "AgenticIQA-Eval", "MCQ", url="https://arxiv.org/abs/2509.26006"), load
)
QUESTIONS = Layout(
    DatasetInfo("questions", "a file of questions", "MCQ"),
    load,
    (("questions.csv|questions.jsonl|questions.json", ""),),
)
