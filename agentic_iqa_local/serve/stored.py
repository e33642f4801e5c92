"""A batch on the disk. Whatever is read is checked here, so that only the spoilt batch stops."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentic_iqa_local.batch.results import Results
from agentic_iqa_local.batch.rows import StoredRow, rows_in
from agentic_iqa_local.errors import one_line
from agentic_iqa_local.files import FileError, open_regular, path_text, read_json
from agentic_iqa_local.images.pictures import PictureFile
from agentic_iqa_local.serve.asks import Ask, SetUp

OPTIONS, ROWS = "options.json", "rows.jsonl"


@dataclass(frozen=True)
class StoredBatch:
    """A folder with pictures/NAME, reference/NAME, options.json and `Results` in rows.jsonl. Every
    method that reads raises UserError or OSError for anything else."""

    folder: Path

    def pictures(self) -> list[PictureFile]:
        """In the order of their names, one at least."""
        files = self._files("pictures")
        if not files:
            raise FileError("pictures: expected a picture, found none")
        return files

    def ask(self, set_up: SetUp) -> Ask:
        """What is asked of each picture: its options are checked as those of a request are."""
        reference = self._files("reference")
        if len(reference) > 1:
            raise FileError(f"reference: expected one file, found {len(reference)}")
        return set_up.ask(read_json(self.folder / OPTIONS)).about([], *reference)

    def rows(self) -> list[tuple[bytes, dict[str, Any]]]:
        """(line, row) of each row so far."""
        path = self.folder / ROWS
        if not path.exists():
            return []
        with open(open_regular(path), "rb") as file:
            return list(rows_in(file, Path(ROWS), StoredRow))

    def left(self) -> list[PictureFile]:
        """The pictures that have no row yet."""
        done = [row["image"] for _, row in self.rows()]
        return [picture for picture in self.pictures() if path_text(picture.name) not in done]

    def writer(self, identity: dict[str, Any]) -> Results:
        """The file of rows, to go on with. Raises RowsError if it cannot be written, or its rows
        depend on something else."""
        return Results(self.folder / ROWS, identity, resume=True)

    def hidden(self, message: str) -> str:
        """A message of a UserError without the place of the folder."""
        return message.replace(one_line(f"{self.folder}{os.sep}"), "")

    def _files(self, part: str) -> list[PictureFile]:
        files = []
        for path in sorted((self.folder / part).iterdir()):
            if not path.is_file():
                raise FileError(f"{part}: {path_text(path.name)}: expected a file")
            files.append(PictureFile(str(path), path.name))
        return files
