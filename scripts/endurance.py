#!/usr/bin/env python
"""Kills a run again and again and checks that nothing is lost and nothing doubled. The long form of what the tests do in short.

    python scripts/endurance.py kill --rows runs/x/rows.jsonl --out benchmarks/studies/kill.json -- \\
        python scripts/study.py run data.csv --out runs/x

The command after -- must go on where it stopped when it is run again.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("kill", help="kill -9 at random moments, then let it end")
    command.add_argument("--rows", type=Path, required=True, metavar="FILE", help="JSON lines that the command writes")
    command.add_argument("--kills", type=int, default=20, help="default: %(default)s")
    command.add_argument("--within", type=float, default=5.0, metavar="S", help="kill at most S seconds after a first new row")
    command.add_argument("--seed", type=int, default=0, help="of the moments (default: %(default)s)")
    command.add_argument("--out", type=Path, metavar="FILE", help="result (JSON; default: printed)")
    command.add_argument("run", nargs="+", help="the command, after --")
    return parser.parse_args()


def whole_lines(file: Path) -> bytes:
    content = file.read_bytes() if file.exists() else b""
    return content[: content.rfind(b"\n") + 1]


def kill(args: argparse.Namespace) -> dict:
    """Raises SystemExit with the first row that was lost, changed or doubled."""
    rng, kept, torn, kills = np.random.default_rng(args.seed), b"", 0, 0
    while kills < args.kills:
        process = subprocess.Popen(args.run, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        while process.poll() is None and len(whole_lines(args.rows)) <= len(kept):
            time.sleep(0.01)
        time.sleep(rng.uniform(0, args.within))
        if process.poll() is not None:
            raise SystemExit(f"the command ended with {process.returncode} after {kills} kills; give it more to do")
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
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
        "failed_rows": sum("error" in row and row["error"] is not None for row in rows),
    }


def _same_beginning(file: Path, kept: bytes, kills: int) -> bytes:
    now = whole_lines(file)
    if not now.startswith(kept):
        raise SystemExit(f"after {kills} kills a finished row is lost or changed")
    return now


def main() -> None:
    args = parse()
    command = [Path(part).name if Path(part).is_absolute() else part for part in args.run]
    found = kill(args) | {"command": command, "date": time.strftime("%Y-%m-%d")}
    text = json.dumps(found, indent=1) + "\n"
    if args.out:
        args.out.write_text(text, encoding="utf-8")
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
