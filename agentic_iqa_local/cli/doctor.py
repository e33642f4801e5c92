"""Examines whether a set-up will work on this machine, without any network, and says what to do where it will
not.

examples:
  {doctor}                                      the embedded model, on a GPU if there is one
  {doctor} --config qwen2_5_vl_7b --gpu 0
  {doctor} --config qwen2_5_vl_7b --gpu 0 --deep   in the first hour on new hardware
  {doctor} --quick --json                       nothing is loaded: for a health check

Versions and device; the models folder against its manifest; disk; memory against what weights, cache and tools need;
then the model and every available tool are loaded and run on a small picture, in a process whose connections are
refused. --deep compares the letters of ten pictures with a plain float32 pass, in a batch, from a shared prefix and by
the other engine, and the tools on the GPU with the CPU, each with its bound (docs/engines.md).

Exit status: 0 nothing failed, 1 something failed, 2 wrong usage, 130 interrupted.
"""

import argparse
import json
import sys
import textwrap
from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING

from agentic_iqa_local.cli import add_set_up, chosen_settings
from agentic_iqa_local.cli.console import Parser, exit_status, safe_streams
from agentic_iqa_local.files import command

if TYPE_CHECKING:
    from agentic_iqa_local.offline.doctor import Check


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = Parser.of("doctor", __doc__)
    add_set_up(parser)
    parser.add_argument(
        "--quick", action="store_true", help="load no model and no tool, and read no file whole"
    )
    parser.add_argument(
        "--deep", action="store_true", help="also compare letters, engines and tools, in minutes"
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=300.0,
        metavar="S",
        help="seconds that one check may take (default: 300)",
    )
    parser.add_argument(
        "--json", action="store_true", help="one JSON object on stdout, and nothing else there"
    )
    args = parser.parse_args(argv)
    if not 0 < args.timeout <= 86_400:
        parser.error("--timeout: expected more than 0 and at most 86400 seconds")
    if args.quick and args.deep:
        parser.error("--quick loads nothing and --deep does: choose one")
    return args


@safe_streams()
def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    return exit_status(lambda: examine_all(args))


def examine_all(args: argparse.Namespace) -> int:
    """Prints the checks; 1 where one failed. Raises UserError for a configuration that cannot be used."""
    try:
        from agentic_iqa_local.offline.doctor import Setup, examine
    except ImportError as error:
        print(
            f"error: expected the project's environment, {error}; run {command('doctor', made=True)}, in the"
            " project's own environment",
            file=sys.stderr,
        )
        return 1
    setup, checks = Setup(chosen_settings(args), args.gpu, args.cpu, args.quick), []
    for check in examine(setup, deep=args.deep, timeout=args.timeout):
        checks.append(check)
        if not args.json:
            print(as_text(check), flush=True)
    count = Counter(check.status for check in checks)
    if args.json:
        print(json.dumps({"ok": not count["fail"], "checks": [asdict(check) for check in checks]}))
    else:
        print(f"\n{count['pass']} passed, {count['warn']} warned, {count['fail']} failed")
    return 1 if count["fail"] else 0


def as_text(check: "Check", width: int = 118) -> str:
    """A check as aligned lines: status, seconds, name, what was found; and the remedy below."""
    head = f"{check.status}  {check.seconds:6.1f} s  {check.name:<30} "
    lines = []
    for text in (check.found, check.remedy and f"remedy: {check.remedy}"):
        indent = " " * 47
        lines += textwrap.wrap(
            text,
            width,
            initial_indent=indent,
            subsequent_indent=indent,
            break_on_hyphens=False,
            break_long_words=False,
        )
    if len(head) <= 47:
        return "\n".join([head + lines[0][len(head) :], *lines[1:]])
    return "\n".join([head, *lines])
