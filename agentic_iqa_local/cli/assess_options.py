"""The options of the command assess, and which of them go together."""

import argparse
import sys
from pathlib import Path

from agentic_iqa_local import __version__
from agentic_iqa_local.cli import HOW, HOW_SURE, add_options, add_set_up, check_options
from agentic_iqa_local.cli.cluster_options import add_cluster_options, check_cluster
from agentic_iqa_local.cli.compare_options import add_compare_options, check_compare
from agentic_iqa_local.cli.console import Parser
from agentic_iqa_local.files import command

MOST_JOBS = 256


def parse(argv: list[str] | None, description: str) -> argparse.Namespace:
    parser = Parser(
        prog=command("assess").removeprefix("python "),
        usage="%(prog)s [PICTURE ...] [options]",
        description=description.replace("{assess}", command("assess")),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"agentic_iqa_local {__version__}")
    _what(parser)
    _where(parser)
    add_how(parser)
    add_cluster_options(parser)
    add_compare_options(parser)
    add_how_sure(parser).add_argument(
        "--strict",
        action="store_true",
        help="exit status 4 where a picture fails --at-least, 3 where an answer is not sure",
    )
    _map_options(parser)
    _output(parser)
    words = sys.argv[1:] if argv is None else argv
    end = words.index("--") if "--" in words else len(words)  # behind it stand pictures alone
    args = parser.parse_intermixed_args(words[:end])  # pictures may stand before and behind options
    args.pictures += args.image + words[end + 1 :]
    _take_reference(parser, args)
    check_compare(parser, args)
    _check_pictures(parser, args)
    check_cluster(parser, args)
    if args.cluster:
        _check_what_a_cluster_does(parser, args)
    if args.interactive:
        _check_interactive(parser, args)
    _check_output(parser, args)
    check_options(parser, args)
    _check_limits(parser, args)
    return args


def _what(parser: Parser) -> None:
    what = parser.add_argument_group("what to assess")
    what.add_argument("pictures", nargs="*", metavar="PICTURE", help="pictures, folders or globs")
    what.add_argument("--image", nargs="+", default=[], metavar="PICTURE", help="the same")
    what.add_argument(
        "--manifest",
        type=Path,
        metavar="FILE",
        help=(
            "a .csv (choices separated by |), .jsonl or .parquet file with image and, if wanted, reference, query and"
            " choices of each row; relative paths are relative to it"
        ),
    )
    what.add_argument(
        "--reference",
        action="append",
        nargs="+",
        metavar="PATH",
        help=(
            "pristine original of the same size: full-reference assessment; for many pictures a folder with"
            " an original of each, under the picture's name with any suffix"
        ),
    )
    add_options(what, "query", "choices")
    what.add_argument(
        "--interactive",
        action="store_true",
        help=(
            "answer questions about one picture, read from stdin one a line; --query is the first; with --out"
            " their rows are appended"
        ),
    )
    add_options(what, "background")


def _where(parser: Parser) -> None:
    where = parser.add_argument_group("where and with what")
    add_set_up(where)


def add_how(parser: Parser) -> None:
    how = parser.add_argument_group("how")
    add_options(how, *HOW)
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


def add_how_sure(parser: Parser) -> argparse._ArgumentGroup:
    sure = parser.add_argument_group(
        "how sure", "each rating has an interval that holds the true quality with 90 % probability"
    )
    add_options(sure, *HOW_SURE)
    return sure


def _check_limits(parser: Parser, args: argparse.Namespace) -> None:
    for option in ("map_tiles", "map_seconds"):
        if getattr(args, option) is not None and args.map is None:
            parser.error(f"--{option.replace('_', '-')}: expected with --map, which it limits")
    if args.strict and args.at_least is None and args.abstain_wider_than is None:
        parser.error("--strict: expected with --at-least or --abstain-wider-than")


def _map_options(parser: Parser) -> None:
    maps = parser.add_argument_group("where the damage is")
    maps.add_argument(
        "--map",
        type=Path,
        metavar="PNG",
        help=(
            "read the picture tile by tile too: draw the quality from place to place to PNG and put it into"
            " the row; for several pictures a folder, which gets NAME.map.png of each"
        ),
    )
    add_options(maps, "map_tiles", "map_seconds")


def _files(output: argparse._ArgumentGroup) -> None:
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
        help="go on with the rows that FILE holds: assess pictures that it lacks, or that changed",
    )
    output.add_argument(
        "--retry-failed", action="store_true", help="with --resume: assess its failed pictures again"
    )
    output.add_argument(
        "--csv",
        type=Path,
        metavar="FILE",
        help="write all rows as a table for spreadsheets too, when the run ends (replaces a table)",
    )
    output.add_argument(
        "--gallery",
        type=Path,
        metavar="FILE",
        help=(
            "make a page of all rows too, to look through, sort and triage, when the run ends (replaces a"
            " gallery)"
        ),
    )


