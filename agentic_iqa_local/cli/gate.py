"""The command gate: two versions of a folder of pictures are assessed as a batch, and the paired
rows say whether the new one is worse."""

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from agentic_iqa_local.batch.baseline import Baseline
from agentic_iqa_local.batch.inputs import Item, expand_inputs, references_in, row_key
from agentic_iqa_local.batch.pairs import Look, Pair, look_at, paired, read_pairs
from agentic_iqa_local.batch.results import Results
from agentic_iqa_local.batch.work import AssessWork, as_line
from agentic_iqa_local.cli import options
from agentic_iqa_local.cli.command import stopped_by_ctrl_c
from agentic_iqa_local.cli.console import Console, Progress, tell, watch
from agentic_iqa_local.cli.options import UsageError
from agentic_iqa_local.cli.outputs import check_apart, check_outputs, output_file
from agentic_iqa_local.config import Settings
from agentic_iqa_local.errors import counted, one_line
from agentic_iqa_local.files import PAGE, PROGRAM, path_text, write_whole
from agentic_iqa_local.images.files import ImageError
from agentic_iqa_local.iqa_tools import ToolError
from agentic_iqa_local.judgement import preference, versions
from agentic_iqa_local.judgement.worse import ERROR_RATE, MARGIN, Rule, decide
from agentic_iqa_local.output import version_report
from agentic_iqa_local.result import Assessment, file_sha256
from agentic_iqa_local.services import tools_of

FAILED, UNDECIDED, WORSE = 1, 3, 4
WRITTEN = {  # files of the verdict: their suffixes, and what one bears that may be replaced
    "page": ((".html", ".htm"), PAGE),
    "junit": ((".xml",), version_report.JUNIT),
    "markdown": ((".md",), version_report.MARKDOWN),
}


def gate(args: argparse.Namespace) -> int:
    """Says whether the new pictures are worse; the exit status. Raises UserError."""
    rule = Rule(args.margin or MARGIN, args.worse_share, args.error_rate or ERROR_RATE)
    args.error_rate = None  # which is no setting of an assessment here
    args.baseline = Path(args.baseline) if args.baseline else None
    _check_named(args)
    baseline = Baseline(args.baseline) if args.baseline else None
    pairs = _pairs(args, baseline)
    settings = options.chosen_settings(args)
    work = AssessWork(settings, args.pipeline or (baseline and baseline.pipeline) or "letters")
    _check_files(args, pairs)
    options.check_set_up(settings, work.pipeline)
    device = options.device_of(args)
    if baseline:
        reference = any(pair.reference for pair in pairs)
        baseline.check(work.identity(device, {}), reference)
    with Console() as console:
        tell(version_report.before(rule, len(pairs)))
        run = _GateRun(args, rule, work, device, pairs, baseline)
        report = run.report()
        if report is None:
            return 130
        crops = _shown(report, run, settings)
        _write(args, report, crops)
        return _show(args, console, report)


def _check_named(args: argparse.Namespace) -> None:
    """Raises UsageError unless the folders, the baseline and the manifest are those of one way to
    name pairs."""
    ways = f"{PROGRAM} gate OLD NEW, gate NEW --baseline FILE, or gate --manifest FILE"
    if args.manifest and args.baseline:
        raise UsageError("expected --manifest or --baseline, got both", ways)
    expected = 0 if args.manifest else 1 if args.baseline else 2
    if len(args.folders) != expected:
        wrong = f"expected {counted(expected, 'folder')}, got {len(args.folders)}"
        raise UsageError(wrong, ways)
    for folder in args.folders:
        if not folder.is_dir():
            compare = f"of two pictures {PROGRAM} compare says which is better"
            raise UsageError(f"{folder}: expected a folder", compare)
    if args.reference and not args.reference.is_dir():
        raise UsageError(f"--reference {args.reference}: expected a folder", "name one")


def _pairs(args: argparse.Namespace, baseline: Baseline | None) -> list[Pair]:
    """The pairs that the command line names, with their references. Raises UserError."""
    if args.manifest:
        pairs = read_pairs(args.manifest)
        if len({pair.reference is None for pair in pairs}) > 1:
            wrong = f"{args.manifest}: expected a reference in every line or in none"
            raise UsageError(wrong, "give them to two gates: q with and without one differ")
        return pairs
    *old, new = [expand_inputs([str(folder)]) for folder in args.folders]
    pairs = baseline.pairs(new) if baseline else paired(old[0], new)
    return _with_originals(pairs, args.reference) if args.reference else pairs


