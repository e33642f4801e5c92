"""A run's folder: run.json (what was asked, of which files, with which model) and rows.jsonl, one durable line for each image.

A line is written whole and synced before the next image begins, so that a kill at any moment loses the image in hand at most.
What a kill left of a line is cut off when the run is opened again.
"""

import fcntl
import json
import os
from pathlib import Path
from typing import Any, Self


class StoreError(ValueError):
    """A run's folder that cannot be used; one sentence for the user."""


class Store:
    """Rows by their `key`, appended once each. One process at a time writes.

    `run` describes the run; `identity` is the part of it that rows depend on. Raises StoreError for a folder of another run, of
    another process, or that cannot be written.
    """

    def __init__(self, folder: Path, run: dict[str, Any], identity: dict[str, Any]):
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = (folder / "rows.jsonl").open("a+b")
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StoreError(f"{folder}: another process is writing this run; wait for it or choose another --out") from error
        except OSError as error:
            raise StoreError(f"{folder}: expected a folder that can be written, got {error.strerror}") from error
        description = folder / "run.json"
        if description.exists():
            known = json.loads(description.read_text(encoding="utf-8"))["identity"]
            if changed := sorted(key for key in known.keys() | identity.keys() if known.get(key) != identity.get(key)):
                raise StoreError(
                    f"{folder}: holds a run with another {' and '.join(changed)}; go on with the same or choose another --out"
                )
        else:
            partial = description.with_suffix(".partial")
            partial.write_text(json.dumps(run | {"identity": identity}, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
            partial.replace(description)
        self.done = self._recover()

    def _recover(self) -> set[str]:
        """Keys of the rows that are whole; whatever follows the last line's end is cut off."""
        self._file.seek(0)
        content = self._file.read()
        whole = content.rfind(b"\n") + 1
        self._file.truncate(whole)
        self._file.seek(0, os.SEEK_END)
        return {json.loads(line)["key"] for line in content[:whole].splitlines()}

    def append(self, row: dict[str, Any]) -> None:
        """Writes one row and waits until the disk has it. Raises ValueError for a key that is there already, or a number that
        JSON cannot hold."""
        if row["key"] in self.done:
            raise ValueError(f"{self.folder}: {row['key']} is stored already")
        self._file.write(json.dumps(row, ensure_ascii=False, allow_nan=False).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self.done.add(row["key"])

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_run(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """(run.json, whole rows) of a run that may still be going on. Raises StoreError where there is none."""
    try:
        run = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        content = (folder / "rows.jsonl").read_bytes()
        return run, [json.loads(line) for line in content[: content.rfind(b"\n") + 1].splitlines()]
    except (OSError, ValueError) as error:
        raise StoreError(f"{folder}: expected run.json and rows.jsonl of a study, got: {error}") from error
