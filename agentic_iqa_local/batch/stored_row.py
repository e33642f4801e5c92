"""A row of an assessment as it is written to a file, and sent from one process to another: a line of JSON."""

from typing import Self

from pydantic import model_validator

from agentic_iqa_local.batch.rows import checked_row
from agentic_iqa_local.levels import LETTER_TO_LEVEL
from agentic_iqa_local.nodes.prompts import choice_letters
from agentic_iqa_local.result import Assessment
from agentic_iqa_local.text import one_line


class StoredRow(Assessment):
    """A row as it was written: with all fields, and an answer that is one of those that were asked for."""

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if missing := sorted(type(self).model_fields.keys() - self.model_fields_set):
            raise ValueError(f"no {', '.join(missing)}")
        letters = None
        if self.q is not None:
            letters = list(LETTER_TO_LEVEL)
        elif self.choices and not self.error:
            letters = choice_letters(self.choices)
        if letters is not None and self.final_answer not in letters:
            raise ValueError(f"final_answer: expected one of {', '.join(letters)}")
        return self


def as_line(row: Assessment) -> str:
    """An assessment as one line of JSON; the tools' runs are told once, in `tools`."""
    return one_line(row.model_dump_json(exclude={"evidence": {"tool_logs"}}))


def read_line(line: str) -> Assessment:
    """The assessment that `as_line` made a line of. Raises FileError for a line that a file of rows would not
    take."""
    _, row = checked_row(line.encode() + b"\n", StoredRow)
    if row.evidence:
        row.evidence.tool_logs = row.tools
    return row
