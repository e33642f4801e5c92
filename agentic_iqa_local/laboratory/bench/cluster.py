"""A cluster of this machine against the plain batch: equal rows, rates, and a node that is unlike the
others."""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from PIL import Image

from agentic_iqa_local.laboratory.bench.setup import PACKAGES, progress
from agentic_iqa_local.paths import ROOT
from agentic_iqa_local.provenance import machine

SIDES = (224, 256)
LOOK = 0.02  # seconds between two looks at the rows
TIMES = ("execution_time", "timestamp")
EXACT = """
planner: {{backend: transformers.{0}}}
executor: {{backend: transformers.{0}}}
summarizer: {{backend: transformers.{0}}}
models: {{{0}: {{exact: true}}}}
"""
NODE = {"num_cpus": 1, "object_store_memory": 100 * 2**20}


def cluster(args: argparse.Namespace) -> dict[str, Any]:
    """Rows and rates with each number of workers, and what becomes of a node that sees the packages of
    `args.overlay` before its own."""
    with TemporaryDirectory() as name:
        scratch = Path(name)
        crops(args.photos, args.images, scratch / "pictures")
        settings = exact_settings(scratch, args.model)
        runs: dict[str, Any] = {}
        plain: dict[str, Any] = {}
        for turn in range(args.turns):
            for workers in (0, *args.workers):
                arm = f"{workers} workers" if workers else "plain batch"
                progress(f"{arm}, turn {turn + 1} of {args.turns}")
                where = ["--cluster", "local", "--workers", str(workers)] if workers else []
                out = scratch / f"{workers}-{turn}.jsonl"
                run = timed(assess(settings, scratch / "pictures", out, *where), out)
                plain = plain or rows_of(out)
                runs.setdefault(arm, []).append(run | compared(rows_of(out), plain))
        found = {
            "pictures": args.images,
            "sides": SIDES,
            "threads": os.environ.get("OMP_NUM_THREADS"),
            "runs": runs,
            **ratios(runs),
        }
        if args.overlay:
            progress("a node with other packages")
            found["unlike_node"] = unlike(args.overlay, settings, scratch)
    return found | machine((*PACKAGES, "ray"))


def crops(photos: Path, count: int, folder: Path) -> None:
    """Crops of photographs, of two sizes and many JPEG qualities."""
    folder.mkdir()
    kinds = {".png", ".jpg", ".jpeg", ".webp"}
    files = sorted(file for file in photos.rglob("*") if file.suffix.lower() in kinds)
    if not files:
        raise FileNotFoundError(f"{photos}: expected photographs, found none")
    rng = np.random.default_rng(0)
    for number in range(count):
        with Image.open(files[number % len(files)]) as photo:
            side = SIDES[number % len(SIDES)]
            left, top = (int(rng.integers(0, size - side + 1)) for size in photo.size)
            crop = photo.convert("RGB").crop((left, top, left + side, top + side))
        crop.save(folder / f"{number:04}.jpg", quality=int(rng.integers(20, 95)))


def exact_settings(scratch: Path, model: Path) -> Path:
    """A configuration of a model that assesses one picture at a time, by kernels that give the same bits."""
    os.environ["AGENTIC_IQA_MODELS"] = str(model.parent.absolute())
    (scratch / "exact.yaml").write_text(EXACT.format(model.name), encoding="utf-8")
    return scratch / "exact.yaml"


def assess(settings: Path, pictures: Path, out: Path, *more: str) -> list[str]:
    """The command line that writes the rows of a folder of pictures."""
    words = ["assess.py", pictures, "--cpu", "--config", settings, "--pipeline", "letters", "--out", out]
    return [sys.executable, *map(str, [ROOT / "scripts" / words[0], *words[1:], *more])]


