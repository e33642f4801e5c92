"""Kills of a run again and again, and the memory of a long one."""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
from PIL import Image

from agentic_iqa_local.paths import ROOT


def whole_lines(file: Path) -> bytes:
    content = file.read_bytes() if file.exists() else b""
    return content[: content.rfind(b"\n") + 1]


def kill(args: argparse.Namespace) -> dict:
    """Raises SystemExit with the first row that was lost, changed or doubled."""
    rng, kept, torn, kills = np.random.default_rng(args.seed), b"", 0, 0
    while kills < args.kills:
        _start_and_kill(args, kills, len(kept), rng)
        kills += 1
        torn += len(args.rows.read_bytes()) > len(whole_lines(args.rows))
        kept = _same_beginning(args.rows, kept, kills)
        print(f"{kills} kills, {len(kept.splitlines())} rows", file=sys.stderr, flush=True)
    done = subprocess.run(args.run, check=False, stdout=subprocess.DEVNULL)
    if done.returncode:
        raise SystemExit(f"the last, whole run ended with {done.returncode}")
    rows = [json.loads(line) for line in _same_beginning(args.rows, kept, kills).splitlines()]
    keys = [row.get("key") or row["image"] for row in rows]
    if doubled := {key for key in keys if keys.count(key) > 1}:
        raise SystemExit(f"doubled: {sorted(doubled)}")
    return {
        "kills": kills,
        "torn_lines": torn,
        "rows": len(rows),
        "failed_rows": sum(row.get("error") is not None for row in rows),
        "command": [Path(part).name if Path(part).is_absolute() else part for part in args.run],
    }


def _start_and_kill(args: argparse.Namespace, kills: int, kept: int, rng: np.random.Generator) -> None:
    """Starts the command and kills it at a random moment after its first new row, of which there are `kept`
    bytes; every fourth time after its start. Raises SystemExit where it ends before."""
    process = subprocess.Popen(
        args.run, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    loading = kills % 4 == 3
    while not loading and process.poll() is None and len(whole_lines(args.rows)) <= kept:
        time.sleep(0.01)
    time.sleep(rng.uniform(0, args.within))
    if process.poll() is not None:
        raise SystemExit(
            f"the command ended with {process.returncode} after {kills} kills; give it more to do"
        )
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _same_beginning(file: Path, kept: bytes, kills: int) -> bytes:
    now = whole_lines(file)
    if not now.startswith(kept):
        raise SystemExit(f"after {kills} kills a finished row is lost or changed")
    return now


def memory(args: argparse.Namespace) -> dict:
    """Resident memory of `assess.py --pipeline letters` over many pictures of 224×224, by how many have their
    rows."""
    import psutil

    photo = Image.open(ROOT / "tests" / "data" / "sumac.png").convert("RGB")
    rng, samples = np.random.default_rng(args.seed), []
    with tempfile.TemporaryDirectory() as name:
        folder, rows = Path(name) / "pictures", Path(name) / "rows.jsonl"
        folder.mkdir()
        for number in range(args.count):
            left, top = rng.integers(0, (photo.width - 224, photo.height - 224), endpoint=True).tolist()
            photo.crop((left, top, left + 224, top + 224)).save(
                folder / f"{number:05}.jpg", quality=int(rng.integers(5, 95))
            )
        command = [
            sys.executable,
            ROOT / "scripts" / "assess.py",
            "--cpu",
            "--image",
            folder,
            "--pipeline",
            "letters",
            "--out",
            rows,
        ]
        with subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL) as process:
            watched, done = psutil.Process(process.pid), 0
            while process.poll() is None:
                done = whole_lines(rows).count(b"\n")
                with suppress(psutil.NoSuchProcess):
                    samples.append((done, watched.memory_info().rss / 2**20))
                time.sleep(0.5)
        written = whole_lines(rows).splitlines()
    tenths = [
        [rss for done, rss in samples if tenth <= 10 * done / args.count < tenth + 1 and done]
        for tenth in range(10)
    ]
    medians = [round(statistics.median(tenth)) if tenth else None for tenth in tenths]
    wrong = [f"assess.py ended with {process.returncode}"] if process.returncode else []
    if len(written) != args.count:
        wrong.append(f"{len(written)} rows of {args.count} images")
    known = [median for median in medians if median is not None]
    if len(known) == len(medians) and known[-1] > 1.05 * known[1]:
        wrong.append(f"{known[-1]} MiB at the end, {known[1]} MiB at the beginning")
    return {"count": args.count, "resident_mib_by_tenth": medians, "wrong": wrong}
