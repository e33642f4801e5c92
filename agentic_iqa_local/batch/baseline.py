"""A stored run in place of the old pictures: its rows, and the set-up that they are bound to."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentic_iqa_local.batch.pairs import Pair, paired
from agentic_iqa_local.batch.rows import RowsError, StoredRow, differences, read_note, rows_in
from agentic_iqa_local.files import FileError, open_regular, path_from_text
from agentic_iqa_local.nodes.prompts import DEFAULT_QUERY
from agentic_iqa_local.result import Assessment

ANEW = "make it anew with assess --pipeline letters --out FILE, or gate with its set-up"


class Baseline:
    """The rows of a run that assess wrote with --out, and FILE.run.json beside it.

    Raises RowsError for a file that is none, that has a name twice, or rows of a question.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._identity = read_note(path.with_name(f"{path.name}.run.json")).identity
        except RowsError as error:
            raise RowsError(error.message, ANEW) from error
        self.rows: dict[Path, Assessment] = {}
        names = set[str]()
        for row in self._read():
            file = Path(path_from_text(row.image))
            if row.query != DEFAULT_QUERY or row.box:
                raise RowsError(f"{path}: {row.image}: expected a rating of a whole picture", ANEW)
            if file.name in names:
                said = f"{path}: expected each name once, got {file.name} twice"
                raise RowsError(said, "give the rows of one folder")
            names.add(file.name)
            self.rows[file] = row
        if not self.rows:
            raise RowsError(f"{path}: expected rows, found none", ANEW)

    def _read(self) -> list[Assessment]:
        try:
            with open(open_regular(self._path), "rb") as file:
                lines = rows_in(file, self._path, StoredRow)
                return [Assessment.model_validate(row) for _, row in lines]
        except FileError as error:
            raise RowsError(f"{self._path}: {error}", ANEW) from error
        except RowsError as error:
            raise RowsError(error.message, ANEW) from error

    @property
    def pipeline(self) -> Any:
        return self._identity.get("pipeline")

    def check(self, identity: dict[str, Any], reference: bool) -> None:
        """Raises RowsError where the rows depend on another model, other tools, maps, versions or
        settings than `identity`, or were made with a reference and these are not, or the other way
        round."""
        stored = {name: self._identity.get(name) for name in identity}
        changed = differences(identity, stored)
        if changed:
            said = f"{self._path}: q of another set-up cannot be compared: {changed}"
            raise RowsError(said, ANEW)
        had = any(row.reference for row in self.rows.values())
        if had != reference:
            with_or_not = "with" if had else "without"
            said = f"{self._path}: the rows were made {with_or_not} --reference"
            raise RowsError(said, f"gate {with_or_not} it too")

    def pairs(self, new: Sequence[Path]) -> list[Pair]:
        """Each new picture with the stored one of its name."""
        return paired(list(self.rows), new)
