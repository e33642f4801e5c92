"""Assesses the quality of pictures with a local vision-language model and IQA tools. Nothing leaves this
machine.

examples:
  {assess} photo.jpg --explain
  {assess} photo.jpg --reference original.png --gpu 0
  {assess} photo.jpg --query "Use NIQE to score this picture."
  {assess} photo.jpg --query "Which distortion dominates?" --choices Blur Noise Compression None
  {assess} photo.jpg --interactive
  {assess} scans/ --pipeline letters --out results.jsonl --csv results.csv
  {assess} --manifest images.csv --out results.jsonl --resume --retry-failed
  {assess} photo.jpg --config qwen2_5_vl_7b --gpu 0
  {assess} --list-tools
Without a picture the sample photograph that ships is assessed.

On a terminal the answer is text; piped, or with --json, it is one JSON object a line on stdout and nothing
else there. With --out the objects go to a file instead, each synced to disk as it is finished: after a kill,
Ctrl-C or a full disk the same command with --resume goes on.
With --interactive questions about one picture are read from stdin, one a line ("Rate it", then "And the
sky?"), until its end, "exit" or "quit". The picture stays open, and each question is told of those before it;
Ctrl-C stops a question, or between two the session. Exit status: 0 all assessed, 1 some picture failed (its
row has "error") or the batch could not go on, 2 wrong usage or a model that cannot run, 130 interrupted by
Ctrl-C or a polite kill (the rows so far are written).
"""

import argparse
import glob
import logging
import os
import shlex
import signal
import sys
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from agentic_iqa_local import __version__
from agentic_iqa_local.commands import chosen_settings
from agentic_iqa_local.commands.console import Console, Parser, like_ctrl_c, safe_streams, start_logging
from agentic_iqa_local.errors import UserError
from agentic_iqa_local.paths import ROOT, command
from agentic_iqa_local.text import one_line

MOST_JOBS = 256
LONGEST_COMMAND = 2000  # characters, to be repeated in a message
NAMED_FILES = 5  # in a message
# bytes of a file's name; what the longest beside it ends in
LONGEST_NAME, LONGEST_SUFFIX = (
    255,
    ".in_hand.json.partial",
)
SAMPLE = ROOT / "tests" / "data" / "sumac.png"  # a wheel has it inside


