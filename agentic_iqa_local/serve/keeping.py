"""What `--keep` keeps: every picture that was sent, by its SHA-256, and every answer."""

import hashlib
import logging
from pathlib import Path

from agentic_iqa_local.batch.rows import RowFile, RowsError
from agentic_iqa_local.errors import UserError, one_line
from agentic_iqa_local.files import FileError, require_own, write_whole
from agentic_iqa_local.serve.asks import Answer, Ask

logger = logging.getLogger(__name__)


class Kept:
    """A folder with SHA256.picture for each picture and reference, `rows.jsonl` and `comparisons.jsonl`: a
    line for each answer and failure, as it was sent. Raises UserError where the folder cannot be written."""

    def __init__(self, folder: Path):
        self.folder = folder
        for name, kind in (("rows", "file of rows"), ("comparisons", "file of comparisons")):
            try:
                require_own(folder / f"{name}.jsonl", kind)
            except FileError as error:
                raise RowsError(f"{folder / name}.jsonl: {error}") from error
        self._rows, self._comparisons = RowFile(folder / "rows.jsonl"), RowFile(folder / "comparisons.jsonl")
        for file in (self._rows, self._comparisons):
            file.recover()

    def keep(self, ask: Ask, answer: Answer) -> None:
        """Keeps an answer with its pictures. Where that fails the log says so, and the answer goes out all
        the same."""
        try:
            for picture in (*ask.pictures, *([ask.reference] if ask.reference else [])):
                data = picture.path.read_bytes()
                place = self.folder / f"{hashlib.sha256(data).hexdigest()}.picture"
                if not place.exists():
                    write_whole(place, data)
            (self._comparisons if len(ask.pictures) > 1 else self._rows).append(answer.text)
        except (UserError, OSError) as error:
            logger.error("an answer could not be kept: %s", one_line(str(error)))

    def close(self) -> None:
        self._rows.close()
        self._comparisons.close()
