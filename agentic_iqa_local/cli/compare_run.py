"""A run of `assess --compare` or `assess --best-of`: the pictures are assessed as a batch, then compared."""

import argparse
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from agentic_iqa_local.cli.console import Console, show_answer
from agentic_iqa_local.cli.stopping import stopped_by_ctrl_c
from agentic_iqa_local.errors import UserError, one_line

if TYPE_CHECKING:
    from agentic_iqa_local.batch.inputs import Item
    from agentic_iqa_local.config import Settings
    from agentic_iqa_local.judgement.comparison import Comparison, Group, Judge, Ranking
    from agentic_iqa_local.result import Assessment
    from agentic_iqa_local.services import Services

    Result = Comparison | Ranking | Group | Assessment

ANEW = "compare anew"


class CompareError(UserError):
    """Pictures that cannot be compared."""


def check_number(args: argparse.Namespace, items: "Sequence[Item]") -> None:
    """Raises CompareError for too few pictures to compare, or too many."""
    from agentic_iqa_local.judgement.ordering import MOST_PICTURES

    if args.compare and len(items) < 2:
        twice = len(args.compare) > 1
        raise CompareError(
            f"--compare: expected two pictures or more, got {'the same one twice' if twice else 'one'}",
            "name another to compare it with",
        )
    if args.compare and len(items) > MOST_PICTURES:
        raise CompareError(
            f"--compare: expected at most {MOST_PICTURES} pictures, got {len(items)}", "divide them"
        )


class CompareRun:
    """The pictures that a command line names, on their way to a comparison, an order, or groups."""

    def __init__(
        self,
        args: argparse.Namespace,
        settings: "Settings",
        items: "list[Item]",
        device: str,
        console: Console,
    ):
        self.args, self.settings, self.items, self.device, self.console = (
            args,
            settings,
            items,
            device,
            console,
        )
        self._services: Services | None = None

    def finish(self) -> int:
        """Compares the pictures and shows what comes of it; the exit status. Raises VLMError for a model that
        cannot be loaded."""
        from agentic_iqa_local.batch.runner import BatchError
        from agentic_iqa_local.vlm_client import ModelLost

        try:
            rows = self._rows()
        except (BatchError, ModelLost) as error:
            self.console.say(f"error: {error}; {ANEW}")
            return 1
        if rows is None:
            return 130
        failed = False
        results = []
        for result in self._results(rows):
            results.append(result)
            failed |= _failed(result)
            self._show(result)
        self._write(results)
        return int(failed)

    def _rows(self) -> "list[Assessment] | None":
        """The pictures' assessments in their order; None after Ctrl-C."""
        from agentic_iqa_local.batch.runner import Runner
        from agentic_iqa_local.batch.work import Assessing, key_of

        args, console = self.args, self.console
        work = Assessing(self.settings, args.pipeline, args.max_replan_iterations)
        batch = Runner(work, self.device, jobs=args.jobs, timeout=args.timeout)
        rows: dict[str, Assessment] = {}
        console.begin(len(self.items), 0)
        try:
            with stopped_by_ctrl_c(batch, ANEW):
                for row in batch.rows(self.items):
                    rows[key_of(row)] = row
                    console.count(row.error is not None)
        finally:
            console.end()
        if batch.stopping and len(rows) < len(self.items):
            console.say(
                f"interrupted: {len(rows)} of {len(self.items)} pictures were assessed, none was compared;"
                f" {ANEW}"
            )
            return None
        return [rows[item.key] for item in self.items]

    def _results(self, rows: "list[Assessment]") -> "Iterator[Result]":
        """What comes of the assessed pictures: a comparison, an order, or groups and what failed."""
        judge, files = self._judge(), [item.image for item in self.items]
        try:
            if self.args.best_of:
                rated = judge.candidates(rows, files)
                yield from (row for row in rows if row.error is not None)
                yield from judge.groups(rated)
            else:
                yield (judge.compared if len(rows) == 2 else judge.ranked)(rows, files)
        finally:
            if self._services:
                self._services.close()

    def _judge(self) -> "Judge":
        """What compares; the model is loaded for pairwise reads when the first is made."""
        from agentic_iqa_local.judgement.comparison import Judge
        from agentic_iqa_local.judgement.preference import PairwiseRead, read_pair
        from agentic_iqa_local.nodes.summarizer import ROLE
        from agentic_iqa_local.services import Services

        def read(first, second) -> PairwiseRead:
            self._services = self._services or Services(self.settings, self.device)
            return read_pair(self._services.client(ROLE), first, second)

        wanted = self.args.pairwise or "auto"
        return Judge(
            self.settings,
            self.args.pipeline,
            self.args.reference is not None,
            read=None if wanted == "never" else read,
            always=wanted == "always",
        )

    def _show(self, result: "Result") -> None:
        """On the screen or in the pipe."""
        from agentic_iqa_local.output.comparison_report import explain, headline_of

        def headline() -> str:
            return headline_of(result)

        failure = headline() if _failed(result) else None
        show_answer(
            self.args, self.console, lambda: _line(result), lambda: explain(result), headline, failure
        )

    def _write(self, results: "list[Result]") -> None:
        from agentic_iqa_local.files import write_whole

        if self.args.out:
            write_whole(self.args.out, "\n".join(map(_line, results)))
            self.console.say(one_line(f"{len(results)} rows in {self.args.out}"))
        if self.args.csv:
            from agentic_iqa_local.output.comparison_table import comparison_csv

            write_whole(self.args.csv, comparison_csv(results), encoding="utf-8-sig")
            self.console.say(one_line(f"the pictures as a table in {self.args.csv}"))


def _line(result: "Result") -> str:
    import json

    return one_line(json.dumps(result.to_dict(), ensure_ascii=False))


def _failed(result: "Result") -> bool:
    """Whether some picture in it failed."""
    return bool(getattr(result, "error", None) or getattr(result, "failed", None))
