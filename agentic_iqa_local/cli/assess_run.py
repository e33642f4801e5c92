"""A run of the command assess: its items go through a batch, their rows to a file, the pipe or the
screen."""

import argparse
import os
import shutil
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from agentic_iqa_local.batch.inputs import Item, row_key
from agentic_iqa_local.batch.ray import RayRunner
from agentic_iqa_local.batch.results import Results
from agentic_iqa_local.batch.runner import BatchError, Runner, resumed
from agentic_iqa_local.batch.work import AssessWork, as_line
from agentic_iqa_local.cli.command import stopped_by_ctrl_c
from agentic_iqa_local.cli.console import Console, Progress, tell
from agentic_iqa_local.cli.look import make_gallery
from agentic_iqa_local.cli.options import batch_of
from agentic_iqa_local.cli.sidecars import told
from agentic_iqa_local.config import Settings
from agentic_iqa_local.errors import counted, one_line
from agentic_iqa_local.files import WriteError, path_text, write_whole
from agentic_iqa_local.output.picture_lines import picture_line
from agentic_iqa_local.output.report import account, summary
from agentic_iqa_local.output.sidecars import Sidecars
from agentic_iqa_local.output.tables import csv_text
from agentic_iqa_local.output.tally import Tally
from agentic_iqa_local.output.words import wrapped
from agentic_iqa_local.result import Assessment
from agentic_iqa_local.vlm_client import VLMError

UNSURE, FAILS = 3, 4  # exit statuses of --strict