class UsageError(UserError):
    """A command line that cannot be carried out."""


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = Parser(
        prog=command("assess").removeprefix("python "),
        usage="%(prog)s [PICTURE ...] [options]",
        description=__doc__.replace("{assess}", command("assess")),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"agentic_iqa_local {__version__}")
    what = parser.add_argument_group("what to assess")
    what.add_argument("pictures", nargs="*", metavar="PICTURE", help="pictures, folders or globs")
    what.add_argument("--image", nargs="+", default=[], metavar="PICTURE", help="the same")
    what.add_argument(
        "--manifest",
        type=Path,
        metavar="FILE",
        help=(
            "a .csv (choices separated by |) or .jsonl file with image and, if wanted, reference, query and"
            " choices of each row; relative paths are relative to it"
        ),
    )
    what.add_argument(
        "--reference",
        type=Path,
        metavar="PATH",
        help="pristine original of the same size: full-reference assessment",
    )
    what.add_argument(
        "--query",
        help=(
            "a question or instruction (default: rate the perceptual quality); a tool that it names runs, and"
            ' answers that it lists ("... A. too dark B. too bright", "yes or no") are the choices'
        ),
    )
    what.add_argument(
        "--choices", nargs="+", metavar="ANSWER", help="2 to 10 answers: a multiple-choice question"
    )
    what.add_argument(
        "--interactive",
        action="store_true",
        help=(
            "answer questions about one picture, read from stdin one a line; --query is the first; with --out"
            " their rows are appended"
        ),
    )
    what.add_argument(
        "--background",
        metavar="COLOUR",
        help="what stands behind transparent pictures, such as white or #808080 (default: refuse them)",
    )
    where = parser.add_argument_group("where and with what")
    device = where.add_mutually_exclusive_group()
    device.add_argument(
        "--gpu",
        metavar="N",
        help=(
            "GPU by index, UUID or MIG name, among those CUDA_VISIBLE_DEVICES allows (default: GPU 0 if there"
            " is one)"
        ),
    )
    device.add_argument("--cpu", action="store_true", help="run on the CPU")
    where.add_argument(
        "--config", metavar="NAME", help="a set-up of configs/ by name, or a YAML file (default: embedded)"
    )
    where.add_argument(
        "--engine",
        choices=("transformers", "vllm", "server"),
        help="what serves the model (default: the configuration's)",
    )
    where.add_argument(
        "--model",
        metavar="NAME",
        help="a model below the models folder, or a folder; overrides the configuration's",
    )
    where.add_argument(
        "--models",
        type=Path,
        metavar="DIR",
        help="the models folder (default: $AGENTIC_IQA_MODELS, else models/)",
    )
    how = parser.add_argument_group("how")
    how.add_argument(
        "--pipeline",
        choices=("agent", "letters"),
        default="agent",
        help=(
            "agent: plan, evidence, reasoning, replanning; letters: one read and the configured tools, for"
            " volume (default: agent)"
        ),
    )
    how.add_argument(
        "--mode",
        choices=("logits", "classification", "uniform"),
        help="where the letters' probabilities come from (default: the configuration's, logits)",
    )
    how.add_argument(
        "--fit",
        type=Path,
        metavar="FILE",
        help="temperature and η from a fit of study.py, for the model it was made with",
    )
    how.add_argument(
        "--max-replan-iterations",
        type=int,
        metavar="N",
        help="N allows N - 1 replans: 0 and 1 none, the default 2 one",
    )
    how.add_argument(
        "--jobs",
        type=int,
        default=1,
        metavar="N",
        help=(
            "pictures assessed at once, with --engine vllm or server in one batch; rows come as they are"
            " finished (default: 1)"
        ),
    )
    how.add_argument(
        "--timeout",
        type=float,
        default=600.0,
        metavar="S",
        help="seconds for one picture, after which its row is a failure and the others go on (default: 600)",
    )
    output = parser.add_argument_group("output")
    output.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help=(
            "write JSON lines to FILE, one durable row for each picture; FILE.csv stands for --out FILE.jsonl"
            " --csv FILE.csv; a link is followed once, at the start"
        ),
    )
    output.add_argument(
        "--resume",
        action="store_true",
        help="go on with the rows that FILE holds: assess the pictures it lacks",
    )
    output.add_argument(
        "--retry-failed", action="store_true", help="with --resume: assess its failed pictures again"
    )
    output.add_argument(
        "--csv",
        type=Path,
        metavar="FILE",
        help="write all rows as a table for spreadsheets too, when the run ends (replaces FILE)",
    )
    output.add_argument(
        "--json",
        nargs="?",
        const="-",
        metavar="-",
        help="JSON lines on stdout on a terminal and with --out too",
    )
    output.add_argument(
        "--explain",
        action="store_true",
        help=(
            "a readable account instead: plan, evidence, probabilities, tools, q and why (on stderr when"
            " stdout carries JSON)"
        ),
    )
    output.add_argument(
        "--list-tools",
        action="store_true",
        help=(
            "list every IQA tool: whether it is available here, what it costs and what its map can reach,"
            " then exit"
        ),
    )
    output.add_argument(
        "-v",
        "--verbose",
        action="count",
        default=0,
        help="log what happens (-vv: prompts and model output too)",
    )
    args = parser.parse_intermixed_args(argv)  # pictures may stand before and behind options
    args.pictures += args.image
    if not 1 <= args.jobs <= MOST_JOBS:
        parser.error(f"--jobs: expected 1 to {MOST_JOBS}")
    if not args.timeout > 0:
        parser.error("--timeout: expected more than 0 seconds")
    if args.manifest and args.pictures:
        parser.error(f"--manifest: expected it alone, got {args.pictures[0]} too; list that in the manifest")
    if args.manifest and args.reference:
        parser.error("--reference: expected with pictures; a manifest has a column reference")
    if args.interactive:
        check_interactive(parser, args)
    if args.json not in (None, "-"):
        parser.error(
            f"--json: expected nothing or - (stdout), got {args.json}; rows go to a file with --out"
            f" {args.json}"
        )
    if args.out and args.out.suffix.lower() in (".xlsx", ".xls", ".ods", ".tsv", ".txt", ".html"):
        parser.error(
            f"--out {args.out}: rows are JSON lines, name it .jsonl; for a spreadsheet use --csv"
            f" {args.out.with_suffix('.csv')}"
        )
    if args.out and args.out.suffix.lower() == ".csv":
        if args.csv:
            parser.error(f"--out {args.out} --csv {args.csv}: expected one table; name --out .jsonl")
        args.out, args.csv = args.out.with_suffix(".jsonl"), args.out
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


