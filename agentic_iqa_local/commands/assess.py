"""Assesses the quality of images with a local vision-language model and IQA tools. Nothing leaves this machine.

examples:
  python scripts/assess.py --image photo.jpg --explain
  python scripts/assess.py --image photo.jpg --reference original.png --gpu 0
  python scripts/assess.py --image scans/ --pipeline letters --out results.jsonl --resume
  python scripts/assess.py --manifest images.csv --out results.jsonl --resume --retry-failed
  python scripts/assess.py --image photo.jpg --query "Which distortion dominates?" --choices Blur Noise Compression None
  python scripts/assess.py --config qwen2_5_vl_7b --gpu 0 --image photo.jpg
  python scripts/assess.py --list-tools

On a terminal the answer is text; piped, or with --json, it is one JSON object a line on stdout and nothing else there. With --out
the objects go to a file instead, each synced to disk as it is finished: after a kill, Ctrl-C or a full disk the same command with
--resume goes on.
Exit status: 0 all assessed, 1 some image failed (its row has "error") or the batch could not go on, 2 wrong usage or a model that
cannot run, 130 interrupted (the rows so far are written).
"""

import argparse
import logging
import os
import shlex
import signal
import sys
import time
from pathlib import Path
from typing import TextIO

from agentic_iqa_local.commands import chosen_settings

SECONDS_BETWEEN_LINES = 30  # of progress, where stderr is no terminal
MOST_JOBS = 256
LONGEST_COMMAND = 2000  # characters, to be repeated in a message


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_argument_group("what to assess")
    images = what.add_mutually_exclusive_group()
    images.add_argument("--image", nargs="+", metavar="PATH", help="images, folders or globs")
    images.add_argument(
        "--manifest",
        type=Path,
        metavar="FILE",
        help="a .csv (choices separated by |) or .jsonl file with image and, if wanted, reference, query and choices of each row; "
        "relative paths are relative to it",
    )
    what.add_argument(
        "--reference", type=Path, metavar="PATH", help="pristine original of the same size: full-reference assessment"
    )
    what.add_argument("--query", help="a question or instruction (default: rate the perceptual quality)")
    what.add_argument("--choices", nargs="+", metavar="ANSWER", help="2 to 10 answers: a multiple-choice question")
    where = parser.add_argument_group("where and with what")
    device = where.add_mutually_exclusive_group()
    device.add_argument(
        "--gpu",
        metavar="N",
        help="GPU by index, UUID or MIG name, among those CUDA_VISIBLE_DEVICES allows (default: GPU 0 if there is one)",
    )
    device.add_argument("--cpu", action="store_true", help="run on the CPU")
    where.add_argument("--config", metavar="NAME", help="a set-up of configs/ by name, or a YAML file (default: embedded)")
    where.add_argument(
        "--engine", choices=("transformers", "vllm", "server"), help="what serves the model (default: the configuration's)"
    )
    where.add_argument(
        "--model", metavar="NAME", help="a model below the models folder, or a folder; overrides the configuration's"
    )
    where.add_argument(
        "--models", type=Path, metavar="DIR", help="the models folder (default: $AGENTIC_IQA_MODELS, else models/)"
    )
    how = parser.add_argument_group("how")
    how.add_argument(
        "--pipeline",
        choices=("agent", "letters"),
        default="agent",
        help="agent: plan, evidence, reasoning, replanning; letters: one read and the configured tools, for volume (default: agent)",
    )
    how.add_argument(
        "--mode",
        choices=("logits", "classification", "uniform"),
        help="where p_c comes from (default: the configuration's, logits)",
    )
    how.add_argument(
        "--fit", type=Path, metavar="FILE", help="temperature and η from a fit of study.py, for the model it was made with"
    )
    how.add_argument(
        "--max-replan-iterations", type=int, metavar="N", help="N allows N - 1 replans: 0 and 1 none, the default 2 one"
    )
    how.add_argument(
        "--jobs",
        type=int,
        default=1,
        metavar="N",
        help="images assessed at once, with --engine vllm or server in one batch; rows come as they are finished (default: 1)",
    )
    how.add_argument(
        "--timeout",
        type=float,
        default=600.0,
        metavar="S",
        help="seconds for one image, after which its row is a failure and the others go on (default: 600)",
    )
    output = parser.add_argument_group("output")
    output.add_argument("--out", type=Path, metavar="FILE", help="write JSON lines to FILE, one durable row for each image")
    output.add_argument("--resume", action="store_true", help="go on with the rows that FILE holds: assess the images it lacks")
    output.add_argument("--retry-failed", action="store_true", help="with --resume: assess its failed images again")
    output.add_argument("--json", nargs="?", const="-", metavar="-", help="JSON lines on stdout on a terminal and with --out too")
    output.add_argument(
        "--explain",
        action="store_true",
        help="a readable account: plan, evidence, probabilities, tools, q and why (on stderr when stdout carries JSON)",
    )
    output.add_argument(
        "--list-tools",
        action="store_true",
        help="list every IQA tool: whether it is available here, what it costs and what its map can reach, then exit",
    )
    output.add_argument("-v", "--verbose", action="count", default=0, help="log what happens (-vv: prompts and model output too)")
    args = parser.parse_args(argv)
    if not 1 <= args.jobs <= MOST_JOBS:
        parser.error(f"--jobs: expected 1 to {MOST_JOBS}")
    if not args.timeout > 0:
        parser.error("--timeout: expected more than 0 seconds")
    if not (args.image or args.manifest or args.list_tools):
        parser.error("--image or --manifest is needed: give images, folders or globs, or a file that lists images")
    if args.manifest and args.reference:
        parser.error("--reference: expected with --image; a manifest has a column reference")
    if args.json not in (None, "-"):
        parser.error(f"--json: expected nothing or - (stdout), got {args.json}; rows go to a file with --out {args.json}")
    if args.resume and not args.out:
        parser.error("--resume: expected --out FILE, the rows to go on with")
    if args.retry_failed and not args.resume:
        parser.error("--retry-failed: expected --out FILE --resume, the rows among which some failed")
    from agentic_iqa_local.state import check_choices, check_limit, check_query

    for option, check, value in (
        ("--query", check_query, args.query),
        ("--choices", check_choices, args.choices),
        ("--max-replan-iterations", check_limit, args.max_replan_iterations),
    ):
        try:
            if value is not None:
                check(value)
        except ValueError as error:
            parser.error(f"{option}: {str(error).partition(': ')[2]}")
    return args


