"""A run of the command assess: its items go through a batch, their rows to a file, the pipe or the screen."""

import argparse
import os
import shlex
import shutil
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentic_iqa_local.batch.inputs import Item
from agentic_iqa_local.batch.ray import RayRunner
from agentic_iqa_local.batch.results import Results
from agentic_iqa_local.batch.runner import BatchError, Runner, resumed
from agentic_iqa_local.batch.work import Assessing, as_line
from agentic_iqa_local.cli.command import stopped_by_ctrl_c
from agentic_iqa_local.cli.console import Console, Progress, tell
from agentic_iqa_local.cli.look import written
from agentic_iqa_local.cli.options import UsageError, batch_of
from agentic_iqa_local.cli.outputs import answer_files, check_apart, output_file
from agentic_iqa_local.config import Settings
from agentic_iqa_local.errors import one_line
from agentic_iqa_local.files import PNG, WriteError, path_text, write_whole
from agentic_iqa_local.output.picture_lines import PictureLines
from agentic_iqa_local.output.report import account, summary
from agentic_iqa_local.output.tables import csv_text
from agentic_iqa_local.output.tally import Tally
from agentic_iqa_local.output.tracking import tracked
from agentic_iqa_local.output.words import wrapped
from agentic_iqa_local.result import Assessment
from agentic_iqa_local.vlm_client import VLMError

if TYPE_CHECKING:
    from agentic_iqa_local.judgement.quality_map import MapRequest

UNSURE, FAILS = 3, 4  # exit statuses of --strict