class AssessRun:
    """The items that a command line names, and what became of them so far. Raises RowsError,
    UsageError."""

    def __init__(
        self,
        args: argparse.Namespace,
        settings: Settings,
        items: list[Item],
        device: str,
        console: Console,
        maps: Sequence[Path] = (),
        sidecars: Sidecars | None = None,
    ):
        self.sidecars = sidecars
        self.args, self.items, self.device, self.console = args, items, device, console
        places = {item.key: png for item, png in zip(items, maps, strict=False)}
        self.work = AssessWork(settings, args.pipeline or "agent", places)
        self.results = self._open_results() if args.out else None
        done = self.results.done if self.results else ()
        self.left = [item for item in items if item.key not in done]
        self.go_on = "with --out FILE a run can go on"
        if args.out:
            self.go_on = "the same command with --resume goes on"
        self.tally = Tally()
        self.rows: list[Assessment] = []  # that a table or a gallery needs and no file has
        self.written = self.without_map = 0
        self.seconds, self.notice = 0.0, ""
        self.warned: set[str] = set()

    def _open_results(self) -> Results:
        """The file of rows, before anything is loaded."""
        args = self.args
        asks: dict[str, Any] = {
            "query": args.query,
            "choices": args.choices,
            "box": args.box,
            "reference": args.reference and path_text(args.reference.absolute()),
            "working folder": None if self.items[0].image.is_absolute() else os.getcwd(),
            "map": bool(args.map),
        }
        results = Results(
            args.out,
            self.work.identity(self.device, asks),
            resume=args.resume,
            retry=args.retry_failed,
            asked={item.key for item in self.items},
        )
        if results.changed:
            pictures = counted(results.changed, "picture")
            tell(f"{pictures} changed since the last run: to be assessed again")
        return results

    def _shows_lines(self) -> bool:
        """Whether each of several pictures gets one line on the terminal."""
        args = self.args
        elsewhere = args.json or args.explain or args.out
        return len(self.items) > 1 and not elsewhere and self.console.results.isatty()

    def finish(self) -> int:
        """Assesses what is left, and says what there is; the exit status. Raises VLMError,
        UserError."""
        self._fill_sidecars()
        if self.results and not self.left:
            self.results.close()
            tell("nothing is left to do: every picture has its row already")
            return self._summary()
        batch = self._batch()
        batch.load()
        try:
            try:
                self._assess(batch)
            finally:  # also of what there is when it ends early
                status = self._summary()
        except (BatchError, VLMError, WriteError) as error:
            tell(f"error: {error}; {self.go_on}")
            return 1
        lacking = len(self.left) - self.written
        if not batch.stopping or not lacking:
            return status
        done = f"{len(self.items) - lacking} of {counted(len(self.items), 'picture')}"
        tell(f"interrupted: {done} were assessed; {self.go_on}")
        return 130

    def _fill_sidecars(self) -> None:
        """Of the pictures that have their rows already."""
        asked = {item.key for item in self.items}
        for row in (self.sidecars and self.results) or ():
            if self.sidecars and row_key(row) in asked:
                self.sidecars.note(Assessment.model_validate(row))

    def _batch(self) -> Runner | RayRunner:
        """What assesses: a single picture in this process, several in one that may hang or
        crash."""
        if len(self.left) > 1 or self.args.cluster:
            return batch_of(self.args, self.work, self.device)
        from agentic_iqa_local.services import Services

        services = Services(self.work.settings, self.device)
        return batch_of(self.args, self.work, self.device, services=services)

    def _assess(self, batch: Runner | RayRunner) -> None:
        """Assesses what is left until it is done or stopped."""
        done, began = len(self.items) - len(self.left), time.monotonic()
        items = resumed(self.left, batch.jobs) if done else self.left
        try:
            told = Progress(len(self.items), done, batch)
            with told as progress, stopped_by_ctrl_c(batch, self.go_on):
                for row in batch.rows(items):
                    self._store(row)
                    self._show(row)
                    progress.count(row.error is not None)
            self.seconds = time.monotonic() - began
        finally:
            if self.results:
                self.results.close()

    def _store(self, row: Assessment) -> None:
        if self.results:
            self.results.append(as_line(row))
        else:
            self.tally.add(row.model_dump(include=Tally.FIELDS))
            if self.args.csv or self.args.parquet or self.args.gallery:
                self.rows.append(row)
        if self.sidecars:
            self.sidecars.note(row)
        self.written += 1
        if row.model and row.model.get("notice"):
            self.notice = row.model["notice"]

    def _show(self, row: Assessment) -> None:
        failed = row.error is not None
        if self._shows_lines():
            line = picture_line(row, shutil.get_terminal_size().columns)
            tell(line, self.console.results)
        else:
            shown = as_line(row), lambda: self._account(row), summary(row)
            self.console.show_answer(self.args, *shown, failed)
        if self.args.map and not failed and not (row.map and row.map.png):
            self.without_map += 1
            undrawn = [line for line in row.warnings if line.startswith("map ")]
            tell(f"error: {row.image}: {row.no_map or '; '.join(undrawn)}")

    def _account(self, row: Assessment) -> str:
        """The account; of several pictures without the note, which the summary tells, and without
        warnings that an earlier one has."""
        if len(self.items) == 1:
            return account(row)
        said = account(row, {*self.warned, f"Note: {self.notice}."})
        self.warned.update(row.warnings)
        return said

    def _summary(self) -> int:
        """The summary and the files of a run; its exit status. Raises WriteError."""
        tally = self.tally
        for row in self.results or ():
            tally.add(row)
        failures = tally.failed
        if tally.total > 1:
            tell("\n" + tally.text(self.written, self.seconds))
            if self.notice:
                tell("\n".join(wrapped(f"Note: {self.notice}.", indent="")))
        if self.results:
            said = f"{counted(tally.total, 'row')} in {self.args.out}"
            if failures:
                again = "add --resume --retry-failed to assess those again"
                said += f", {counted(failures, 'failure')}; {again}"
            tell(one_line(said))
        self._write_tables()
        left_alone = told(self.sidecars)
        return self._status() or left_alone

    def _status(self) -> int:
        """The exit status by what there is."""
        if self.tally.failed or self.without_map:
            return 1
        if not self.args.strict:
            return 0
        if self.tally.gate["fail"]:
            return FAILS
        return UNSURE if self.tally.not_sure or self.tally.gate["unsure"] else 0

    def _write_tables(self) -> None:
        """The files that are made of all rows: a table and a gallery."""
        args, total = self.args, self.tally.total
        rows: Iterable[Assessment] = self.rows
        if self.results:
            rows = map(Assessment.model_validate, self.results)
        if args.gallery or (args.csv and args.parquet):
            rows = list(rows)  # they are gone over more than once
        if args.parquet:
            from agentic_iqa_local.output.columns import write_parquet

            write_parquet(args.parquet, rows)
            tell(one_line(f"{counted(total, 'row')} as a table in {args.parquet}"))
        if args.csv:
            write_whole(args.csv, csv_text(rows), encoding="utf-8-sig")
            tell(one_line(f"{counted(total, 'row')} as a table in {args.csv}"))
        if args.gallery and total:
            name = args.out.name if args.out else "pictures"
            tell(make_gallery(list(rows), args.gallery, name)[0])