def _with_originals(pairs: list[Pair], folder: Path) -> list[Pair]:
    """The pairs with the reference of each new picture. Raises ImageError."""
    with_new = [pair for pair in pairs if pair.new]
    originals = references_in(folder, [pair.new for pair in with_new if pair.new])
    named = dict(zip(with_new, originals, strict=True))
    return [replace(pair, reference=named.get(pair)) for pair in pairs]


def _check_files(args: argparse.Namespace, pairs: Sequence[Pair]) -> None:
    """Gives the options for files the places that they lead to. Raises UsageError."""
    inputs = [file for pair in pairs for file in (pair.old, pair.new, pair.reference)]
    inputs += [args.baseline, args.manifest, args.config]
    check_outputs(args, inputs)
    outputs = [("--out", args.out)] if args.out else []
    for name, (suffixes, mark) in WRITTEN.items():
        file = getattr(args, name)
        if file:
            place = output_file(f"--{name}", file, *suffixes, mark=mark)
            setattr(args, name, place)
            outputs.append((f"--{name}", place))
    check_apart(outputs, inputs)


@dataclass
class _GateRun:
    """The pairs on their way to a report."""

    args: argparse.Namespace
    rule: Rule
    work: AssessWork
    device: str
    pairs: list[Pair]
    baseline: Baseline | None

    def report(self) -> versions.VersionReport | None:
        """What was found; None if Ctrl-C ended the batch before all rows were made."""
        looks = self._looks()
        items: dict[str, Item] = {}
        for pair, look in zip(self.pairs, looks, strict=True):
            if not look.problem and not look.same:
                items |= {item.key: item for item in pair.items if item.image not in self.stored}
        rows = self._rows(list(items.values()))
        return None if rows is None else self._reported(*self._compared(looks, rows), rows)

    def _compared(
        self, looks: Sequence[Look], rows: Mapping[str, Assessment]
    ) -> tuple[list[versions.PairFound], list[str]]:
        """What was found of the pairs that could be compared, and why the others could not."""
        settings, pipeline = self.work.settings, self.work.pipeline
        fit = preference.fit_for(settings, pipeline, reference=self._has_reference)
        problems, found = [], []
        for pair, look, scene in zip(self.pairs, looks, self._scenes(looks), strict=True):
            if look.problem:
                problems.append(look.problem)
                continue
            one = _found(pair, look, scene, rows, self.stored, fit)
            if isinstance(one, str):
                problems.append(one)
            else:
                found.append(one)
        return found, [one_line(problem) for problem in problems]

    @property
    def stored(self) -> Mapping[Path, Assessment]:
        """The baseline's rows by the old picture's path."""
        return self.baseline.rows if self.baseline else {}

    @property
    def _has_reference(self) -> bool:
        return any(pair.reference for pair in self.pairs)

    def _looks(self) -> list[Look]:
        looks = []
        limits = self.work.settings.images
        for place in watch(str(number) for number in range(len(self.pairs))):
            pair = self.pairs[int(place)]
            row = self.stored.get(pair.old) if pair.old else None
            looks.append(look_at(pair, limits, row and (row.sha256 or "")))
        return looks

    def _scenes(self, looks: Sequence[Look]) -> list[int]:
        """The number of each pair's scene: as the manifest says, else by perceptual hashes."""
        named = [pair.scene for pair in self.pairs]
        return versions.scenes([look.fingerprint for look in looks], named)

    def _rows(self, items: list[Item]) -> dict[str, Assessment] | None:
        """The row of each item by its key; None if the batch was stopped before all were made."""
        made = dict[str, Assessment]()
        results = self._open_results(items) if self.args.out else None
        for row in results or ():
            made[row_key(row)] = Assessment.model_validate(row)
        go_on = (
            "the same command with --resume goes on"
            if results
            else "the same command begins anew; with --out FILE it could go on"
        )
        try:
            self._assess([item for item in items if item.key not in made], made, results, go_on)
        finally:
            if results:
                results.close()
        lacking = sum(item.key not in made for item in items)
        if not lacking:
            return made
        done = f"{len(items) - lacking} of {counted(len(items), 'picture')}"
        tell(f"interrupted: {done} have their rows, and nothing was decided; {go_on}")
        return None

    def _assess(
        self,
        left: list[Item],
        made: dict[str, Assessment],
        results: Results | None,
        go_on: str,
    ) -> None:
        """Puts the rows of what is left into `made`, and into the file of results."""
        if not left:
            return
        batch = options.batch_of(self.args, self.work, self.device)
        with Progress(len(left), batch=batch) as progress, stopped_by_ctrl_c(batch, go_on):
            for row in batch.rows(left):
                if results:
                    results.append(as_line(row))
                made[row_key(vars(row))] = row
                progress.count(row.error is not None)

    def _open_results(self, items: Sequence[Item]) -> Results:
        """The file of rows, before anything is loaded."""
        relative = any(not item.image.is_absolute() for item in items)
        asks = {"working folder": os.getcwd() if relative else None}
        return Results(
            self.args.out,
            self.work.identity(self.device, asks),
            resume=self.args.resume,
            retry=self.args.retry_failed,
            asked={item.key for item in items},
        )

    def _reported(
        self,
        found: list[versions.PairFound],
        problems: list[str],
        rows: Mapping[str, Assessment],
    ) -> versions.VersionReport:
        decision = None
        if found:
            losses = [pair.loss for pair in found]
            decision = decide(losses, [pair.scene for pair in found], self.rule)
        args, rule = self.args, self.rule
        old = args.baseline or args.manifest or args.folders[0]
        return versions.VersionReport(
            old=path_text(old),
            new=path_text(args.manifest or args.folders[-1]),
            reference=self._has_reference,
            margin=rule.margin,
            worse_share=rule.share,
            error_rate=rule.error_rate,
            needed=rule.needed(),
            decision=decision,
            pairs=versions.in_order(found),
            problems=problems,
            model=next((row.model for row in rows.values() if row.model), None),
        )


