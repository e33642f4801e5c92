"""A batch on the disk. Whatever is read is checked here, so that only the spoilt batch stops."""

import io
import itertools
import os
import threading
from pathlib import Path
from typing import Any, BinaryIO

from agentic_iqa_local.batch.rows import RowFile, StoredRow, check_run, rows_in, write_run
from agentic_iqa_local.errors import one_line
from agentic_iqa_local.files import FileError, open_regular, path_text, read_json
from agentic_iqa_local.images.pictures import PictureFile
from agentic_iqa_local.output.gallery.rows import read_rows
from agentic_iqa_local.result import Assessment
from agentic_iqa_local.serve.asks import Ask, SetUp

OPTIONS, ROWS, RUN = "options.json", "rows.jsonl", "run.json"


class StoredBatch:
    """A folder with pictures/NAME, reference/NAME, options.json, rows.jsonl and run.json, which
    says what the rows depend on. Every method that reads raises UserError or OSError for anything
    else."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._turn = threading.Lock()
        self._errors: dict[str, str | None] = {}  # of the rows that were checked, by their pictures
        self._end = 0  # where the rows end that were checked

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

    def errors(self) -> dict[str, str | None]:
        """Why each picture that has a row failed, or None. Each row is read once."""
        with self._turn, self._rows() as file:
            file.seek(self._end)
            first = len(self._errors) + 1
            for line, row in rows_in(file, Path(ROWS), StoredRow, going_on=True, first=first):
                if not line.endswith(b"\n"):  # it is still being written
                    break
                self._errors[row["image"]] = row["error"]
                self._end += len(line)
            return dict(self._errors)

    def left(self) -> list[PictureFile]:
        """The pictures that have no row yet."""
        done = self.errors()
        return [picture for picture in self.pictures() if path_text(picture.name) not in done]

    def lines(self, start: int) -> bytes:
        """The rows from number `start` on, a line of JSON each."""
        count = len(self.errors())
        with self._rows() as file:
            return b"".join(itertools.islice(file, min(start, count), count))

    def rows(self) -> list[Assessment]:
        """Every row so far."""
        return read_rows(self.folder / ROWS) if self.errors() else []

    def keep_to(self, identity: dict[str, Any]) -> None:
        """Notes what the rows depend on, as long as there are none; after that it must be the same,
        so that a batch that goes on after a restart has rows of one kind."""
        if self.errors():
            check_run(self.folder / RUN, identity)
        else:
            write_run(self.folder / RUN, {}, identity)

    def writer(self) -> RowFile:
        """The file of rows, to go on with. Raises RowsError if it cannot be written."""
        return RowFile(self.folder / ROWS, StoredRow)

    def hidden(self, message: str) -> str:
        """A message of a UserError without the place of the folder."""
        return message.replace(one_line(f"{self.folder}{os.sep}"), "")

    def _files(self, part: str) -> list[PictureFile]:
        files = []
        for name in sorted(os.listdir(self.folder / part)):
            path = self.folder / part / name
            if not path.is_file():
                raise FileError(f"{part}: {path_text(name)}: expected a file")
            files.append(PictureFile(str(path), name))
        return files

    def _rows(self) -> BinaryIO:
        path = self.folder / ROWS
        return open(open_regular(path), "rb") if path.exists() else io.BytesIO()