def check_interactive(parser: Parser, args: argparse.Namespace) -> None:
    """Ends the program with one sentence for an option that --interactive leaves nothing to do."""
    csv = args.csv or (args.out and args.out.suffix.lower() == ".csv")
    for option, given, instead in (
        ("--manifest", args.manifest, "name one picture"),
        ("--choices", args.choices, 'end a question with its answers: "Is it noisy? yes or no"'),
        ("--resume", args.resume, "--out alone appends to the rows of earlier conversations"),
        ("--retry-failed", args.retry_failed, "ask the question again"),
        ("--csv", csv, "keep the rows with --out FILE.jsonl"),
        ("--jobs", args.jobs != parser.get_default("jobs"), "questions are answered one by one"),
        ("--timeout", args.timeout != parser.get_default("timeout"), "Ctrl-C stops a question"),
        (
            "--pipeline",
            args.pipeline != "agent",
            "the pipeline letters has no Planner that takes a question up",
        ),
        ("--list-tools", args.list_tools, "give it alone"),
    ):
        if given:
            parser.error(f"{option}: expected without --interactive; {instead}")


@safe_streams()
def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    start_logging(args.verbose)
    try:
        with like_ctrl_c(signal.default_int_handler), Console() as console:
            return assess_all(args, console)
        return 0
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted before the first picture", file=sys.stderr)
        return 130


def assess_all(args: argparse.Namespace, console: Console) -> int:
    """Everything that can be checked without a model is checked before anything that takes seconds to load.
    Raises UserError."""
    settings = chosen_settings(args)
    items = [] if args.list_tools else wanted(args, console)
    check_pictures(args, items)
    if args.interactive and len(items) != 1:
        raise UsageError(f"--interactive: expected one picture, got {len(items)}; name one of them")
    args.out, args.csv = result_file("--out", args.out), result_file("--csv", args.csv)
    check_table(args, items)
    if args.engine != "server" and not args.list_tools:
        check_models(settings, args.pipeline)
    if args.explain and not args.verbose:
        for name in ("workbench", "score_fusion"):  # the account holds a picture's warnings
            logging.getLogger(f"agentic_iqa_local.{name}").setLevel(logging.ERROR)
    from agentic_iqa_local.devices import choose_device

    device = choose_device(args.gpu, args.cpu)
    if args.list_tools:
        return list_tools(settings, device, console)
    if args.interactive:
        from agentic_iqa_local.commands.interactive import converse

        return converse(args, settings, items[0], device, console, show)
    return run(args, settings, items, device, console)


def wanted(args: argparse.Namespace, console: Console) -> list:
    """The items that the command line names. Raises UserError."""
    from agentic_iqa_local.inputs import Item, read_manifest

    if args.manifest:
        return read_manifest(args.manifest, args.query, args.choices)
    from agentic_iqa_local.images import check_file, expand_inputs
    from agentic_iqa_local.prompts import DEFAULT_QUERY

    if not args.pictures:
        console.say(
            f"no picture named: assessing the sample photograph that ships; yours: {command('assess')}"
            " photo.jpg"
        )
    choices = args.choices and tuple(args.choices)
    for words in args.pictures:
        if (
            " " in words
            and not os.path.lexists(words)
            and not glob.glob(words, recursive=True)
            and not Path(words.rstrip("?!.")).suffix
        ):
            raise UsageError(
                f"{words!r} is no file; a question goes behind its option: --query {shlex.quote(words)}"
            )
    sample = os.path.relpath(SAMPLE) if SAMPLE.is_relative_to(Path.cwd()) else str(SAMPLE)
    files = expand_inputs(args.pictures or [sample], console.say)
    if args.reference:
        check_file(args.reference)
    return [Item(path, args.reference, args.query or DEFAULT_QUERY, choices) for path in files]


def check_pictures(args: argparse.Namespace, items: Iterable) -> None:
    """Raises UsageError for pictures that are not there."""
    missing = [item.image for item in items if not os.path.lexists(item.image)] if not args.manifest else []
    if missing:
        raise UsageError(about_missing(args, missing))


def result_file(option: str, file: Path | None) -> Path | None:
    """The file to be written, where `file` is a link the one that it leads to. Raises UsageError for a place
    where none can be."""
    from agentic_iqa_local.files import FileError, place_for

    if file is None:
        return None
    folder = file.absolute().parent
    if not folder.is_dir():
        raise UsageError(
            f"{option} {file}: there is no folder {folder}; make it first: mkdir -p"
            f" {shlex.quote(str(folder))}"
        )
    try:
        place = place_for(file)
    except FileError as error:
        raise UsageError(f"{option} {file}: {error}; choose a file in a folder of yours") from error
    if len(os.fsencode(place.name + LONGEST_SUFFIX)) > LONGEST_NAME:
        raise UsageError(
            f"{option} {file}: expected a name that leaves room for {LONGEST_SUFFIX} behind it; choose a"
            " shorter one"
        )
    if not os.access(place if place.exists() else folder, os.W_OK):
        raise UsageError(f"{option} {file}: it cannot be written; choose a file in a folder of yours")
    return place


