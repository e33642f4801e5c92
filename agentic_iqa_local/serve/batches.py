"""Batches that outlast the service: each a folder with its pictures, its options and its rows.

A row is on the disk before its picture is deleted, so a kill at any moment loses nothing and doubles nothing.
"""

import json
import logging
import os
import re
import secrets
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from agentic_iqa_local.batch.rows import AnyRow, RowFile, RowsError, rows_in
from agentic_iqa_local.config import Settings
from agentic_iqa_local.errors import UserError, one_line
from agentic_iqa_local.files import open_regular, sync_folder, write_whole
from agentic_iqa_local.serve.asks import Answer, Ask, Named
from agentic_iqa_local.serve.errors import Refused
from agentic_iqa_local.serve.fields import Defaults, Sent, arguments, settings_for

logger = logging.getLogger(__name__)

HALF = ".partial"  # a folder that is not yet submitted
UNFINISHED = 256  # batches that may be unfinished at once: each has a file open


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
    ones go on; one that cannot be read is left alone. Raises RowsError where the folder cannot be used, or
    another service uses it."""

    def __init__(self, root: Path, settings: Settings, defaults: Defaults, most_bytes: int):
        self.root, self.settings, self.defaults, self.most_bytes = root, settings, defaults, most_bytes
        self._lock = _locked(root)
        self._turn = threading.RLock()
        self._storing = threading.Lock()  # one batch at a time, so that all keep to `most_bytes`
        self._batches: dict[str, _Batch] = {}
        for folder in sorted(root.iterdir()):
            if re.fullmatch(rf"[0-9]{{8}}T[0-9]{{6}}-[0-9a-f]{{16}}{re.escape(HALF)}", folder.name):
                shutil.rmtree(folder, ignore_errors=True)
            elif (folder / "batch.json").is_file():
                try:
                    self._open(folder)
                except (UserError, OSError, ValueError, KeyError) as error:
                    logger.warning("a batch is left alone: %s", one_line(f"{folder}: {error}"))

    def _open(self, folder: Path) -> _Batch:
        about = json.loads((folder / "batch.json").read_text())
        rows = RowFile(folder / "rows.jsonl")
        batch = _Batch(folder.name, folder, about, rows)
        try:
            rows.recover()
            for line in rows:
                batch.done[line["index"]] = line["row"].get("error") is not None
                batch.picture(line["index"]).unlink(missing_ok=True)
            finished = len(batch.done) == batch.total
        except BaseException:
            rows.close()
            raise
        if finished:
            rows.close()
        self._batches[batch.id] = batch
        return batch

    def submit(self, sent: Sent, base: str = "") -> dict[str, Any]:
        """Stores a batch; its status, with links below `base`. Raises Refused for options that make no sense,
        for a full disk, and where too much waits."""
        arguments(sent.options, self.defaults)
        settings_for(sent.options, self.settings)
        with self._storing:
            self._check_room(sent)
            return self._submit(sent, base)

    def _check_room(self, sent: Sent) -> None:
        size = sum(len(data) for _, data in [*sent.pictures, *([sent.reference] if sent.reference else [])])
        if _bytes_below(self.root) + size > self.most_bytes:
            raise Refused(
                413,
                "no_room",
                f"expected at most {self.most_bytes} bytes of batches",
                "delete finished batches",
            )
        with self._turn:
            unfinished = sum(len(batch.done) < batch.total for batch in self._batches.values())
        if unfinished >= UNFINISHED:
            raise Refused(
                429,
                "too_many_batches",
                f"expected at most {UNFINISHED} unfinished batches",
                "send pictures together, or wait until some are finished",
                Retry_After="60",
            )

    def _submit(self, sent: Sent, base: str) -> dict[str, Any]:
        name = f"{time.strftime('%Y%m%dT%H%M%S')}-{secrets.token_hex(8)}"
        half, folder = self.root / (name + HALF), self.root / name
        try:
            self._store(sent, half)
            os.rename(half, folder)
            sync_folder(folder)
            with self._turn:
                return self.status(self._open(folder).id, base)
        except (UserError, OSError) as error:
            for leftover in (half, folder):
                shutil.rmtree(leftover, ignore_errors=True)
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
        """Pictures that have no row yet. Waits for no disk: the event loop asks."""
        return sum(batch.total - len(batch.done) for batch in list(self._batches.values()))

    def rows(self, name: str, start: int) -> Iterator[str]:
        """The rows from number `start` on, a line of JSON each. Raises Refused."""
        with self._turn:
            path = self._found(name).rows.path
        try:
            with open(open_regular(path), "rb") as file:
                for _, line in islice(rows_in(file, path, AnyRow, going_on=True), start, None):
                    yield json.dumps(line["row"], ensure_ascii=False) + "\n"
        except (UserError, OSError) as error:
            raise Refused(404, "no_rows", "the rows of this batch cannot be read any more") from error

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
                batch.rows.sync()
                batch.done[number] = answer.error is not None
                batch.picture(number).unlink(missing_ok=True)
                if len(batch.done) == batch.total:
                    batch.rows.close()
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
            self._lock.release()


def _locked(root: Path) -> FileLock:
    """The lock on the folder, which is made. Raises RowsError."""
    remedy, lock = "choose another --batches", FileLock(root / "lock", timeout=0, thread_local=False)
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock.acquire()
        return lock
    except Timeout as error:
        raise RowsError(f"{root}: another service keeps its batches there", remedy) from error
    except OSError as error:
        raise RowsError(f"{root}: expected a folder for batches, got {error.strerror}", remedy) from error


def _bytes_below(folder: str | Path) -> int:
    """Bytes of all files below a folder; what is deleted meanwhile counts nothing."""
    total = 0
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                is_folder = entry.is_dir(follow_symlinks=False)
                total += _bytes_below(entry.path) if is_folder else entry.stat(follow_symlinks=False).st_size
    return total


def _told(error: BaseException) -> str:
    """What the system says of it, without a path."""
    reason = getattr(error, "strerror", None) or getattr(error.__cause__, "strerror", None)
    return f" ({reason})" if reason else ""
