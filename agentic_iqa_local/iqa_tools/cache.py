"""Raw scores kept on disk, by what they were measured on: one SQLite file, safe to share between
processes."""

import hashlib
import math
import os
import sqlite3
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from agentic_iqa_local.files import FileError, open_regular
from agentic_iqa_local.iqa_tools.specs import ToolError

if TYPE_CHECKING:
    from PIL import Image


BEGINNING = b"SQLite format 3\0"
TABLE = "CREATE TABLE scores (key TEXT PRIMARY KEY, raw REAL NOT NULL)"


class ScoreCache:
    """Raw scores by key. Raises ToolError for a file that is no such cache or cannot be written."""

    def __init__(self, path: str | Path):
        self.path, self._lock = Path(path), threading.Lock()
        try:
            _require_database(self.path)
        except FileError as error:
            raise ToolError(
                f"tools.cache {self.path}: {error}", "name another file in tools.cache"
            ) from error
        try:
            self._database = sqlite3.connect(self.path, check_same_thread=False, timeout=60)
            with self._database:
                self._database.execute(TABLE.replace("TABLE", "TABLE IF NOT EXISTS"))
            # a view or a trigger of the same name would run what somebody else wrote
            schema = self._database.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
        except (sqlite3.Error, ValueError) as error:  # ValueError: a null byte in the name
            raise ToolError(
                f"tools.cache {self.path}: expected an SQLite file that can be written, got: {error}"
            ) from error
        if schema != [(TABLE,)]:
            raise ToolError(
                f"tools.cache {self.path}: expected a file with nothing but a table of scores, got another"
                " database",
                "name another file in tools.cache",
            )

    def get(self, key: str) -> float | None:
        """The score, None where there is none or something else than a finite number. Raises ToolError when
        the file cannot be read."""
        row = self._run("SELECT raw FROM scores WHERE key = ? AND typeof(raw) = 'real'", (key,))
        return row[0] if row and math.isfinite(row[0]) else None

    def put(self, key: str, raw: float) -> None:
        """Raises ToolError for a score that is not finite, and when the file cannot be written."""
        if not math.isfinite(raw):
            raise ToolError(
                f"tools.cache {self.path}: expected a finite score, got {raw}", "measure it again"
            )
        self._run("INSERT OR REPLACE INTO scores VALUES (?, ?)", (key, raw))

    def _run(self, statement: str, values: tuple) -> tuple | None:
        try:
            with self._lock, self._database:
                return self._database.execute(statement, values).fetchone()
        except sqlite3.Error as error:
            raise ToolError(
                f"tools.cache {self.path}: cannot be used ({error})",
                "make room, or name another file in tools.cache",
            ) from error


def _require_database(path: Path) -> None:
    """Raises FileError for what SQLite would wait for, such as a pipe. A file that is not there yet is
    made."""
    if not os.path.exists(path):  # Path.exists raises for a name that no file can have
        return
    with open(open_regular(path), "rb") as file:
        if file.read(len(BEGINNING)) not in (b"", BEGINNING):
            raise FileError("expected an SQLite file, got something else")


def score_key(*what: str, pictures: "list[Image.Image]") -> str:
    """SHA-256 over names, versions and hashes of weights, and over each picture's size and pixels."""
    digest = hashlib.sha256("\n".join(what).encode())
    for picture in pictures:
        digest.update(f"\n{picture.mode} {picture.size}\n".encode())
        digest.update(picture.tobytes())
    return digest.hexdigest()
