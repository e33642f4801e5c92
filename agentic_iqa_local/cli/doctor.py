"""Examines whether a set-up will work on this machine, without any network, and says what to do where it will
not.

examples:
  {doctor}                                      the embedded model, on a GPU if there is one
  {doctor} --config qwen2_5_vl_7b --gpu 0
  {doctor} --config mine.yaml --engine vllm --gpu 0 --models /srv/iqa-models
  {doctor} --quick --json                       nothing is loaded: for a health check

Versions, driver and device; the models folder against its manifest; caches; memory against what weights,
cache and tools need; then every model and every available tool is loaded and run on a small picture, each in
turn and timed, in a process whose connections are refused.

Exit status: 0 nothing failed, 1 something failed, 2 wrong usage, 130 interrupted.
"""

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from dataclasses import asdict
from typing import TYPE_CHECKING

from agentic_iqa_local.cli import add_set_up, chosen_settings
from agentic_iqa_local.cli.console import Parser, exit_status, safe_streams
from agentic_iqa_local.paths import command

if TYPE_CHECKING:
    from agentic_iqa_local.offline.doctor import Check

LONGEST = 86_400  # seconds that one check may be given


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = Parser.of("doctor", __doc__)
    add_set_up(parser)
    parser.add_argument(
        "--quick", action="store_true", help="load no model and no tool, and read no file whole"
    )
    parser.add_argument(
        "--timeout", type=float, metavar="S", help="seconds that one check may take (default: 300)"
    )
    parser.add_argument(
        "--json", action="store_true", help="one JSON object on stdout, and nothing else there"
    )
    args = parser.parse_args(argv)
    if args.timeout is not None and not 0 < args.timeout <= LONGEST:
        parser.error(f"--timeout: expected more than 0 and at most {LONGEST} seconds")
    return args


@safe_streams()
def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    return exit_status(lambda: examine_all(args))


def examine_all(args: argparse.Namespace) -> int:
    """Prints the checks; 1 where one failed. Raises UserError for a configuration that cannot be used."""
    try:
        from agentic_iqa_local.offline.doctor import TIMEOUT, examine
    except ImportError as error:
        print(
            f"error: expected the project's environment, {error}; "
            f"run {command('doctor', made=True)}, in the project's own environment",
            file=sys.stderr,
        )
        return 1
    results = examine(
        chosen_settings(args), gpu=args.gpu, cpu=args.cpu, quick=args.quick, timeout=args.timeout or TIMEOUT
    )
    checks: list[Check] = []
    try:
        with closing(results):
            show(results, checks, args.json)
    except BrokenPipeError:  # the reader of our stdout has gone, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print(f"error: stdout: a check could not be written ({error.strerror})", file=sys.stderr)
        return 1
    return 1 if any(check.status == "fail" for check in checks) else 0


def show(results: Iterable["Check"], checks: list["Check"], as_json: bool) -> None:
    """Prints the checks as they come and puts them into `checks`; as JSON, one object at the end."""
    from agentic_iqa_local.offline.doctor import as_text

    for check in results:
        checks.append(check)
        if not as_json:
            print(as_text(check), flush=True)
    count = Counter(check.status for check in checks)
    if as_json:
        print(
            json.dumps({"ok": not count["fail"], "checks": [asdict(check) for check in checks]}), flush=True
        )
    else:
        print(f"\n{count['pass']} passed, {count['warn']} warned, {count['fail']} failed", flush=True)