def claim_stdout() -> TextIO:
    """The real stdout for results alone; whatever else prints there, from any library, goes to stderr."""
    results = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)
    return results


def main(argv: list[str] | None = None) -> int:
    try:
        return assess_all(parse(argv))
    except KeyboardInterrupt:
        print("interrupted before the first image", file=sys.stderr)
        return 130


def assess_all(args: argparse.Namespace) -> int:
    results = claim_stdout()
    level = (logging.WARNING, logging.INFO, logging.DEBUG)[min(args.verbose, 2)]
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s", stream=sys.stderr)
    logging.getLogger("agentic_iqa_local").setLevel(level)
    from agentic_iqa_local.batch import ManifestError
    from agentic_iqa_local.config import ConfigError
    from agentic_iqa_local.devices import DeviceError, choose_device
    from agentic_iqa_local.images import ImageError
    from agentic_iqa_local.iqa_tools import ToolError
    from agentic_iqa_local.iqa_tools.calibration import CalibrationError
    from agentic_iqa_local.model_store import BundleError
    from agentic_iqa_local.rows import RowsError
    from agentic_iqa_local.vlm_client import VLMError

    errors = (ConfigError, DeviceError, ImageError, ManifestError, RowsError, VLMError, ToolError, CalibrationError, BundleError)
    try:
        settings = chosen_settings(args)
        if args.fit:
            settings = with_fit(settings, args.fit)
        if args.mode:
            settings = settings.model_copy(update={"fusion": settings.fusion.model_copy(update={"mode": args.mode})})
        device = choose_device(args.gpu, args.cpu)
        if args.list_tools:
            return list_tools(settings, device, results)
        return run(args, settings, wanted(args), device, results)
    except errors as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def with_fit(settings, file: Path):
    """The temperature and η of a fit. Raises ConfigError where it is none, or of another model."""
    from agentic_iqa_local.config import ConfigError
    from agentic_iqa_local.studies.fitting import FitError, read_fit
    from agentic_iqa_local.studies.run import folder_hash

    try:
        fit = read_fit(file)
    except FitError as error:
        raise ConfigError(f"--fit {error}") from error
    folder = Path(settings.model(settings.summarizer.backend).path)
    if folder.is_dir() and folder_hash(folder) != fit.model:
        raise ConfigError(f"--fit {file}: expected a fit of the model in {folder}, it was made with another; fit it anew")
    changes = {"temperature": fit.temperature, "eta": fit.eta, "fitted": fit.letters.source}
    return settings.model_copy(update={"fusion": settings.fusion.model_copy(update=changes)})