def _output(parser: Parser) -> None:
    output = parser.add_argument_group("output")
    _files(output)
    output.add_argument(
        "--json",
        nargs="?",
        const="-",
        metavar="-",
        help="JSON lines on stdout on a terminal and with --out too",
    )
    output.add_argument(
        "--sort",
        choices=("q", "worst", "width", "name"),
        help=(
            "several pictures on a terminal: print their lines at the end, from the best q on, the worst on,"
            " the widest interval on, or by name; rows of --out and in a pipe keep the order in which they"
            " finish"
        ),
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


def _check_pictures(parser: Parser, args: argparse.Namespace) -> None:
    if not 1 <= args.jobs <= MOST_JOBS:
        parser.error(f"--jobs: expected 1 to {MOST_JOBS}")
    if not args.timeout > 0:
        parser.error("--timeout: expected more than 0 seconds")
    if args.manifest and args.pictures:
        parser.error(f"--manifest: expected it alone, got {args.pictures[0]} too; list that in the manifest")
    if args.manifest and args.reference:
        parser.error("--reference: expected with pictures; a manifest has a column reference")


def _take_reference(parser: Parser, args: argparse.Namespace) -> None:
    """Sets the one reference. Words behind it are pictures where no others are named; else somebody meant
    several references, and the program ends with one sentence."""
    named = [path for paths in args.reference or () for path in paths]
    if len(args.reference or ()) > 1 or (named[1:] and (args.pictures or args.compare or args.best_of)):
        parser.error(
            f"--reference: expected one original, got {' and '.join(named)}; name a folder with an original"
            " of each picture's name, or use --manifest with a column reference"
        )
    args.reference = Path(named[0]) if named else None
    args.pictures += named[1:]


def _check_what_a_cluster_does(parser: Parser, args: argparse.Namespace) -> None:
    """Ends the program with one sentence for what is not done at workers."""
    for option, given in (
        ("--interactive", args.interactive),
        ("--compare", args.compare),
        ("--best-of", args.best_of),
        ("--list-tools", args.list_tools),
    ):
        if given:
            parser.error(f"{option}: expected without --cluster, which assesses pictures one by one")
    if args.map and args.cluster != "local":
        parser.error("--map: expected without --cluster ADDRESS: a map would be drawn to its worker's disk")


def _check_output(parser: Parser, args: argparse.Namespace) -> None:
    if args.json not in (None, "-"):
        parser.error(
            f"--json: expected nothing or - (stdout), got {args.json}; rows go to a file with --out"
            f" {args.json}"
        )
    if args.out and args.out.suffix.lower() == ".csv":
        if args.csv:
            parser.error(f"--out {args.out} --csv {args.csv}: expected one table; name --out .jsonl")
        args.out, args.csv = args.out.with_suffix(".jsonl"), args.out
    for option, what, suffixes in (
        ("out", "rows are JSON lines", (".jsonl", ".json")),
        ("csv", "a table is CSV", (".csv", ".txt")),
        ("gallery", "a gallery is an HTML page", (".html", ".htm")),
    ):
        if file := getattr(args, option):
            _check_suffix(parser, f"--{option} {file}: {what}", file, suffixes)
    if args.sort:
        _check_sort(parser, args)
    if args.resume and not args.out:
        parser.error("--resume: expected --out FILE, the rows to go on with")
    if args.retry_failed and not args.resume:
        parser.error("--retry-failed: expected --out FILE --resume, the rows among which some failed")


def _check_suffix(parser: Parser, said: str, file: Path, suffixes: tuple[str, ...]) -> None:
    """Ends the program with one sentence that begins with what is `said`, where a name is that of another
    kind of file: somebody may have left out the output's own."""
    if not (suffix := file.suffix.lower()) or suffix in suffixes:
        return
    from agentic_iqa_local.state import IMAGE_SUFFIXES

    if suffix in IMAGE_SUFFIXES:
        parser.error(
            f"{said}, and this is a picture's name; name a file of its own, such as rows{suffixes[0]}"
        )
    if suffix in (".xlsx", ".xls", ".ods", ".tsv", ".txt", ".html", ".htm", ".csv", ".json", ".jsonl"):
        table = f"; for a spreadsheet use --csv {file.with_suffix('.csv')}" if suffixes[0] == ".jsonl" else ""
        parser.error(f"{said}, name it {file.with_suffix(suffixes[0])}{table}")


def _check_sort(parser: Parser, args: argparse.Namespace) -> None:
    """Ends the program with one sentence where there are no lines to sort."""
    for option, given in (
        ("--explain", args.explain),
        ("--json", args.json),
        ("--interactive", args.interactive),
        ("--compare", args.compare),
        ("--best-of", args.best_of),
        ("--list-tools", args.list_tools),
    ):
        if given:
            parser.error(f"--sort: expected without {option}; it sorts one line for each picture")


def _check_interactive(parser: Parser, args: argparse.Namespace) -> None:
    """Ends the program with one sentence for an option that --interactive leaves nothing to do."""
    csv = args.csv or (args.out and args.out.suffix.lower() == ".csv")
    for option, given, instead in (
        ("--manifest", args.manifest, "name one picture"),
        ("--choices", args.choices, 'end a question with its answers: "Is it noisy? yes or no"'),
        ("--resume", args.resume, "--out alone appends to the rows of earlier conversations"),
        ("--retry-failed", args.retry_failed, "ask the question again"),
        ("--csv", csv, "keep the rows with --out FILE.jsonl"),
        ("--gallery", args.gallery, "keep the rows with --out FILE.jsonl"),
        ("--jobs", args.jobs != parser.get_default("jobs"), "questions are answered one by one"),
        ("--timeout", args.timeout != parser.get_default("timeout"), "Ctrl-C stops a question"),
        (
            "--pipeline",
            args.pipeline != "agent",
            "the pipeline letters has no Planner that takes a question up",
        ),
        ("--list-tools", args.list_tools, "give it alone"),
        ("--map", args.map, "assess the picture once more with --map"),
    ):
        if given:
            parser.error(f"{option}: expected without --interactive; {instead}")
