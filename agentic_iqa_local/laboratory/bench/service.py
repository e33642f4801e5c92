"""The service against the batch command on the same pictures, many clients at once, and more than fit."""

import argparse
import hashlib
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from agentic_iqa_local.errors import UserError
from agentic_iqa_local.laboratory.bench.setup import PACKAGES, pictures, progress
from agentic_iqa_local.paths import ROOT

RATE_BAR = 0.9  # of the batch command's rate
STARTS_WITHIN = 600.0  # seconds
SERVED_BY = ("fastapi", "starlette", "uvicorn", "h11", "python-multipart")


def service(args: argparse.Namespace) -> dict:
    """Rates of the service and of the batch command in turns, over the pictures after the first; then
    `args.requests` by `args.clients` clients; then four times as many at once as may wait. Raises UserError
    where one of the two does not run."""
    from agentic_iqa_local.devices import choose_device, describe_device
    from agentic_iqa_local.provenance import machine

    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "pictures"
        folder.mkdir()
        pairs = pictures(max(args.images, args.requests), args.side, Path(scratch), "service")
        files = [one.rename(folder / one.name) for one, _ in pairs]
        listed = Path(scratch) / "batch"
        listed.mkdir()
        for file in files[: args.images]:
            (listed / file.name).hardlink_to(file)
        with _served(args, Path(scratch)) as client:
            _ask(client, files[0])
            rounds = []
            for number in range(1, args.rounds + 1):
                progress(f"service: round {number} of {args.rounds}")
                batch = _batch_rate(args, listed, Path(scratch) / f"rows_{number}.jsonl")
                times = sorted(one["ended"] for one in _asked(client, files[: args.images], args.at_once))
                ours = (len(times) - 1) / (times[-1] - times[0])
                rounds.append({"batch": batch, "service": ours, "ratio": ours / batch})
            progress(f"service: {args.requests} requests by {args.clients} clients")
            crowd = _crowd(client, files[: args.requests], args.clients)
            progress("service: more at once than may wait")
            overload = _overload(client, files, 4 * args.clients)
            info = client.get("/v1/info").json()
    return {
        "service": {
            "images": args.images,
            "side": args.side,
            "pipeline": args.pipeline,
            "jobs": args.jobs,
            "at_once": args.at_once,
            "rounds": rounds,
            "median_ratio": statistics.median(one["ratio"] for one in rounds),
            "bar": RATE_BAR,
            "crowd": crowd,
            "overload": overload,
        },
        "model": f"service, {info['model']}",
        "environment": machine((*PACKAGES, *SERVED_BY))
        | {
            "device": describe_device(choose_device(args.gpu, args.gpu is None)),
            "threads": os.environ.get("OMP_NUM_THREADS"),
        },
        "date": time.strftime("%Y-%m-%d"),
    }


def _how(args: argparse.Namespace) -> list[str]:
    place = ["--gpu", args.gpu] if args.gpu else ["--cpu"]
    model = ["--model", str(args.model)] if args.model else []
    return [*place, *model, "--pipeline", args.pipeline, "--jobs", str(args.jobs)]


def _command(name: str, *words: str) -> list[str]:
    return [sys.executable, "-m", "agentic_iqa_local", name, *words]


@contextmanager
def _served(args: argparse.Namespace, scratch: Path) -> Iterator[httpx.Client]:
    """The service, loaded, with room for `args.clients` that wait."""
    words = ["--port", "0", "--queue", str(args.clients), "--batches", str(scratch / "spool")]
    log = scratch / "service.log"
    with log.open("w") as errors:
        process = subprocess.Popen(_command("serve", *words, *_how(args)), cwd=ROOT, stderr=errors)
    try:
        until = time.monotonic() + STARTS_WITHIN
        while not (found := re.search(r"http://\S+:\d+", log.read_text())):
            _check(process, log, until)
            time.sleep(0.1)
        limits = httpx.Limits(max_connections=None)
        with httpx.Client(base_url=found[0], timeout=600, limits=limits, trust_env=False) as client:
            while client.get("/healthz").status_code != 200:
                _check(process, log, until)
                time.sleep(0.2)
            yield client
    finally:
        process.terminate()
        process.wait(60)


