"""Batches that outlast the service: each a folder with its pictures, its options and its rows, until it is deleted."""

import asyncio
import json
import logging
import os
import secrets
import shutil
import time
from pathlib import Path
from typing import Any

from agentic_iqa_local.batch.rows import RowFile
from agentic_iqa_local.errors import UserError, one_line
from agentic_iqa_local.files import sync_folder, write_whole
from agentic_iqa_local.images.pictures import PictureFile
from agentic_iqa_local.output.gallery.page import write_gallery
from agentic_iqa_local.output.gallery.rows import read_rows
from agentic_iqa_local.result import Assessment
from agentic_iqa_local.serve.asks import Answer, Ask, Refused, SetUp, line_of
from agentic_iqa_local.serve.bodies import Body
from agentic_iqa_local.serve.queue import Queue

logger = logging.getLogger(__name__)

AGAIN = 10.0  # seconds before a picture is tried again whose model was lost


class Batches:
    """The batches below `root`: folders with pictures/NAME, reference/NAME, options.json (written last) and
    rows.jsonl, where each row names its picture. Unfinished ones go on when the service is started again."""

    def __init__(self, root: Path, queue: Queue, set_up: SetUp):
        self.root, self.queue, self.set_up, self._more = root, queue, set_up, asyncio.Event()
        self._stopped: dict[str, str] = {}  # batches that do not go on, and why
        self._errors: dict[str, list[str | None]] = {}  # of the rows of each batch, each read once

    def names(self) -> list[str]:
        """Of all batches, the oldest first."""
        return sorted(file.parent.name for file in self.root.glob("*/options.json"))

    def _folder(self, name: str) -> Path:
        """Raises Refused (404)."""
        if name not in self.names():
            raise Refused(404, "no_batch", "there is no such batch", "GET /v1/batches lists them")
        return self.root / name

    def lines(self, name: str, start: int = 0) -> list[bytes]:
        """A batch's rows from number `start` on, a line of JSON each. Raises Refused."""
        file = self._folder(name) / "rows.jsonl"
        lines = file.read_bytes().splitlines(keepends=True) if file.exists() else []
        return [line for line in lines[start:] if line.endswith(b"\n")]

    def status(self, name: str) -> dict[str, Any]:
        """How far a batch is. Raises Refused."""
        known, stopped = self._errors.get(name, []), self._stopped.get(name)
        errors = self._errors[name] = known + [
            json.loads(line)["error"] for line in self.lines(name, len(known))
        ]
        done, failed = len(errors), len(errors) - errors.count(None)
        total = len(os.listdir(self.root / name / "pictures"))
        state = (
            "finished"
            if done == total
            else "stopped"
            if stopped
            else "running"
            if done
            else "queued"
        )
        links = {"self": f"/v1/batches/{name}"} | {
            part: f"/v1/batches/{name}/{part}" for part in ("rows", "gallery")
        }
        about = {
            "id": name,
            "state": state,
            "total": total,
            "done": done,
            "failed": failed,
            "links": links,
        }
        return about | (
            {"error": {"code": "stopped", "message": stopped, "remedy": None}} if stopped else {}
        )

    def gallery(self, name: str) -> bytes:
        """The page of a batch's rows so far. Raises Refused where there are none."""
        folder = self._folder(name)
        try:
            rows = read_rows(folder / "rows.jsonl")
            write_gallery(rows, folder / "gallery.html", name=name, images=folder / "pictures")
        except UserError as error:
            raise Refused(
                404, "no_gallery", "the batch has no rows yet", "ask again later"
            ) from error
        return (folder / "gallery.html").read_bytes()

    async def submit(self, body: Body) -> dict[str, Any]:
        """Stores a batch on the disk; its status. Raises Refused for options that make no sense, or a full disk."""
        self.set_up.ask(body.options)
        folder = self.root / f"{time.strftime('%Y%m%dT%H%M%S')}-{secrets.token_hex(8)}"
        try:
            await asyncio.to_thread(self._store, body, folder)
        except (OSError, UserError) as error:
            shutil.rmtree(folder, ignore_errors=True)
            logger.error("a batch could not be stored: %s", one_line(str(error)))
            raise Refused(
                503, "not_stored", "the batch could not be stored", "see the service's log"
            ) from error
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
        write_whole(folder / "options.json", json.dumps(body.options), sync=True)
        sync_folder(folder)

    def delete(self, name: str) -> None:
        """Deletes a batch with its pictures and rows. Raises Refused."""
        (self._folder(name) / "options.json").unlink()
        self._errors.pop(name, None)
        shutil.rmtree(self.root / name, ignore_errors=True)

    async def work(self) -> None:
        """Works on all batches, the oldest first, until it is cancelled."""
        while True:
            self._more.clear()
            for name in self.names():
                self._stopped.pop(name, None)
                try:
                    if self.status(name)["state"] != "finished":
                        await self._work_on(self.root / name)
                except* (UserError, OSError, ValueError) as errors:
                    if name in self.names():  # else it was deleted meanwhile
                        self._stopped[name] = one_line(str(errors.exceptions[0]))
                        logger.error("batch %s is stopped: %s", name, self._stopped[name])
            await self._more.wait()

    async def _work_on(self, folder: Path) -> None:
        """Writes the rows that a batch lacks. Raises UserError, ValueError or OSError where that cannot be done."""
        asked = self.set_up.ask(json.loads((folder / "options.json").read_text()))
        pictures, reference = (
            [PictureFile(str(file), file.name) for file in sorted((folder / part).iterdir())]
            for part in ("pictures", "reference")
        )
        rows = RowFile(folder / "rows.jsonl", Assessment)

        async def write() -> None:
            for picture in left:
                rows.append(line_of(await self._answer(asked.about([picture], *reference))))
                rows.sync()

        try:
            rows.recover(lambda row: row["image"])
            left = (picture for picture in pictures if picture.name not in rows.done)
            async with asyncio.TaskGroup() as workers:
                for _ in range(self.queue.runner.jobs):
                    workers.create_task(write())
        finally:
            rows.close()

    async def _answer(self, ask: Ask) -> Answer:
        """The answer to a picture of a batch, which lets every request go first, and comes again for lost models."""
        while True:
            while self.queue.busy:
                await asyncio.sleep(0.05)
            try:
                return await self.queue.answer(ask)
            except Refused:
                await asyncio.sleep(AGAIN)
