"""Batches that outlast the service: each a folder with its pictures, its options and its rows.

A row is on the disk before its picture is deleted, so a kill at any moment loses nothing and doubles nothing.
"""

import json
import logging
import os
import secrets
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentic_iqa_local.config import Settings
from agentic_iqa_local.errors import UserError
from agentic_iqa_local.rows import RowFile, write_whole
from agentic_iqa_local.service.asks import Answer, Ask, Named
from agentic_iqa_local.service.errors import Refused
from agentic_iqa_local.service.fields import Defaults, Sent, arguments, settings_for
from agentic_iqa_local.text import one_line

logger = logging.getLogger(__name__)

HALF = ".partial"  # a folder that is not yet submitted


@dataclass
class _Batch:
    id: str
    folder: Path
    about: dict[str, Any]
    rows: RowFile
    done: dict[int, bool] = field(default_factory=dict)  # of each picture with a row, whether it failed
    given: set[int] = field(default_factory=set)
    began: float = 0.0
    fresh: int = 0  # rows since `began`
    stopped: Refused | None = None  # why it does not go on

    @property
    def total(self) -> int:
        return len(self.about["names"])

    def picture(self, index: int) -> Path:
        return self.folder / f"{index}.picture"


class Batches:
    """The batches below `root` (made with mode 0700), in all at most `most_bytes` on the disk. Unfinished
    ones go on; one that cannot be read is left alone. Raises OSError where the folder cannot be used."""

    def __init__(self, root: Path, settings: Settings, defaults: Defaults, most_bytes: int):
        self.root, self.settings, self.defaults, self.most_bytes = root, settings, defaults, most_bytes
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._turn = threading.RLock()
        self._batches: dict[str, _Batch] = {}
        for folder in sorted(root.iterdir()):
            if folder.name.endswith(HALF):
                shutil.rmtree(folder, ignore_errors=True)
            elif (folder / "batch.json").is_file():
                try:
                    self._open(folder)
                except (UserError, OSError, ValueError, KeyError) as error:
                    logger.warning("a batch is left alone: %s", one_line(f"{folder}: {error}"))

    def _open(self, folder: Path) -> _Batch:
        about = json.loads((folder / "batch.json").read_text())
        rows = RowFile(folder / "rows.jsonl")
        rows.recover()
        batch = _Batch(folder.name, folder, about, rows)
        for line in rows:
            batch.done[line["index"]] = line["row"].get("error") is not None
            batch.picture(line["index"]).unlink(missing_ok=True)
        self._batches[batch.id] = batch
        return batch

    def submit(self, sent: Sent, base: str = "") -> dict[str, Any]:
        """Stores a batch; its status, with links below `base`. Raises Refused for options that make no sense,
        and for a full disk."""
        arguments(sent.options, self.defaults)
        settings_for(sent.options, self.settings)
        size = sum(len(data) for _, data in sent.pictures)
        used = sum(file.stat().st_size for file in self.root.glob("*/*"))
        if used + size > self.most_bytes:
            raise Refused(
                413,
                "no_room",
                f"expected at most {self.most_bytes} bytes of batches",
                "delete finished batches",
            )
        name = f"{time.strftime('%Y%m%dT%H%M%S')}-{secrets.token_hex(8)}"
        half, folder = self.root / (name + HALF), self.root / name
        try:
            self._store(sent, half)
            with self._turn:
                os.rename(half, folder)
                return self.status(self._open(folder).id, base)
        except (UserError, OSError) as error:
            shutil.rmtree(half, ignore_errors=True)
            logger.error("a batch could not be stored: %s", one_line(str(error)))
            raise Refused(
                503, "not_stored", f"the batch could not be stored{_told(error)}", "tell who runs the service"
            ) from error

    def _store(self, sent: Sent, half: Path) -> None:
        half.mkdir(mode=0o700)
        for index, (_, data) in enumerate(sent.pictures):
            write_whole(half / f"{index}.picture", data, sync=True)
        if sent.reference:
            write_whole(half / "reference", sent.reference[1], sync=True)
        about = {
            "names": [name for name, _ in sent.pictures],
            "reference": sent.reference and sent.reference[0],
            "options": sent.options,
            "submitted": time.time(),
        }
        write_whole(half / "batch.json", json.dumps(about), sync=True)

    def _found(self, name: str) -> _Batch:
        if name not in self._batches:
            raise Refused(404, "no_batch", "there is no such batch", "GET /v1/batches lists them")
        return self._batches[name]

    def status(self, name: str, base: str = "") -> dict[str, Any]:
        """How far a batch is, with links below `base`. Raises Refused."""
        with self._turn:
            batch = self._found(name)
            done, left = len(batch.done), batch.total - len(batch.done)
            each = (time.time() - batch.began) / batch.fresh if batch.fresh else None
            state = "stopped" if batch.stopped else "running" if batch.given or batch.fresh else "queued"
            return {
                "id": name,
                "state": "finished" if not left else state,
                **(batch.stopped.body() if batch.stopped else {}),
                "total": batch.total,
                "done": done,
                "failed": sum(batch.done.values()),
                "seconds_left": round(each * left, 1) if each is not None and not batch.stopped else None,
                "links": {"self": f"{base}/v1/batches/{name}", "rows": f"{base}/v1/batches/{name}/rows"},
            }

    def all(self, base: str = "") -> list[dict[str, Any]]:
        """Every batch's status, the newest first."""
        with self._turn:
            newest = sorted(self._batches.values(), key=lambda batch: batch.about["submitted"], reverse=True)
            return [self.status(batch.id, base) for batch in newest]

    @property
    def left(self) -> int:
        """Pictures that have no row yet."""
        with self._turn:
            return sum(batch.total - len(batch.done) for batch in self._batches.values())

    def rows(self, name: str, start: int) -> Iterator[str]:
        """The rows from number `start` on, a line of JSON each. Raises Refused."""
        with self._turn:
            try:
                lines = list(self._found(name).rows)[start:]
            except (UserError, OSError) as error:
                raise Refused(404, "no_rows", "the rows of this batch cannot be read any more") from error
        for line in lines:
            yield json.dumps(line["row"], ensure_ascii=False) + "\n"

    def delete(self, name: str) -> None:
        """Deletes a batch with its rows; what is in hand of it is forgotten. Raises Refused."""
        with self._turn:
            batch = self._found(name)
            del self._batches[name]
            batch.rows.close()
            gone = batch.folder.with_name(name + HALF)
            with suppress(FileNotFoundError):
                os.rename(batch.folder, gone)
        shutil.rmtree(gone, ignore_errors=True)

    def next_ask(self) -> Ask | None:
        """The next picture of the oldest batch that has one left."""
        with self._turn:
            going_on = [batch for batch in self._batches.values() if not batch.stopped]
            for batch in sorted(going_on, key=lambda batch: batch.about["submitted"]):
                for index in range(batch.total):
                    if index not in batch.done and index not in batch.given:
                        batch.given.add(index)
                        batch.began = batch.began or time.time()
                        try:
                            return self._ask(batch, index)
                        except Refused as error:  # it was submitted to a service with other models
                            batch.stopped = error
                            break
        return None

    def _ask(self, batch: _Batch, index: int) -> Ask:
        about, reference = batch.about, batch.about["reference"]
        return Ask(
            f"{batch.id}/{index}",
            (Named(batch.picture(index), about["names"][index]),),
            settings_for(about["options"], self.settings),
            reference and Named(batch.folder / "reference", reference),
            **arguments(about["options"], self.defaults),
        )

    def answered(self, answer: Answer) -> None:
        """Writes a row once, and deletes its picture. Where that cannot be done, the batch is stopped; its
        pictures stay for the next start."""
        name, _, index = answer.key.partition("/")
        with self._turn:
            batch, number = self._batches.get(name), int(index)
            if batch is None or batch.stopped or number in batch.done:
                return
            try:
                batch.rows.append(f'{{"index": {number}, "row": {answer.text}}}')
                batch.done[number] = answer.error is not None
                batch.picture(number).unlink(missing_ok=True)
            except (UserError, OSError) as error:
                logger.error("batch %s is stopped: %s", name, one_line(str(error)))
                batch.stopped = Refused(
                    503,
                    "not_stored",
                    f"a row could not be written{_told(error)}",
                    "once there is room, the batch goes on when the service is started again",
                )
            batch.fresh += 1
            batch.given.discard(number)

    def close(self) -> None:
        """Lets go of the files."""
        with self._turn:
            for batch in self._batches.values():
                batch.rows.close()
            self._batches.clear()


def _told(error: BaseException) -> str:
    """What the system says of it, without a path."""
    reason = getattr(error, "strerror", None) or getattr(error.__cause__, "strerror", None)
    return f" ({reason})" if reason else ""
