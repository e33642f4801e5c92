"""Kills of workers, of a node and of the driver while a cluster works through pictures."""

import argparse
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import psutil

from agentic_iqa_local.laboratory.bench.cluster import (
    assess,
    compared,
    crops,
    exact_settings,
    nodes,
    rows_of,
    timed,
)
from agentic_iqa_local.laboratory.endurance.kills import whole_lines
from agentic_iqa_local.paths import ROOT

KINDS = ("worker", "node", "driver")
PATIENCE = 240.0  # seconds for the next rows


def cluster_kills(args: argparse.Namespace) -> dict[str, Any]:
    """Kills in random order with signal 9, until all pictures have rows; these are compared with the plain
    batch's. `wrong` has what was lost, doubled or unlike."""
    rng, killed, wrong = np.random.default_rng(args.seed), Counter(), []
    with TemporaryDirectory() as name:
        scratch = Path(name)
        crops(ROOT / "tests" / "data", args.count, scratch / "pictures")
        settings = exact_settings(scratch, args.model)
        plain, out = scratch / "plain.jsonl", scratch / "rows.jsonl"
        timed(assess(settings, scratch / "pictures", plain), plain)
        with nodes() as (address, add, cluster):
            there, kept = [add(), add()], b""
            command = assess(
                settings, scratch / "pictures", out, "--cluster", address, "--workers", "2", "--resume"
            )
            driver = _start(command, scratch)
            while sum(killed.values()) < args.kills:
                if not _more_rows(driver, out, kept, int(rng.integers(1, 6))):
                    break
                kept = _same_beginning(out, kept, wrong)
                kind = KINDS[int(rng.integers(len(KINDS)))]
                if kind == "worker":
                    _kill_a_worker(rng)
                elif kind == "node":
                    cluster.remove_node(there.pop(0), allow_graceful=False)
                    there.append(add())
                else:
                    driver.kill()
                    driver.wait()
                    driver = _start(command, scratch)
                killed[kind] += 1
                print(f"{dict(killed)}, {len(kept.splitlines())} rows", file=sys.stderr, flush=True)
            status = driver.wait()
        _same_beginning(out, kept, wrong)
        names = whole_lines(out).splitlines()
        rows = rows_of(out)
        found = compared(rows, rows_of(plain))
        if len(names) != len(rows):
            wrong.append(f"{len(names) - len(rows)} rows are doubled")
        if not found["equal_but_for_times"]:
            wrong.append(f"rows are lost or unlike: {found['unequal']}")
        if status:
            wrong.append(f"the last run ended with {status}: {(scratch / 'log').read_text()[-1000:]}")
    return {
        "kills": sum(killed.values()),
        "by_kind": dict(killed),
        "rows": len(rows),
        **found,
        "wrong": wrong,
    }


def _start(command: list[str], scratch: Path) -> subprocess.Popen:
    with (scratch / "log").open("a") as log:
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log)


def _more_rows(driver: subprocess.Popen, out: Path, kept: bytes, number: int) -> bool:
    """Waits until there are so many new rows; False where the run ends before."""
    wanted, until = kept.count(b"\n") + number, time.monotonic() + PATIENCE
    while whole_lines(out).count(b"\n") < wanted:
        if driver.poll() is not None:
            return False
        if time.monotonic() > until:
            raise SystemExit(f"no new row came within {PATIENCE:g} s")
        time.sleep(0.02)
    return True


def _same_beginning(out: Path, kept: bytes, wrong: list[str]) -> bytes:
    now = whole_lines(out)
    if not now.startswith(kept):
        wrong.append("a finished row is lost or changed")
    return now


def _kill_a_worker(rng: np.random.Generator) -> None:
    workers = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if "ray::Servant" in " ".join(process.cmdline()):
                workers.append(process.pid)
    if workers:
        with suppress(ProcessLookupError):
            os.kill(int(rng.choice(sorted(workers))), signal.SIGKILL)