def _found(
    pair: Pair,
    look: Look,
    scene: int,
    rows: Mapping[str, Assessment],
    stored: Mapping[Path, Assessment],
    fit: preference.PairFit | None,
) -> versions.PairFound | str:
    """What was found of a pair, or why it could not be compared."""
    assert pair.old is not None
    assert pair.new is not None
    if look.same:
        old, new = path_text(pair.old), path_text(pair.new)
        return versions.PairFound(name=pair.name, old=old, new=new, scene=scene, same=True)
    was, now = [stored.get(item.image) or rows[item.key] for item in pair.items]
    for row in (was, now):
        if row.error or row.q is None:
            return row.error or f"{row.image}: it got no q"
    if pair.old in stored and versions.extent(was) != versions.extent(now):
        return f"{now.image}: expected the size that the old picture of the baseline had"
    return versions.compared(pair.name, scene, was, now, fit)


def _shown(
    report: versions.VersionReport, run: _GateRun, settings: Settings
) -> list[version_report.Crops]:
    """The pictures that lost most, with what changed, and the crops in which it shows."""
    stored = run.stored
    by_new = {path_text(pair.new): pair for pair in run.pairs if pair.new}
    tools, limits = tools_of(settings), settings.images
    shown, gone = [], 0
    for found in report.worst[: version_report.NAMED]:
        pair = by_new[found.new]
        row = stored.get(pair.old) if pair.old else None
        if row and file_sha256(pair.old or "") != row.sha256:
            gone += 1
            continue
        try:
            shown.append(version_report.crops(found, pair.reference, tools, limits))
        except (ImageError, ToolError) as error:
            tell(f"what changed is not shown: {error}")
    if gone:
        pictures = counted(gone, "old picture")
        tell(f"what changed is not shown of {pictures} of the baseline: not there as it was")
    return shown


def _write(
    args: argparse.Namespace,
    report: versions.VersionReport,
    crops: Sequence[version_report.Crops],
) -> None:
    if args.page:
        write_whole(args.page, version_report.page(report, crops))
    if args.junit:
        write_whole(args.junit, version_report.junit(report))
    if args.markdown:
        write_whole(args.markdown, version_report.markdown(report))
    for name in WRITTEN:
        if getattr(args, name):
            tell(one_line(f"the verdict is in {getattr(args, name)}"))


def _show(args: argparse.Namespace, console: Console, report: versions.VersionReport) -> int:
    """Prints the verdict, in a pipe as JSON and beside it as text; the exit status."""
    as_json = args.json or not console.results.isatty()
    if as_json:
        tell(one_line(report.model_dump_json()), console.results)
    tell(version_report.text(report), None if as_json else console.results)
    verdict = report.decision and report.decision.verdict
    if verdict == "worse":
        return WORSE
    if report.problems or verdict is None:
        return FAILED
    return UNDECIDED if verdict == "undecided" else 0