def _check(process: subprocess.Popen, log: Path, until: float) -> None:
    if process.poll() is not None or time.monotonic() > until:
        raise UserError("the service did not start", log.read_text()[-500:])


def _batch_rate(args: argparse.Namespace, folder: Path, out: Path) -> float:
    """Rows a second of the batch command, from its first row to its last."""
    words = [str(folder), "--out", str(out), *_how(args)]
    log = out.with_suffix(".log")
    seen: list[float] = []
    with log.open("w") as errors:
        process = subprocess.Popen(
            _command("assess", *words), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=errors
        )
    while process.poll() is None:
        rows = out.read_bytes().count(b"\n") if out.is_file() else 0
        seen += [time.monotonic()] * (rows - len(seen))
        time.sleep(0.01)
    if process.returncode or len(seen) < args.images:
        raise UserError(f"the batch command has {len(seen)} of {args.images} rows", log.read_text()[-500:])
    return (len(seen) - 1) / (seen[-1] - seen[0])


def _ask(client: httpx.Client, file: Path) -> dict:
    """One request, and what became of it; `status` 0 where the connection was lost."""
    data = file.read_bytes()
    began = time.monotonic()
    try:
        answer = client.post("/v1/assess", files={"image": (file.name, data)})
    except httpx.HTTPError as error:
        return {"status": 0, "error": repr(error)}
    found: dict[str, Any] = {
        "status": answer.status_code,
        "ended": time.monotonic(),
        "retry": answer.headers.get("retry-after"),
    }
    found["seconds"] = found["ended"] - began
    if answer.status_code == 200:
        row = answer.json()
        found["own"] = row["sha256"] == hashlib.sha256(data).hexdigest() and row["image"] == file.name
    return found


def _asked(client: httpx.Client, files: Sequence[Path], at_once: int) -> list[dict]:
    with ThreadPoolExecutor(at_once) as pool:
        found = list(pool.map(lambda file: _ask(client, file), files))
    if wrong := [one for one in found if one["status"] != 200]:
        raise UserError(f"{len(wrong)} of {len(found)} requests have no answer", str(wrong[0]))
    return found


def _crowd(client: httpx.Client, files: Sequence[Path], clients: int) -> dict:
    began = time.monotonic()
    with ThreadPoolExecutor(clients) as pool:
        found = list(pool.map(lambda file: _ask(client, file), files))
    whole = time.monotonic() - began
    seconds = sorted(one["seconds"] for one in found if one["status"] == 200)
    return {
        "clients": clients,
        "requests": len(files),
        "lost": sum(one["status"] != 200 for one in found),
        "crossed": sum(one["status"] == 200 and not one["own"] for one in found),
        "requests_a_second": len(seconds) / whole,
        "median_seconds": statistics.median(seconds),
        "p95_seconds": statistics.quantiles(seconds, n=20)[-1],
        "longest_seconds": seconds[-1],
    }


def _overload(client: httpx.Client, files: Sequence[Path], at_once: int) -> dict:
    """So many requests begin in the same moment."""
    begin = threading.Barrier(at_once)

    def ask(number: int) -> dict:
        begin.wait()
        return _ask(client, files[number % len(files)])

    with ThreadPoolExecutor(at_once) as pool:
        found = list(pool.map(ask, range(at_once)))
    refused = [one for one in found if one["status"] == 429]
    return {
        "at_once": at_once,
        "statuses": dict(Counter(str(one["status"]) for one in found)),
        "dropped": sum(one["status"] == 0 for one in found),
        "refused_without_retry_after": sum(not (one["retry"] or "").isdigit() for one in refused),
    }