def check_table(args: argparse.Namespace, items: Iterable) -> None:
    """Raises UsageError for a --csv that would replace the rows, what lies beside them, or a file that is
    read."""
    if args.csv is None:
        return
    beside = ("", ".run.json", ".in_hand.json", ".partial", ".run.json.partial", ".in_hand.json.partial")
    if args.out and args.csv in [args.out.with_name(args.out.name + suffix) for suffix in beside]:
        raise UsageError(
            f"--csv {args.csv}: expected a file of its own, this one belongs to the rows; choose another"
            " --csv"
        )
    if not args.csv.exists():
        return
    table = os.stat(args.csv)
    read = [args.manifest, args.fit, *(file for item in items for file in (item.image, item.reference))]
    for file in filter(None, read):
        with suppress(OSError, ValueError):
            if os.path.samestat(os.stat(file), table):
                raise UsageError(
                    f"--csv {args.csv}: expected a file of its own, this one is read; choose another --csv"
                )


def about_missing(args: argparse.Namespace, missing: list[Path]) -> str:
    """What to type instead of pictures that are not there."""
    from agentic_iqa_local.images import ImageError, check_file

    first = missing[0]
    words = [*([args.query] if args.query and len(args.query.split()) == 1 else []), *map(str, missing)]
    if len(words) > 1 and not any(path.suffix.rstrip("?!.") for path in missing):
        return (
            f"'{first}' is no file; put a query of several words in quotes: --query"
            f" {shlex.quote(' '.join(words))}"
        )
    more = (
        f" (and {len(missing) - 1} more are not there: {', '.join(map(str, missing[1:NAMED_FILES]))})"
        if missing[1:]
        else ""
    )
    try:
        check_file(first)
    except ImageError as error:
        return f"{error}{more}"
    return f"{first}: it came while we looked; try again"


def check_models(settings, pipeline: str) -> None:
    """Raises UsageError for a model folder that is not there."""
    from agentic_iqa_local.paths import about_missing_model

    for role in ("planner", "executor", "summarizer") if pipeline == "agent" else ("summarizer",):
        folder = Path(settings.model(settings.role(role).backend).path)
        if not os.path.isdir(folder):
            raise UsageError(*about_missing_model(folder))


def list_tools(settings, device: str, console: Console) -> int:
    from agentic_iqa_local.report import tool_table
    from agentic_iqa_local.services import Services

    console.show(tool_table(Services(settings, device).tools.info()))
    return 0


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
        relative=not all(
            path.is_absolute() for item in items for path in (item.image, item.reference) if path
        ),
    )
    retry = {item.key for item in items} if args.retry_failed else ()
    return Results(args.out, depends_on, resume=args.resume, retry=retry)


def command_to_go_on() -> str:
    """This command line with --resume."""
    words = [word for word in sys.orig_argv if word not in ("--resume", "--retry-failed")]
    command = shlex.join([*words, "--resume"])
    typed = len(command) <= LONGEST_COMMAND and command == one_line(command)
    return command if typed else "the same command with --resume"


def batch_of(args: argparse.Namespace, settings, items: list, device: str):
    """What assesses the items: several of them in a process of its own, which may hang or crash. Raises
    VLMError for a model that cannot be loaded."""
    from agentic_iqa_local.batch import Batch
    from agentic_iqa_local.batch_worker import BatchWorker
    from agentic_iqa_local.services import Services

    options = {
        "jobs": args.jobs,
        "timeout": args.timeout,
        "pipeline": args.pipeline,
        "max_replan_iterations": args.max_replan_iterations,
        "load": any(loadable(item, settings) for item in items),
    }
    if len(items) == 1:
        return Batch(Services(settings, device), **options)
    batch = BatchWorker(settings, device, **options)
    if options["load"]:
        batch.load()
    return batch


