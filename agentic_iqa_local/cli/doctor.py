"""Examines whether a set-up will work on this machine, without any network, and says what to do where it will not.

examples:
  {doctor}                                      the embedded model, on a GPU if there is one
  {doctor} --config qwen2_5_vl_7b --gpu 0 --deep   in the first hour on new hardware
  {doctor} --quick --json                       nothing is loaded: for a health check

The model and every tool are run on a small picture, in a process whose connections are refused. --deep compares
letters, engines and tools with plain passes, each with its bound (docs/engines.md). Exit status: 0 nothing failed, 1
something failed, 2 wrong usage, 130 interrupted.
"""

import argparse
import json
from collections import Counter
from dataclasses import asdict

from agentic_iqa_local.cli.command import Parser, UsageError, run_command
from agentic_iqa_local.cli.options import add_set_up, chosen_settings, number
from agentic_iqa_local.files import command


def main(argv: list[str] | None = None) -> int:
    parser = Parser.of("doctor", __doc__)
    add_set_up(parser)
    about = "load no model and no tool, and read no file whole"
    depth = parser.add_mutually_exclusive_group()
    depth.add_argument("--quick", action="store_true", help=about)
    depth.add_argument("--deep", action="store_true", help="also compare letters, engines and tools, in minutes")
    about = "seconds that one check may take (default: 300)"
    parser.add_argument("--timeout", type=number(float, 0.1, 86_400), default=300.0, metavar="S", help=about)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout, and nothing else there")
    return run_command(parser.parse_args, examine_all, argv)


def examine_all(args: argparse.Namespace) -> int:
    """Prints the checks; 1 where one failed. Raises UserError for a configuration that cannot be used."""
    try:
        from agentic_iqa_local.offline.doctor import Setup, examine
    except ImportError as error:
        remedy = f"run {command('doctor', made=True)}"
        raise UsageError(f"expected the project's environment, {error}", remedy) from error
    setup, checks = Setup(chosen_settings(args), args.gpu, args.cpu, args.quick), []
    for check in examine(setup, deep=args.deep, timeout=args.timeout):
        checks.append(check)
        if not args.json:
            print(f"{check.status}  {check.seconds:6.1f} s  {check.name}: {check.found}", flush=True)
        if check.remedy and not args.json:
            print(f"                remedy: {check.remedy}")
    count = Counter(check.status for check in checks)
    if args.json:
        print(json.dumps({"ok": not count["fail"], "checks": [asdict(check) for check in checks]}))
    else:
        print(f"\n{count['pass']} passed, {count['warn']} warned, {count['fail']} failed")
    return 1 if count["fail"] else 0
