"""Batches that outlast the service: each a folder with its pictures, its options and its rows,
until it is deleted."""

import asyncio
import json
import logging
import os
import secrets
import shutil
import time
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from agentic_iqa_local.errors import UserError, one_line
from agentic_iqa_local.files import path_text, sync_folder, write_whole
from agentic_iqa_local.output.gallery.page import write_gallery
from agentic_iqa_local.result import Assessment
from agentic_iqa_local.serve.asks import Answer, Ask, Refused, SetUp, line_of
from agentic_iqa_local.serve.bodies import Body
from agentic_iqa_local.serve.queue import Queue
from agentic_iqa_local.serve.refusals import refusal_of
from agentic_iqa_local.serve.stored import OPTIONS, StoredBatch

logger = logging.getLogger(__name__)

AGAIN = 10.0  # seconds before a picture is tried again whose model was lost


class Batches:
    """The batches below `root`: folders with options.json, which is written last. Unfinished ones
    go on when the service is started again; one that cannot go on is stopped, and the others are
    not."""

    def __init__(self, root: Path, queue: Queue, set_up: SetUp):
        self.root, self.queue, self.set_up = root, queue, set_up
        self._more = asyncio.Event()  # there may be something to do
        self._stopped: dict[str, str] = {}  # batches that do not go on, and why

    def _batches(self) -> dict[str, StoredBatch]:
        """Every batch by its name, the oldest first. Raises OSError."""
        batches = {}
        for folder in sorted(self.root.iterdir()):
            if os.path.lexists(folder / OPTIONS):
                batches[path_text(folder.name)] = StoredBatch(folder)
        return batches

    def _batch(self, name: str) -> StoredBatch:
        """Raises Refused (404), and OSError where the batches cannot be listed."""
        batch = self._batches().get(name)
        if batch is None:
            raise Refused(404, "no_batch", "there is no such batch", "GET /v1/batches lists them")
        return batch

    def lines(self, name: str, start: int = 0) -> bytes:
        """A batch's rows from number `start` on, a line of JSON each. Raises Refused."""
        return b"".join(line for line, _ in self._rows(name)[start:])

    def rows(self, name: str) -> list[Assessment]:
        """A batch's rows so far. Raises Refused."""
        return [Assessment.model_validate(row) for _, row in self._rows(name)]

    def _rows(self, name: str) -> list[tuple[bytes, dict[str, Any]]]:
        """(line, row) of each row. Raises Refused if there is no such batch (404), or if it is
        spoilt (409)."""
        batch = self._batch(name)
        try:
            return batch.rows()
        except (OSError, UserError) as error:
            remedy = "mend its folder, or delete the batch"
            raise Refused(409, "spoilt_batch", _reason(error, batch), remedy) from error

    def listed(self) -> list[dict[str, Any]]:
        """How far every batch is, the newest first. Raises OSError."""
        return [self._status(name, batch) for name, batch in reversed(self._batches().items())]

    def status(self, name: str) -> dict[str, Any]:
        """How far a batch is. Raises Refused."""
        return self._status(name, self._batch(name))

    def _status(self, name: str, batch: StoredBatch) -> dict[str, Any]:
        """How far a batch is; a spoilt one is stopped, with the counts of what can be read."""
        total = 0
        rows = list[Any]()
        spoilt = None
        try:
            total = len(batch.pictures())
            rows = batch.rows()
        except (OSError, UserError) as error:
            spoilt = _reason(error, batch)
        finished = spoilt is None and len(rows) == total
        why = None if finished else spoilt or self._stopped.get(name)
        if finished:
            state = "finished"
        elif why:
            state = "stopped"
        else:
            state = "running" if rows else "queued"
        status = {
            "id": name,
            "state": state,
            "total": total,
            "done": len(rows),
            "failed": sum(row["error"] is not None for _, row in rows),
        }
        return status | (Refused(503, "stopped", why).body() if why else {})

    def gallery(self, name: str) -> bytes:
        """The page of a batch's rows so far. Raises Refused if there are none."""
        rows, pictures = self.rows(name), self._batch(name).folder / "pictures"
        if not rows:
            raise Refused(404, "no_gallery", "the batch has no rows yet", "ask again later")
        with TemporaryDirectory() as folder:
            page = Path(folder, "gallery.html")
            write_gallery(rows, page, name=name, images=pictures)
            return page.read_bytes()

    async def submit(self, body: Body) -> dict[str, Any]:
        """Stores a batch on the disk; its status. Raises Refused for options that make no sense,
        OSError and WriteError for a full disk."""
        self.set_up.ask(body.options)
        folder = self.root / f"{time.strftime('%Y%m%dT%H%M%S')}-{secrets.token_hex(8)}"
        try:
            await asyncio.to_thread(self._store, body, folder)
        except Exception:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        self._more.set()
        return self.status(folder.name)

    def _store(self, body: Body, folder: Path) -> None:
        reference = [body.reference] if body.reference else []
        for place, uploads in (("pictures", body.images), ("reference", reference)):
            (folder / place).mkdir(parents=True, mode=0o700)
            for upload in uploads:
                path, number = folder / place / upload.name, 1
                while path.exists():
                    number += 1
                    path = path.with_name(f"{number} {upload.name}")
                write_whole(path, upload.data, sync=True)
        write_whole(folder / OPTIONS, json.dumps(body.options), sync=True)
        sync_folder(folder)

    def delete(self, name: str) -> None:
        """Deletes a batch with all that its folder holds. Raises Refused, and OSError for what
        cannot be deleted."""
        shutil.rmtree(self._batch(name).folder)

    async def work(self) -> None:
        """Works on all batches, the oldest first, until it is cancelled. What one of them raises
        stops it alone."""
        while True:
            self._more.clear()
            try:
                for name, batch in self._batches().items():
                    await self._go_on_with(name, batch)
            except OSError as error:
                logger.error("the batches cannot be listed: %s", one_line(str(error)))
            await self._more.wait()

    async def _go_on_with(self, name: str, batch: StoredBatch) -> None:
        self._stopped.pop(name, None)
        try:
            await self._work_on(batch)
        except* Exception as errors:
            if batch.folder.exists():  # else it was deleted meanwhile
                self._stopped[name] = _reason(errors.exceptions[0], batch)
                logger.error("batch %s is stopped: %s", one_line(name), self._stopped[name])

    async def _work_on(self, batch: StoredBatch) -> None:
        """Writes the rows that a batch lacks. Raises UserError or OSError where that cannot be
        done, and where those that it has are of other settings."""
        if not await asyncio.to_thread(batch.left):
            return
        asked = batch.ask(self.set_up)
        identity = await asyncio.to_thread(asked.identity, self.queue.runner.device)
        with closing(batch.writer(identity)) as rows:
            left = iter(batch.left())

            async def write() -> None:
                for picture in left:
                    answer = await self._answer(asked.about([picture], asked.reference))
                    rows.append(line_of(answer))

            async with asyncio.TaskGroup() as workers:
                for _ in range(self.queue.runner.jobs):
                    workers.create_task(write())

    async def _answer(self, ask: Ask) -> Answer:
        """The answer to a picture of a batch, which lets every request go first, and comes again
        for lost models."""
        while True:
            while self.queue.busy:
                await asyncio.sleep(0.05)
            try:
                return await self.queue.answer(ask)
            except Refused:
                await asyncio.sleep(AGAIN)


def _reason(error: Exception, batch: StoredBatch) -> str:
    """Why a batch is stopped, without the places of the service's files."""
    if isinstance(error, UserError):
        return batch.hidden(error.message)
    return refusal_of(error).message
