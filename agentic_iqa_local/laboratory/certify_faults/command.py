"""Plants faults, one at a time, in copies of the checkout, runs certify on each, and on the sound checkout.

    python -m agentic_iqa_local.laboratory.certify_faults.command --out benchmarks/certify/faults.json
    python -m agentic_iqa_local.laboratory.certify_faults.command --only template --sound 0
    python -m agentic_iqa_local.laboratory.certify_faults.command --no-faults --out sound.json

A fault is found where certify's exit status is 1, and named where a sentence of a failed check says what it
is. A sound run must end with 0. Faults run with --quick, the sound checkout without it. What the file of
--out has already is kept, so that the same command goes on where it was stopped: remove the file to begin
anew.

Exit status: 0 every fault found and named and no alarm on the sound checkout, 1 otherwise, 2 wrong usage.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from agentic_iqa_local.batch.rows import write_whole
from agentic_iqa_local.cli.console import Parser, exit_status, safe_streams
from agentic_iqa_local.laboratory.certify_faults.faults import FAULTS, Fault
from agentic_iqa_local.paths import ROOT
from agentic_iqa_local.provenance import SCORING, commit, machine

COPIED = ("agentic_iqa_local", "configs", "models", "tests/data")


@safe_streams()
def main(argv: list[str] | None = None) -> int:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, metavar="FILE", help="JSON; default: stdout")
    parser.add_argument("--only", default="", metavar="TEXT", help="faults whose name holds TEXT")
    parser.add_argument(
        "--sound", type=int, default=5, metavar="N", help="runs of the sound checkout (default: 5)"
    )
    parser.add_argument("--no-faults", action="store_true", help="the sound checkout alone")
    parser.add_argument(
        "--relevant", action="store_true", help="run only the checks that should find the fault"
    )
    args = parser.parse_args(argv)
    return exit_status(lambda: run(args))


def run(args: argparse.Namespace) -> int:
    """1 where a fault was missed or a sound run gave an alarm."""
    report: dict[str, Any] = {"date": time.strftime("%Y-%m-%d"), "commit": commit()}
    report |= {"environment": machine(SCORING)} | _done(args.out)
    done = {one["fault"] for one in report["faults"]}
    for number in range(len(report["sound"]), args.sound):
        report["sound"].append(sound_run())
        _say(f"sound run {number + 1}: {report['sound'][-1]['verdict']}", args.out, report)
    wanted = () if args.no_faults else FAULTS
    for fault in (each for each in wanted if args.only in each.name and each.name not in done):
        report["faults"].append(found := faulty_run(fault, args.relevant))
        told = "found and named" if found["named"] else "found, not named" if found["found"] else "MISSED"
        _say(f"{fault.name}: {told}; {found['sentence']}", args.out, report)
    if not args.out:
        print(json.dumps(report, indent=1, ensure_ascii=False))
    missed = [one["fault"] for one in report["faults"] if not one["named"]]
    return 1 if missed or any(one["status"] != 0 for one in report["sound"]) else 0


def _done(out: Path | None) -> dict[str, Any]:
    """What an earlier call found."""
    earlier = json.loads(out.read_text(encoding="utf-8")) if out and out.is_file() else {}
    return {name: earlier.get(name, []) for name in ("faults", "sound")}


def _say(line: str, out: Path | None, report: dict[str, Any]) -> None:
    print(line, file=sys.stderr, flush=True)
    if out:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_whole(out, json.dumps(report, indent=1, ensure_ascii=False))


def sound_run() -> dict[str, Any]:
    """One whole run of the checkout as it is."""
    with tempfile.TemporaryDirectory(prefix="certify-sound-") as scratch:
        status, seconds, report = certify(ROOT, Path(scratch))
    failed = {one["name"]: one["problems"] for one in report["checks"] if one["status"] == "fail"}
    return {"status": status, "seconds": seconds, "verdict": report["verdict"], "failed": failed}


def faulty_run(fault: Fault, relevant: bool) -> dict[str, Any]:
    """A quick run of a copy with the fault, or one of the `relevant` checks."""
    with tempfile.TemporaryDirectory(prefix="certify-fault-") as scratch:
        tree = Path(scratch) / "tree"
        for part in COPIED:
            shutil.copytree(ROOT / part, tree / part)
        fault.plant(tree)
        options = ("--only", fault.checks) if relevant else ("--quick",)
        status, seconds, report = certify(tree, Path(scratch) / "out", *options)
    failed = [one for one in report["checks"] if one["status"] == "fail"]
    sentences = [problem for one in failed for problem in one["problems"]]
    naming = next((text for text in sentences if fault.is_named([text])), None)
    return {
        "fault": fault.name,
        "planted_in": fault.where,
        "found": status == 1,
        "named": status == 1 and naming is not None,
        "ran": [one["name"] for one in report["checks"]],
        "failed": [one["name"] for one in failed],
        "sentence": naming or (sentences[0] if sentences else report["verdict"]),
        "seconds": seconds,
    }


def certify(tree: Path, out: Path, *options: str) -> tuple[int, float, dict[str, Any]]:
    """(exit status, seconds, certificate.json) of certify in a checkout. Raises OSError where it wrote
    none."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("AGENTIC_IQA_")}
    command = [sys.executable, "-m", "agentic_iqa_local", "certify", "--cpu", "--out", str(out)]
    began = time.monotonic()
    ended = subprocess.run(
        [*command, *options],
        cwd=tree,
        env=environment | {"PYTHONPATH": str(tree)},
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = round(time.monotonic() - began, 1)
    if not (out / "certificate.json").is_file():
        raise OSError(f"certify in {tree} wrote nothing: {ended.stderr[-500:]}")
    return ended.returncode, seconds, json.loads((out / "certificate.json").read_text(encoding="utf-8"))


if __name__ == "__main__":
    sys.exit(main())
