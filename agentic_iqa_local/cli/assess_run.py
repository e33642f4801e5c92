"""A run of the command assess: its items go through a batch, their rows to a file, the pipe or the screen."""

import argparse
import os
import shlex
import sys
from collections.abc import Iterable
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any

from agentic_iqa_local.cli.assess_maps import about_map, map_requests
from agentic_iqa_local.cli.assess_screen import Screen
from agentic_iqa_local.cli.cluster_options import chosen_batch
from agentic_iqa_local.cli.console import Console, show_answer
from agentic_iqa_local.cli.stopping import stopped_by_ctrl_c
from agentic_iqa_local.errors import one_line

if TYPE_CHECKING:
    from agentic_iqa_local.batch.inputs import Item
    from agentic_iqa_local.batch.ray import Place, RayRunner
    from agentic_iqa_local.batch.results import Results
    from agentic_iqa_local.batch.runner import Runner
    from agentic_iqa_local.config import Settings
    from agentic_iqa_local.result import Assessment

    AnyBatch = Runner | RayRunner

# The rest is imported where it is needed, so that --help and wrong usage are answered at once.

NAMED = 5  # pictures in a message
UNSURE, FAILS = 3, 4  # exit statuses of --strict
LONGEST_COMMAND = 2000  # characters, to be repeated in a message


class AssessRun:
    """The items that a command line names, and what became of them so far. Raises RowsError for an --out that
    cannot be gone on with. `place`: where the workers of a cluster are."""

    def __init__(
        self,
        args: argparse.Namespace,
        settings: "Settings",
        items: "list[Item]",
        device: str,
        console: Console,
        place: "Place | None" = None,
    ):
        from agentic_iqa_local.output.tally import Tally

        self.args, self.settings, self.items, self.device, self.console = (
            args,
            settings,
            items,
            device,
            console,
        )
        from agentic_iqa_local.batch.work import Assessing

        self.place = place
        self.maps = map_requests(args, items)
        self.work = Assessing(settings, args.pipeline, args.max_replan_iterations, self.maps)
        self.without_map = 0
        self.results = self._open_results()
        done = self.results.done if self.results else ()
        self.left = [item for item in items if item.key not in done] if done else items
        self.written = 0
        self.tally = Tally()
        self.kept: list[dict[str, Any]] = []  # for table, gallery and sorting, where no file has the rows
        self.screen = Screen(args, [str(item.image) for item in items], console)

    def _open_results(self) -> "Results | None":
        """The file of rows, before anything is loaded; None without --out."""
        from agentic_iqa_local.batch.results import Results

        args = self.args
        if args.out is None:
            return None
        paths = [path for item in self.items for path in (item.image, item.reference) if path]
        depends_on = self.work.identity(
            self.device,
            query=args.query,
            choices=args.choices,
            reference=args.reference,
            relative=not all(path.is_absolute() for path in paths),
            maps=None if args.map is None else [args.map_tiles, args.map_seconds],
        )
        asked = {item.key for item in self.items} if args.resume else ()
        results = Results(args.out, depends_on, resume=args.resume, retry=args.retry_failed, asked=asked)
        if results.changed:
            self.console.say(one_line(f"changed since, assessed again: {_named(results.changed)}"))
        return results

    @cached_property
    def go_on(self) -> str:
        """How to go on with this run."""
        return (
            f"go on with: {_command_to_go_on()}"
            if self.results
            else "with --out FILE a run can be gone on with"
        )

    def finish(self) -> int:
        """Assesses what is left, and says what there is; the exit status. Raises VLMError for a model that
        cannot be loaded."""
        from agentic_iqa_local.files import WriteError

        results, console = self.results, self.console
        if not self.left:
            if results:
                results.close()
            return self._summary()
        batch = self._loaded_batch()
        error = self._assess(batch)
        status = None if error is None else self._said(error)
        try:
            finished = self._summary()
            status = finished if status is None else status
        except WriteError as table_error:
            console.say(f"error: {table_error}")
            status = status or 1
        if batch.stopping and self.written < len(self.left):
            there = len(self.items) - len(self.left) + self.written
            console.say(f"interrupted: {there} of {len(self.items)} pictures have their rows; {self.go_on}")
            status = 130
        if batch.unfinished:  # a thread that does not return would keep the process
            sys.stderr.flush()
            os._exit(status)
        return status

    def _loaded_batch(self) -> "AnyBatch":
        """What assesses the items: several of them in a process of its own, which may hang or crash."""
        from agentic_iqa_local.batch.runner import Runner
        from agentic_iqa_local.services import Services

        window: dict[str, Any] = {"jobs": self.args.jobs, "timeout": self.args.timeout}
        try:
            if len(self.left) == 1 and self.place is None:
                services = Services(self.settings, self.device)
                batch = Runner(self.work, self.device, services=services, **window)
            else:
                batch = chosen_batch(self.work, self.device, self.place, **window)
            if any(_can_be_opened(item, self.settings) for item in self.left):
                batch.load()
        except BaseException:  # a model that cannot be loaded
            if self.results:
                self.results.close()
            raise
        return batch

    def _assess(self, batch: "AnyBatch") -> Exception | None:
        """Assesses what is left until it is done, a stop, or an error after which the batch cannot go on."""
        from agentic_iqa_local.batch.runner import BatchError, resumed
        from agentic_iqa_local.files import WriteError
        from agentic_iqa_local.vlm_client import VLMError

        results, console = self.results, self.console
        console.begin(len(self.items), len(self.items) - len(self.left))
        try:
            with stopped_by_ctrl_c(batch, self.go_on):
                is_resumed = len(self.left) < len(self.items)
                for row in batch.rows(resumed(self.left, batch.jobs) if is_resumed else self.left):
                    self._take(row, batch)
                if batch.by_node:
                    console.say(f"rows by node: {batch.by_node}")
            if results:
                results.close()
        except (BatchError, VLMError, WriteError, OSError) as error:
            return error
        finally:
            console.end()
            if results:
                with suppress(WriteError):  # said already
                    results.close()
        return None

    def _take(self, row: "Assessment", batch: "AnyBatch") -> None:
        from agentic_iqa_local.batch.work import as_line

        if self.results:
            self.results.append(as_line(row))
            if self.args.json or self.args.explain:  # what is told of a row holds after a power cut too
                self.results.sync()
        else:
            fields = row.to_dict()
            self.tally.add(fields)
            if self.args.csv or self.args.sort or self.args.gallery:
                self.kept.append(fields)
        self.written += 1
        self.console.count(row.error is not None, batch.by_node)
        if self.screen.lines:
            self.screen.show(row)
        else:
            show(self.args, row, self.console)
        if self.maps and (reason := about_map(row)):
            self.without_map += 1
            self.console.say(f"error: {row.image}: {reason}")

    def _said(self, error: Exception) -> int:
        """Says why the batch ended; the exit status."""
        if not isinstance(error, OSError):
            self.console.say(f"error: {error}; {self.go_on}")
            return 1
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.console.results.fileno())
        if not isinstance(error, BrokenPipeError):
            self.console.say(f"error: stdout: a row could not be written ({error.strerror}); {self.go_on}")
            return 1
        if (
            self.results
        ):  # without a file there is nothing to go on with: the reader has gone, as `| head` does
            self.console.say(f"error: nobody reads stdout any more; {self.go_on}")
            return 1
        return 0

    def _rows(self) -> Iterable[dict[str, Any]]:
        return self.results.rows() if self.results else self.kept

    def _summary(self) -> int:
        """The summary and the table of a run; its exit status."""
        args, console, tally = self.args, self.console, self.tally
        for row in self.results.rows() if self.results else ():
            tally.add(row)
        if args.sort:
            self.screen.show_sorted(self._rows())
        if tally.total > 1:
            seconds = console.seconds if self.written else 0
            console.say("\n" + tally.text(self.written, seconds, ranked=not self.screen.lines))
        if self.results:
            rows = f"{tally.total} rows in {args.out}"
            if tally.failed:
                rows += f", {len(tally.failed)} of them failures"
                rows += "; add --resume --retry-failed to assess those again"
            if gone := self.results.gone:
                rows += f"; not counted, because their pictures are no longer there: {_named(gone)}"
            console.say(one_line(rows))
        if args.csv:
            from agentic_iqa_local.files import write_whole
            from agentic_iqa_local.output.tables import csv_text

            write_whole(args.csv, csv_text(self._rows), encoding="utf-8-sig")
            console.say(one_line(f"{tally.total} rows as a table in {args.csv}"))
        if args.gallery and not self._write_gallery():
            return 130
        if tally.failed or self.without_map:
            return 1
        unsure = tally.not_sure or tally.gate["unsure"]
        return 0 if not args.strict else FAILS if tally.gate["fail"] else UNSURE if unsure else 0

    def _write_gallery(self) -> bool:
        """Writes the gallery of the rows there are; whether nobody interrupted that."""
        from agentic_iqa_local.cli.gallery import written
        from agentic_iqa_local.files import command

        args, console = self.args, self.console
        if not (rows := list(self._rows())):
            console.say("no gallery: there are no rows")
            return True
        try:
            message, _ = written(rows, args.gallery, args.out.name if args.out else "pictures")
        except KeyboardInterrupt:
            files = shlex.join([str(args.out), "--out", str(args.gallery)])
            again = f"; make it with: {command('gallery')} {files}" if args.out else ""
            console.say(one_line(f"interrupted: no gallery{again}"))
            return False
        console.say(message)
        return True