def list_tools(settings, device: str, results: TextIO) -> int:
    from agentic_iqa_local.report import tool_table
    from agentic_iqa_local.services import Services

    print(tool_table(Services(settings, device).tools.info()), file=results)
    return 0


def wanted(args: argparse.Namespace) -> list:
    """The items that the command line names. Raises ManifestError, ImageError."""
    from agentic_iqa_local.batch import Item, read_manifest
    from agentic_iqa_local.images import expand_inputs
    from agentic_iqa_local.prompts import DEFAULT_QUERY

    if args.manifest:
        return read_manifest(args.manifest, args.query, args.choices)
    choices = args.choices and tuple(args.choices)
    return [Item(path, args.reference, args.query or DEFAULT_QUERY, choices) for path in expand_inputs(args.image)]


def open_results(args: argparse.Namespace, settings, items: list, device: str):
    """The file of rows, before anything is loaded; None without --out. Raises RowsError."""
    from agentic_iqa_local.batch import Results, identity

    if args.out is None:
        return None
    depends_on = identity(
        settings,
        device,
        pipeline=args.pipeline,
        max_replan_iterations=args.max_replan_iterations,
        query=args.query,
        choices=args.choices,
        reference=args.reference,
        relative=not all(path.is_absolute() for item in items for path in (item.image, item.reference) if path),
    )
    retry = {item.key for item in items} if args.retry_failed else ()
    return Results(args.out, depends_on, resume=args.resume, retry=retry)


def command_to_go_on() -> str:
    """This command line with --resume."""
    words = [word for word in sys.orig_argv if word not in ("--resume", "--retry-failed")]
    command = shlex.join([*words, "--resume"])
    return command if len(command) <= LONGEST_COMMAND else "the same command with --resume"


class Progress:
    """Rate and time left on stderr, for two images or more: a bar on a terminal, elsewhere a line every half a minute."""

    def __init__(self, total: int, done: int):
        from tqdm import tqdm

        self._bar = tqdm(total=total, initial=done, unit="image", file=sys.stderr, disable=total < 2 or not sys.stderr.isatty())
        self._lines = total > 1 and not sys.stderr.isatty()
        self._total, self._initial, self._done, self._failed = total, done, done, 0
        self._began = self._said = time.monotonic()

    def count(self, failed: bool) -> None:
        self._done += 1
        self._failed += failed
        self._bar.set_postfix_str(self._postfix, refresh=False)
        self._bar.update()
        if self._lines and time.monotonic() - self._said >= SECONDS_BETWEEN_LINES:
            self._said = time.monotonic()
            elapsed = self._said - self._began
            line = self._bar.format_meter(
                self._done, self._total, elapsed, ncols=0, unit="image", postfix=self._postfix, initial=self._initial
            )
            print(line, file=sys.stderr, flush=True)

    @property
    def _postfix(self) -> str:
        return f"{self._failed} failed" if self._failed else ""

    def close(self) -> None:
        self._bar.close()


