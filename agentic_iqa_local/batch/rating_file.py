"""A table of one person's ratings that grows while they rate: each is on disk before the next."""

import csv
import io
import os
from pathlib import Path

from agentic_iqa_local.batch.cells import plain_cell, safe_cell
from agentic_iqa_local.batch.ratings import LARGEST, RatingsError
from agentic_iqa_local.files import FileError, path_from_text, path_text, read_bytes, write_whole

COLUMNS = ["image", "rating"]
WORST, BEST = 1, 5


class RatingFile:
    """The ratings in a file, in the order they were given; paths are relative to it. The file is
    read if it is there. Raises RatingsError for one that is something else."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.rows: list[tuple[Path, int]] = []
        if not file.exists():
            return
        try:
            text = read_bytes(file, LARGEST).decode("utf-8-sig")
            header, *rows = csv.reader(io.StringIO(text))
            if header != COLUMNS:
                raise ValueError(f"its columns are {', '.join(header)}")
            for image, rating in rows:
                if int(rating) not in range(WORST, BEST + 1):
                    raise ValueError(f"there is a rating of {rating}")
                self.rows.append((Path(path_from_text(plain_cell(image))), int(rating)))
        except (FileError, ValueError, csv.Error) as error:
            expected = f"expected ratings from 1 to 5 under {','.join(COLUMNS)}"
            raise RatingsError(f"{file}: {expected}, but {error}", "name another file") from error

    def add(self, picture: Path, rating: int) -> None:
        """One more rating. Raises WriteError."""
        name = Path(os.path.relpath(picture, self.file.parent))
        self._write([*self.rows, (name, rating)])

    def undo(self) -> Path | None:
        """Takes back the latest rating; the picture that it was given. Raises WriteError."""
        if not self.rows:
            return None
        *rest, (name, _) = self.rows
        self._write(rest)
        return self.path_of(name)

    def path_of(self, name: Path) -> Path:
        """Where a picture lies that a row names."""
        return self.file.parent / name

    def _write(self, rows: list[tuple[Path, int]]) -> None:
        file = io.StringIO()
        table = csv.writer(file, lineterminator="\n")
        table.writerow(COLUMNS)
        for name, rating in rows:
            table.writerow([safe_cell(path_text(name)), rating])
        write_whole(self.file, file.getvalue(), sync=True)
        self.rows = rows
