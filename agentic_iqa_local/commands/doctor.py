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
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

from agentic_iqa_local.commands import chosen_settings
from agentic_iqa_local.commands.console import Parser, exit_status, safe_streams
from agentic_iqa_local.paths import command

LONGEST = 86_400  # seconds that one check may be given


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = Parser(
        prog=command("doctor").removeprefix("python "),
        description=__doc__.replace("{doctor}", command("doctor")),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    device = parser.add_mutually_exclusive_group()
    device.add_argument(
        "--gpu", metavar="N", help="GPU by index, UUID or MIG name (default: GPU 0 if there is one)"
    )
    device.add_argument("--cpu", action="store_true", help="the CPU")
    parser.add_argument(
        "--config", metavar="NAME", help="a set-up of configs/ by name, or a YAML file (default: embedded)"
    )
    parser.add_argument(
        "--engine",
        choices=("transformers", "vllm", "server"),
        help="what serves the model (default: the configuration's)",
    )
    parser.add_argument("--model", metavar="NAME", help="a model below the models folder, or a folder")
    parser.add_argument(
        "--models",
        type=Path,
        metavar="DIR",
        help="the models folder (default: $AGENTIC_IQA_MODELS, else models/)",
    )
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
    try:
        from agentic_iqa_local.doctor import TIMEOUT, as_text, examine
    except ImportError as error:
        print(
            f"error: expected the project's environment, {error}; "
            f"run {command('doctor', made=True)}, in the project's own environment",
            file=sys.stderr,
        )
        return 1
    settings = chosen_settings(args)
    checks = []
    try:
        with closing(
            examine(settings, gpu=args.gpu, cpu=args.cpu, quick=args.quick, timeout=args.timeout or TIMEOUT)
        ) as found:
            for check in found:
                checks.append(check)
                if not args.json:
                    print(as_text(check), flush=True)
        failed = [check for check in checks if check.status == "fail"]
        if args.json:
            print(json.dumps({"ok": not failed, "checks": [asdict(check) for check in checks]}), flush=True)
        else:
            count = Counter(check.status for check in checks)
            print(f"\n{count['pass']} passed, {count['warn']} warned, {count['fail']} failed", flush=True)
        return 1 if failed else 0
    except BrokenPipeError:  # the reader of our stdout has gone, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1 if any(check.status == "fail" for check in checks) else 0
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print(f"error: stdout: a check could not be written ({error.strerror})", file=sys.stderr)
        return 1
