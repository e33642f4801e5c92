"""Examines whether a set-up will work on this machine, without any network, and says what to do where it will not.

examples:
  {doctor}                                      the embedded model, on a GPU if there is one
  {doctor} --config qwen2_5_vl_7b --gpu 0 --deep   in the first hour on new hardware
  {doctor} --quick --json                       nothing is loaded: for a health check

The model and every tool are run on a small picture, in a process whose connections are refused. --deep compares
letters and tools with plain passes, each with its bound (docs/models.md). Exit status: 0 nothing failed, 1
something failed, 2 wrong usage, 130 interrupted.
"""

import argparse
import json
from collections import Counter
from dataclasses import asdict

from agentic_iqa_local.cli.command import Command, Parser
from agentic_iqa_local.cli.options import SET_UP, add, add_options, chosen_settings

DEPTH = """
--quick      load no model and no tool, and read no file whole
--deep       also compare letters and tools, in minutes
"""
OPTIONS = """
--timeout S  seconds that one check may take (default: 300)
--json       one JSON object on stdout, and nothing else there
"""


def options(parser: Parser) -> None:
    add_options(parser, *SET_UP)
    add(parser.add_mutually_exclusive_group(), DEPTH)
    add(parser, OPTIONS)


def examine_all(args: argparse.Namespace) -> int:
    """Prints the checks; 1 where one failed. Raises UserError for a configuration that cannot be used."""
    from agentic_iqa_local.offline.doctor import Setup, examine

    setup, checks = Setup(chosen_settings(args), args.gpu, args.cpu, args.quick), []
    for check in examine(setup, deep=args.deep, timeout=args.timeout):
        checks.append(check)
        if not args.json:
            remedy = f"\n                remedy: {check.remedy}" if check.remedy else ""
            print(f"{check.status}  {check.seconds:6.1f} s  {check.name}: {check.found}{remedy}", flush=True)
    count = Counter(check.status for check in checks)
    if args.json:
        print(json.dumps({"ok": not count["fail"], "checks": [asdict(check) for check in checks]}))
    else:
        print(f"\n{count['pass']} passed, {count['warn']} warned, {count['fail']} failed")
    return 1 if count["fail"] else 0


main = Command("doctor", __doc__, options, examine_all)
