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

_TABLE = "CREATE TABLE IF NOT EXISTS scores (key TEXT PRIMARY KEY, raw REAL NOT NULL)"


class ScoreCache:
    """Raw scores by key. Raises ToolError for a file that is no such cache or cannot be read or written."""

    def __init__(self, path: str | Path):
        self.path, self._lock = Path(path), threading.Lock()
        try:
            if os.path.exists(path):  # SQLite would wait for a pipe
                os.close(open_regular(path))
            self._database = sqlite3.connect(path, check_same_thread=False, timeout=60)
        except (FileError, sqlite3.Error, ValueError) as error:  # ValueError: a NUL in the name
            raise self._unusable(error) from error
        self._run(_TABLE)
        self._run("SELECT key, raw FROM scores LIMIT 1")

    def get(self, key: str) -> float | None:
        """The score; None where there is none, or something else than a finite number."""
        row = self._run("SELECT raw FROM scores WHERE key = ? AND typeof(raw) = 'real'", key)
        return row[0] if row and math.isfinite(row[0]) else None

    def put(self, key: str, raw: float) -> None:
        """Keeps a score, which must be finite."""
        if not math.isfinite(raw):
            raise ToolError(
                f"tools.cache {self.path}: expected a finite score, got {raw}", "measure it again"
            )
        self._run("INSERT OR REPLACE INTO scores VALUES (?, ?)", key, raw)

    def _run(self, statement: str, *values: str | float) -> tuple | None:
        try:
            with self._lock, self._database:
                return self._database.execute(statement, values).fetchone()
        except sqlite3.Error as error:
            raise self._unusable(error) from error

    def _unusable(self, error: Exception) -> ToolError:
        expected = "expected an SQLite file of scores that can be written"
        return ToolError(f"tools.cache {self.path}: {expected}, got: {error}", "name another file")


def score_key(*what: str, pictures: "list[Image.Image]") -> str:
    """SHA-256 over names, versions and hashes of weights, and over each picture's size and pixels."""
    digest = hashlib.sha256("\n".join(what).encode())
    for picture in pictures:
        digest.update(f"\n{picture.mode} {picture.size}\n".encode())
        digest.update(picture.tobytes())
    return digest.hexdigest()