def timed(command: Sequence[str], out: Path) -> dict[str, float]:
    """Seconds of a command, and of its rows between the first and the last. Raises SystemExit where it
    fails."""
    began, seen, log = time.monotonic(), [], out.with_suffix(".log")
    with (
        log.open("w") as errors,
        subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors) as process,
    ):
        while process.poll() is None:
            time.sleep(LOOK)
            size = out.stat().st_size if out.exists() else 0
            if not seen or size > seen[-1][1]:
                seen.append((time.monotonic(), size))
    if process.returncode:
        raise SystemExit(f"assess ended with {process.returncode}: {log.read_text()[-2000:]}")
    first = next(when for when, size in seen if size)
    between, rows = max(seen[-1][0] - first, LOOK), len(out.read_bytes().splitlines())
    return {
        "seconds": round(time.monotonic() - began, 2),
        "seconds_between_rows": round(between, 2),
        "rows_per_second": round((rows - 1) / between, 3),
    }


def rows_of(file: Path) -> dict[str, dict[str, Any]]:
    """Rows without their times, by picture."""
    rows = map(json.loads, file.read_text(encoding="utf-8").splitlines())
    return {row["image"]: without_times(row) for row in rows}


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        kept = (name for name in value if not name.endswith("seconds") and name not in TIMES)
        return {name: without_times(value[name]) for name in kept}
    return [without_times(part) for part in value] if isinstance(value, list) else value


def compared(rows: dict[str, Any], plain: dict[str, Any]) -> dict[str, Any]:
    """Whether the rows are equal as JSON text, and which are not."""
    text = {name: json.dumps(row) for name, row in rows.items()}
    unequal = [name for name in plain if text.get(name) != json.dumps(plain[name])]
    return {
        "equal_but_for_times": not unequal and rows.keys() == plain.keys(),
        "unequal": [Path(name).name for name in unequal[:10]],
        "failed_rows": sum(row["error"] is not None for row in rows.values()),
    }


def ratios(runs: dict[str, list[dict[str, Any]]]) -> dict[str, float]:
    """Of the medians over all turns."""

    def median(workers: str, figure: str) -> float:
        return statistics.median(run[figure] for run in runs[workers])

    found = {}
    if "1 workers" in runs:
        for name, figure in (("without", "seconds_between_rows"), ("with", "seconds")):
            found[f"overhead_{name}_start"] = median("1 workers", figure) / median("plain batch", figure) - 1
    if {"1 workers", "2 workers"} <= runs.keys():
        rate = "rows_per_second"
        found["two_workers_against_one"] = median("2 workers", rate) / median("1 workers", rate)
    return {name: round(value, 3) for name, value in found.items()}


@contextmanager
def nodes() -> Iterator[tuple[str, Callable[..., Any], Any]]:
    """A Ray cluster on the loopback: its address, what adds a node (with variables of its environment), and
    the cluster. Its head computes nothing."""
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "token", "RAY_worker_niceness": "0"}
    os.environ.setdefault("RAY_AUTH_TOKEN", os.urandom(32).hex())
    from ray.cluster_utils import Cluster

    made: Any = Cluster(initialize_head=True, head_node_args=NODE | {"num_cpus": 0})
    own = {
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        "AGENTIC_IQA_MODELS": os.environ["AGENTIC_IQA_MODELS"],
    }

    def add(**environment: str) -> Any:
        return made.add_node(**NODE, env_vars=own | environment)

    try:
        yield f"127.0.0.1:{made.gcs_address.rpartition(':')[2]}", add, made
    finally:
        made.shutdown()


def unlike(overlay: Path, settings: Path, scratch: Path) -> dict[str, Any]:
    """What the command says where one of two nodes has the packages of `overlay` before its own."""
    out = scratch / "unlike.jsonl"
    with nodes() as (address, add, _):
        add()
        add(PYTHONPATH=os.pathsep.join([str(overlay.absolute()), str(ROOT)]))
        command = assess(settings, scratch / "pictures", out, "--cluster", address, "--workers", "2")
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    return {
        "status": done.returncode,
        "rows": len(out.read_bytes().splitlines()) if out.exists() else 0,
        "says": [line for line in done.stderr.splitlines() if line.startswith("error")],
    }