def run(args: argparse.Namespace, settings, items: list, device: str, results: TextIO) -> int:
    file = open_results(args, settings, items, device)
    done, suspects = (file.done, file.suspects) if file else (set(), {})
    left = [item for item in items if item.key not in done]
    if not left:
        file.close()
        return finished(args, file)
    from transformers.utils import logging as transformers_logging

    from agentic_iqa_local.batch import Batch, BatchError
    from agentic_iqa_local.rows import WriteError
    from agentic_iqa_local.services import Services
    from agentic_iqa_local.vlm_client import ModelLost

    transformers_logging.disable_progress_bar()
    batch = Batch(
        Services(settings, device),
        jobs=args.jobs,
        timeout=args.timeout,
        pipeline=args.pipeline,
        max_replan_iterations=args.max_replan_iterations,
    )
    go_on = f"go on with: {command_to_go_on()}" if file else "with --out FILE a run can be gone on with"

    def interrupted(*_: object) -> None:
        if batch.stopping:
            if file:
                file.settle()
            os.write(2, f"\nstopped; {go_on}\n".encode())
            os._exit(130)
        batch.stop()
        os.write(2, b"\nstopping when the images in hand are finished; Ctrl-C again stops at once\n")

    before = signal.signal(signal.SIGINT, interrupted)
    progress = Progress(len(items), len(items) - len(left))
    written, failed, lost, status = 0, 0, False, None
    try:
        if last := [item for item in left if item.key in suspects]:
            print(f"earlier runs died with {len(last)} images in hand: they come last, one at a time", file=sys.stderr)
        left = [item for item in left if item.key not in suspects] + last
        for row in batch.rows(file.begun(left) if file else left, suspects):
            if file:
                file.append(row)
            written += 1
            failed += row.error is not None
            progress.count(row.error is not None)
            show(args, row, results)
    except (BatchError, ModelLost, WriteError) as error:
        lost = isinstance(error, ModelLost)
        print(f"error: {error}; {go_on}", file=sys.stderr)
        status = 1
    except BrokenPipeError:  # the reader of our stdout has gone, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), results.fileno())
        if file:
            print(f"error: nobody reads stdout any more; {go_on}", file=sys.stderr)
        status = 1 if file else 0
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), results.fileno())
        print(f"error: stdout: a row could not be written ({error.strerror}); {go_on}", file=sys.stderr)
        status = 1
    finally:
        progress.close()
        signal.signal(signal.SIGINT, before)
        if file:
            file.close(lost=lost)
    if batch.stopping and written < len(left):
        print(f"interrupted: {len(items) - len(left) + written} of {len(items)} images have their rows; {go_on}", file=sys.stderr)
        status = 130
    elif status is None:
        status = finished(args, file) if file else int(failed > 0)
    if batch.unfinished:  # a thread that does not return would keep the process
        sys.stderr.flush()
        os._exit(status)
    return status


def finished(args: argparse.Namespace, file) -> int:
    """The exit status of a run whose images all have their rows in `file`."""
    said = f"{len(file.done)} rows in {args.out}"
    if file.failed:
        said += f", {file.failed} of them failures; add --resume --retry-failed to assess those again"
    print(said, file=sys.stderr)
    return int(file.failed > 0)


def show(args: argparse.Namespace, row, results: TextIO) -> None:
    """A row on the screen or in the pipe."""
    from tqdm import tqdm

    from agentic_iqa_local.batch import as_line
    from agentic_iqa_local.report import account, summary

    json_on_stdout = bool(args.json) or not (args.out or results.isatty())
    if json_on_stdout:
        print(as_line(row), file=results, flush=True)
    if args.explain:
        tqdm.write(account(row), file=sys.stderr if json_on_stdout else results)
    elif results.isatty() and not json_on_stdout:
        tqdm.write(summary(row), file=results)
    elif row.error:
        tqdm.write(f"error: {row.error}", file=sys.stderr)