def _named(pictures: list[str]) -> str:
    """Pictures in a message: their number, and the names of the first."""
    more = ", ..." if len(pictures) > NAMED else ""
    return f"{len(pictures)} ({', '.join(pictures[:NAMED])}{more})"


def _command_to_go_on() -> str:
    """This command line with --resume."""
    words = [word for word in sys.orig_argv if word not in ("--resume", "--retry-failed")]
    command = shlex.join([*words, "--resume"])
    typed = len(command) <= LONGEST_COMMAND and command == one_line(command)
    return command if typed else "the same command with --resume"


def _can_be_opened(item: "Item", settings: "Settings") -> bool:
    """Whether an item's pictures can be opened: a model is loaded only where there is something to show
    it."""
    from agentic_iqa_local.images.reading import ImageError
    from agentic_iqa_local.nodes.workbench import load_pictures

    try:
        load_pictures(settings.images, item.image, item.reference)
    except ImageError:
        return False
    return True


def show(args: argparse.Namespace, row: "Assessment", console: Console) -> None:
    """A row on the screen or in the pipe."""
    from agentic_iqa_local.batch.work import as_line
    from agentic_iqa_local.output.report import account, summary

    failure = f"error: {row.error}" if row.error else None
    show_answer(args, console, lambda: as_line(row), lambda: account(row), lambda: summary(row), failure)