def run(args: argparse.Namespace, settings, items: list, device: str, console: Console) -> int:
    from agentic_iqa_local.report import Tally

    file = open_results(args, settings, items, device)
    done, suspects = (file.done, file.suspects) if file else (set(), {})
    left = [item for item in items if item.key not in done]
    if not left:
        file.close()
        return finished(args, console, file, [], Tally(), 0)
    from agentic_iqa_local.batch import BatchError
    from agentic_iqa_local.rows import Replaced, WriteError
    from agentic_iqa_local.vlm_client import ModelLost

    try:
        batch = batch_of(args, settings, left, device)
    except BaseException:  # a model that cannot be loaded: nothing is in hand
        if file:
            file.close()
        raise
    go_on = f"go on with: {command_to_go_on()}" if file else "with --out FILE a run can be gone on with"

    def interrupted(*_: object) -> None:
        if batch.stopping:
            if file:
                file.settle()
            os.write(2, f"\nstopped; {one_line(go_on)}\n".encode())
            os._exit(130)
        batch.stop()
        os.write(2, b"\nstopping when the pictures in hand are finished; Ctrl-C again stops at once\n")

    interruptions = ExitStack()
    interruptions.enter_context(like_ctrl_c(interrupted))
    console.begin(len(items), len(items) - len(left))
    tally, kept = Tally(), []
    written, lost, replaced, status = 0, False, False, None
    try:
        if last := [item for item in left if item.key in suspects]:
            those = (
                "1 picture in hand: it comes last"
                if len(last) == 1
                else f"{len(last)} pictures in hand: they come last"
            )
            console.say(f"earlier runs died with {those}, alone")
        left = [item for item in left if item.key not in suspects] + last
        for row in batch.rows(file.begun(left) if file else left, suspects):
            if file:
                file.append(row)
            else:
                tally.add(told := row.to_dict())
                if args.csv:
                    kept.append(told)
            written += 1
            console.count(row.error is not None)
            show(args, row, console)
    except (BatchError, ModelLost, WriteError) as error:
        lost, replaced = isinstance(error, ModelLost), isinstance(error, Replaced)
        console.say(f"error: {error}; {go_on}")
        status = 1
    except BrokenPipeError:  # the reader of our stdout has gone, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), console.results.fileno())
        if file:
            console.say(f"error: nobody reads stdout any more; {go_on}")
        status = 1 if file else 0
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), console.results.fileno())
        console.say(f"error: stdout: a row could not be written ({error.strerror}); {go_on}")
        status = 1
    finally:
        console.end()
        interruptions.close()
        if file:
            file.close(lost=lost)
    try:
        finished_status = 1 if replaced else finished(args, console, file, kept, tally, written)
    except WriteError as error:
        console.say(f"error: {error}")
        status = status or 1
    if batch.stopping and written < len(left):
        console.say(
            f"interrupted: {len(items) - len(left) + written} of {len(items)} pictures have their rows;"
            f" {go_on}"
        )
        status = 130
    elif status is None:
        status = finished_status
    if getattr(batch, "unfinished", False):  # a thread that does not return would keep the process
        sys.stderr.flush()
        os._exit(status)
    return status


def loadable(item, settings) -> bool:
    """Whether an item's pictures can be opened: a model is loaded only where there is something to show
    it."""
    from agentic_iqa_local.images import ImageError
    from agentic_iqa_local.workbench import load_pictures

    try:
        load_pictures(settings.images, item.image, item.reference)
    except ImageError:
        return False
    return True


def finished(
    args: argparse.Namespace, console: Console, file, kept: list[dict[str, Any]], tally, written: int
) -> int:
    """The summary and the table of a run, of which `written` rows are new; its exit status. With a `file` its
    rows are told, else those that `tally` counted and, for the table, `kept`."""
    rows = file.rows if file else lambda: kept
    for row in file.rows() if file else ():
        tally.add(row)
    if tally.total > 1:
        console.say("\n" + tally.text(written, console.seconds if written else 0))
    if file:
        said = f"{tally.total} rows in {args.out}"
        if tally.failed:
            said += (
                f", {len(tally.failed)} of them failures; add --resume --retry-failed to assess those again"
            )
        console.say(one_line(said))
    if args.csv:
        from agentic_iqa_local.rows import write_whole
        from agentic_iqa_local.tables import csv_text

        write_whole(args.csv, csv_text(rows), encoding="utf-8-sig")
        console.say(one_line(f"{tally.total} rows as a table in {args.csv}"))
    return int(bool(tally.failed))


def show(args: argparse.Namespace, row, console: Console) -> None:
    """A row on the screen or in the pipe."""
    from agentic_iqa_local.batch import as_line
    from agentic_iqa_local.report import account, summary

    terminal = console.results.isatty()
    json_on_stdout = bool(args.json) or not (args.out or terminal or args.explain)
    if json_on_stdout:
        console.show(as_line(row))
    if args.explain:
        console.show(account(row), sys.stderr if json_on_stdout else None)
    elif terminal and not json_on_stdout and not args.out:
        console.show(summary(row))
    elif row.error:
        console.say(f"error: {row.error}")