class AssessRun:
    """The items that a command line names, and what became of them so far. Raises RowsError, UsageError."""

    def __init__(
        self,
        args: argparse.Namespace,
        settings: Settings,
        items: list[Item],
        device: str,
        console: Console,
    ):
        self.args, self.items, self.device, self.console = args, items, device, console
        maps = map_requests(args, items) if args.map else {}
        drawn = [("--map", request.png) for request in maps.values() if request.png]
        pictures = (path for item in items for path in (item.image, item.reference))
        check_apart(
            [*answer_files(args), *drawn], [*pictures, args.manifest, args.config, args.fit]
        )
        self.work = Assessing(settings, args.pipeline or "agent", maps)
        self.results = self._open_results() if args.out else None
        done = self.results.done if self.results else ()
        self.left = [item for item in items if item.key not in done]
        self.go_on = (
            "the same command with --resume goes on"
            if args.out
            else "with --out FILE a run can go on"
        )
        self.tally, self.rows = (
            Tally(),
            list[Assessment](),
        )  # rows that a table needs and no file has
        self.written, self.without_map, self.seconds, self.notice = 0, 0, 0.0, ""
        self.lines = None
        if (
            console.results.isatty()
            and len(items) > 1
            and not (args.json or args.explain or args.out)
        ):
            verdict = args.at_least is not None or args.abstain_wider_than is not None
            names, columns = [str(item.image) for item in items], shutil.get_terminal_size().columns
            self.lines = PictureLines(
                names, columns, damage=self.work.pipeline == "agent", verdict=verdict
            )

    def _open_results(self) -> Results:
        """The file of rows, before anything is loaded."""
        args = self.args
        asks: dict[str, Any] = {"query": args.query, "choices": args.choices, "box": args.box}
        asks["reference"] = args.reference and path_text(args.reference.absolute())
        paths = [path for item in self.items for path in (item.image, item.reference) if path]
        asks["working folder"] = None if all(path.is_absolute() for path in paths) else os.getcwd()
        asks["map"] = [args.map_tiles] if args.map else None
        depends_on = self.work.identity(self.device, asks)
        asked = {item.key for item in self.items} if args.resume else ()
        results = Results(
            args.out, depends_on, resume=args.resume, retry=args.retry_failed, asked=asked
        )
        if results.changed:
            tell(f"{results.changed} pictures changed since and are assessed again")
        return results

    def finish(self) -> int:
        """Assesses what is left, and says what there is; the exit status. Raises VLMError, UserError."""
        more: dict[str, Any] = {}
        if self.results and not self.left:
            self.results.close()
            tell("nothing is left to do: every picture has its row already")
            return self._summary()
        if (
            len(self.left) == 1 and not self.args.cluster
        ):  # several in a process of its own, which may hang or crash
            from agentic_iqa_local.services import Services

            more["services"] = Services(self.work.settings, self.device)
        with tracked(
            self.args.track, str(self.args.out or "pictures"), vars(self.args)
        ) as self.log:
            batch = batch_of(self.args, self.work, self.device, **more)
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
        if not (batch.stopping and lacking):
            return status
        tell(
            f"interrupted: {len(self.items) - lacking} of {len(self.items)} pictures have their rows; {self.go_on}"
        )
        return 130

    def _assess(self, batch: Runner | RayRunner) -> None:
        """Assesses what is left until it is done or stopped."""
        done, began = len(self.items) - len(self.left), time.monotonic()
        try:
            with Progress(len(self.items), done) as progress, stopped_by_ctrl_c(batch, self.go_on):
                for row in batch.rows(resumed(self.left, batch.jobs) if done else self.left):
                    self._take(row)
                    progress.count(row.error is not None)
            self.seconds = time.monotonic() - began
        finally:
            if self.results:
                self.results.close()

    def _take(self, row: Assessment) -> None:
        line, failed = "" if self.lines else as_line(row), row.error is not None
        if self.results:
            self.results.append(line)
        else:
            self.tally.add(row.model_dump(include=Tally.FIELDS))
            self.rows += [row] if self.args.csv or self.args.gallery else []
        self.written += 1
        self.notice = (row.model or {}).get("notice") or self.notice
        self.log({"q": row.q, "seconds": row.seconds, "failed": failed}, self.written)
        if self.lines:
            if self.written == 1:
                tell(self.lines.head(rated=failed or row.level is not None), self.console.results)
            tell(self.lines.line(row), self.console.results)
        else:
            self.console.show_answer(self.args, line, lambda: account(row), summary(row), failed)
        if self.args.map and not failed and not (row.map and row.map.png):
            self.without_map += 1
            tell(
                f"error: {row.image}: {row.no_map or (row.map and row.map.not_drawn) or 'map: none was made'}"
            )

    def _summary(self) -> int:
        """The summary and the files of a run; its exit status. Raises WriteError."""
        args, tally, results = self.args, self.tally, self.results
        for row in results or ():
            tally.add(row)
        if self.written:
            self.log({"mean q": tally.mean, "pictures": tally.total, "failures": len(tally.failed)})
        if tally.total > 1:
            tell(
                "\n"
                + tally.text(
                    self.written, self.seconds, ranked=self.lines is None, of=len(self.items)
                )
            )
            if self.notice:
                tell("\n".join(wrapped(f"Note: {self.notice}.", indent="")))
        if results:
            again = "; add --resume --retry-failed to assess those again"
            failed = f", {len(tally.failed)} of them failures{again}" if tally.failed else ""
            tell(one_line(f"{tally.total} rows in {args.out}{failed}"))
        read = map(Assessment.model_validate, results) if results else self.rows
        rows: Any = [*read] if args.gallery else read  # a gallery goes over them more than once
        if args.csv:
            write_whole(args.csv, csv_text(rows), encoding="utf-8-sig")
            tell(one_line(f"{tally.total} rows as a table in {args.csv}"))
        if args.gallery and tally.total:
            tell(written(rows, args.gallery, args.out.name if args.out else "pictures")[0])
        if tally.failed or self.without_map:
            return 1
        unsure = tally.not_sure or tally.gate["unsure"]
        return 0 if not args.strict else FAILS if tally.gate["fail"] else UNSURE if unsure else 0


def map_requests(args: argparse.Namespace, items: Sequence[Item]) -> "dict[str, MapRequest]":
    """What is asked of each item's map, by the item's key. Raises UsageError."""
    from agentic_iqa_local.judgement.quality_map import MapRequest

    place, files = args.map, [] if args.map.is_dir() else [args.map]
    if not files:
        times = Counter(item.image.stem.lower() for item in items)
        for n, stem in enumerate((item.image.stem for item in items), 1):
            files.append(
                place / (f"{stem}.{n}.map.png" if times[stem.lower()] > 1 else f"{stem}.map.png")
            )
    elif len(items) != 1:
        expected = f"expected a folder {place} for the maps of {len(items)} pictures, there is none"
        raise UsageError(
            f"--map {place}: {expected}", f"make it first: mkdir -p {shlex.quote(str(place))}"
        )
    pngs: list[Path] = [output_file("--map", file, ".png", mark=PNG) for file in files]
    tiles = {"max_tiles": args.map_tiles} if args.map_tiles else {}
    return {item.key: MapRequest(png=png, **tiles) for item, png in zip(items, pngs, strict=True)}
