#!/usr/bin/env python
"""What users' calls answer, recorded once and compared after every change: the contract that a rebuild keeps.

python scripts/contract/contract.py record
python scripts/contract/contract.py check [--only NAME ...] [--jobs 2]

Calls are command lines (calls.py) and Python calls (python_calls.py) on sample photographs and on drawn pictures
(pictures.py). Numbers are equal within 1e-6. Of prose, times, versions and paths it keeps only whether they are there.
"""

import argparse
import ast
import json
import math
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import pictures
from calls import CALLS, LONGEST, Shell

HERE = Path(__file__).resolve().parent
RECORD = HERE / "recorded.json"
TOLERANCE = 1e-6
LONG = ("study", "resumed", "killed")  # begun first, so that no core waits for them at the end

# Texts for people, whose wording may change: kept as "<text>", so that only their being there counts.
PROSE = {
    "quality_reasoning", "explanation", "replan_history", "replan_reason", "warnings", "notes",
    "notice", "uncertainty", "disagreement", "seen", "measured", "concluded", "changed", "asked", "gaps", "not_sure",
    "no_interval", "no_map", "not_drawn", "error", "remedy", "message", "output", "widened", "measurement", "text",
    "caption", "title", "summary",
}  # fmt: skip
# What differs from run to run or from machine to machine: kept as "<varies>" where it is not null.
VARIES = {
    "execution_time",
    "timestamp",
    "hardware",
    "torch",
    "engine",
    "date",
    "git",
    "version",
    "versions",
    "command",
}


def varies(name: str) -> bool:
    return name in VARIES or "seconds" in name


def kept(value: Any, folder: str, key: str = "") -> Any:
    """What is compared of an answer."""
    if isinstance(value, dict):
        return {
            name: "<varies>" if varies(name) and one is not None else kept(one, folder, name)
            for name, one in value.items()
        }
    if isinstance(value, list | tuple):
        return [kept(one, folder, key) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if not isinstance(value, str):
        return value
    if key == "plan_corrections":  # which field of the plan was corrected
        return value.split(":")[0]
    if key in PROSE:
        return "<text>" if value else ""
    return value.replace(f"{folder}/", "").replace(f"{pictures.ROOT}/", "")


def differences(before: Any, after: Any, path: str = "") -> list[str]:
    """One line for each place where two answers differ."""
    if isinstance(before, dict) and isinstance(after, dict):
        found = []
        for name in [*before, *(name for name in after if name not in before)]:
            place = f"{path}.{name}" if path else name
            if name in before and name in after:
                found += differences(before[name], after[name], place)
            else:
                found.append(f"{place}: {short(before.get(name, '(absent)'))} -> {short(after.get(name, '(absent)'))}")
        return found
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        return [
            line
            for place, pair in enumerate(zip(before, after, strict=True))
            for line in differences(*pair, f"{path}[{place}]")
        ]
    if (before == after and type(before) is type(after)) or (number(before) and number(after) and near(before, after)):
        return []
    return [f"{path}: {short(before)} -> {short(after)}"]


def number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def near(before: Any, after: Any) -> bool:
    return abs(before - after) <= TOLERANCE


def short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 160 else f"{text[:120]} ... ({len(text)} characters)"


def python_names() -> list[str]:
    """The Python calls, read without importing the package."""
    tree = ast.parse((HERE / "python_calls.py").read_text())
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.decorator_list]
    return [function.name for function in functions]


def python_calls(shell: Shell, names: list[str]) -> dict[str, tuple[Any, float]]:
    """Answers and seconds of Python calls, all in one process, which loads the model once."""
    words = [sys.executable, str(HERE / "python_calls.py"), *names]
    done = subprocess.run(
        words, cwd=shell.folder, env=shell.environment, capture_output=True, text=True, timeout=LONGEST
    )
    if done.returncode:
        return {name: ({"process failed": done.stderr[-2000:]}, 0.0) for name in names}
    return {name: (one["answer"], one["took"]) for name, one in json.loads(done.stdout).items()}


def command_line(shell: Shell, name: str) -> dict[str, tuple[Any, float]]:
    start = time.perf_counter()
    try:
        answer = CALLS[name](shell)
    except Exception as error:  # the call cannot even be made as it was
        answer = {"call failed": f"{type(error).__name__}: {error}"[:2000]}
    return {name: (answer, time.perf_counter() - start)}


def answers(only: list[str], jobs: int) -> Iterator[tuple[str, Any]]:
    """What is kept of each call's answer, as they are finished."""
    with tempfile.TemporaryDirectory(prefix="contract-") as place, ThreadPoolExecutor(jobs) as pool:
        folder = Path(place).resolve()
        pictures.make(folder)
        shell = Shell(folder)
        python = [name for name in python_names() if not only or name in only]
        half = (len(python) + 1) // 2
        tasks = [pool.submit(python_calls, shell, part) for part in (python[:half], python[half:]) if part]
        commands = sorted(CALLS, key=lambda name: name not in LONG)
        tasks += [pool.submit(command_line, shell, name) for name in commands if not only or name in only]
        for task in as_completed(tasks):
            for name, (answer, seconds) in task.result().items():
                sys.stderr.write(f"{seconds:6.1f} s  {name}\n")
                yield name, kept(json.loads(json.dumps(answer)), str(folder))


def write(found: dict[str, Any]) -> None:
    """One line a call, so that a change of the record shows which calls it is about."""
    calls = [f"{json.dumps(name)}: {json.dumps(found[name], ensure_ascii=False)}" for name in sorted(found)]
    RECORD.write_text("{\n" + ",\n".join(calls) + "\n}\n", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("record", "check", "list"))
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="these calls alone")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="processes at once (default: 2)")
    args = parser.parse_args()
    names = [*CALLS, *python_names()]
    if args.what == "list":
        sys.stdout.write("\n".join(names) + "\n")
        return 0
    if unknown := set(args.only) - set(names):
        parser.error(f"--only: no such call: {', '.join(sorted(unknown))}; `contract.py list` names them")
    recorded = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}
    if args.what == "record" and not args.only:
        recorded = {}
    start, wrong = time.perf_counter(), []
    for name, after in answers(args.only, args.jobs):
        if args.what == "record":
            recorded[name] = after
            write(recorded)
        else:
            lines = differences(recorded.get(name, "(not recorded)"), after)
            wrong += [name] if lines else []
            sys.stdout.write("".join(f"{name}: {line}\n" for line in lines))
            sys.stdout.flush()
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = f"{time.perf_counter() - start:.0f} s, {usage.ru_utime + usage.ru_stime:.0f} s of processors"
    sys.stderr.write(f"{len(args.only or names)} calls in {spent}\n")
    if args.what == "check":
        sys.stdout.write(f"different: {', '.join(sorted(wrong))}\n" if wrong else "every answer is as before\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
