"""Measures what another pass gains: the evidence of the agent's first pass gets faults, and the answers are compared
with those without a fault.

    python scripts/training/synthetic.py PHOTOS --all --no-reference --per-photo 4 --out syn
    python scripts/bench/replanning.py syn/manifest.csv --pictures 60 --out replanning.jsonl

Rows are kept in --out, and the same command goes on. *Noticed*: the pass with the fault asks for another. *Recovered*:
q is within TOLERANCE levels of that without the fault. The truth of the errors is the manifest's score (1..5).
"""

import argparse
import copy
import csv
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from agentic_iqa_local import graph
from agentic_iqa_local.judgement.assessment import assess
from agentic_iqa_local.services import Services, load_services
from agentic_iqa_local.state import ExecutorOutput, revised

TOLERANCE = 0.1
LIMITS = (0, 2)  # of max_replan_iterations: none, and the default of one more pass
SEED = 20261128


def wrong_score(evidence: ExecutorOutput) -> dict[str, Any]:
    """The first tool's score from the other end of the scale."""
    logs = copy.deepcopy(evidence.tool_logs)
    for log in logs[:1]:
        if log.normalized_score is not None:
            log.normalized_score = 6 - log.normalized_score
    return {"tool_logs": logs}


def missed_distortions(evidence: ExecutorOutput) -> dict[str, Any]:
    """Nothing is found."""
    detection = copy.deepcopy(evidence.detection or {})
    for found in detection.values():
        for family in found.families.values():
            family.probability = min(family.probability, 0.1)
    nothing = {name: [] for name in evidence.distortion_set or {}}
    return {
        "detection": detection,
        "distortion_set": nothing,
        "distortion_analysis": dict(nothing),
        "severity_probabilities": {},
    }


def nothing_measured(_: ExecutorOutput) -> dict[str, Any]:
    """No tool has run."""
    return {"tool_logs": [], "selected_tools": None}


FAULTS: dict[str | None, Callable[[ExecutorOutput], dict[str, Any]]] = {
    "wrong score of a tool": wrong_score,
    "no tool has run": nothing_measured,
    "distortions missed": missed_distortions,
}


class FaultyExecutor:
    """The Executor, whose first pass has the fault that is planted."""

    def __init__(self) -> None:
        self.node = graph.executor_node
        self.fault: Callable[[ExecutorOutput], dict[str, Any]] | None = None
        self.planted = False  # whether the fault changed anything

    def __call__(self, state: Any, config: Any = None, runtime: Any = None) -> dict[str, Any]:
        changes = self.node(state, config, runtime)
        evidence = changes.get("executor_evidence")
        if self.fault is None or evidence is None or state.get("iteration_count", 0):
            return changes
        revision = revised(evidence, **self.fault(evidence))
        faulty = ExecutorOutput.model_validate(revision.model_dump())
        told = {"tool_logs", "distortion_set"}
        self.planted = faulty.model_dump(include=told) != evidence.model_dump(include=told)
        return {"executor_evidence": faulty}


def rows(pictures: list[dict[str, str]], folder: Path, services: Services) -> Iterator[dict]:
    """Of each picture, fault and limit: q, whether another pass was asked for, and the tokens."""
    executor = FaultyExecutor()
    graph.executor_node = executor
    for picture in pictures:
        for name in (None, *FAULTS):
            executor.fault, executor.planted = FAULTS.get(name), name is None
            for limit in LIMITS:
                row = assess(
                    folder / picture["image"], services=services, max_replan_iterations=limit
                )
                tokens = row.tokens.prefilled + row.tokens.decoded if row.tokens else 0
                yield {
                    "image": picture["image"],
                    "mos": float(picture["mos"]),
                    "fault": name,
                    "planted": executor.planted,
                    "limit": limit,
                    "q": row.q,
                    "noticed": bool(row.replan_history),
                    "tokens": tokens,
                }


def table(found: list[dict]) -> Iterator[str]:
    """A line of Markdown for each fault."""
    known = {(row["image"], row["fault"], row["limit"]): row for row in found}
    yield "| fault | n | noticed | recovered at limit 0 | 2 | mean error at 0 | 2 | additional tokens |"
    yield "|---|---|---|---|---|---|---|---|"
    for name in (None, *FAULTS):
        images = sorted({row["image"] for row in found if row["fault"] == name and row["planted"]})
        sound = [known[image, None, 0] for image in images]
        without, with_one = [[known[image, name, limit] for image in images] for limit in LIMITS]
        cells = [f"{np.mean([row['noticed'] for row in with_one]):.0%}"]
        for rows_of in (without, with_one):
            near = [_near(row["q"], one["q"]) for row, one in zip(rows_of, sound, strict=True)]
            cells.append(f"{np.mean(near):.0%}")
        cells += [
            f"{np.mean([_error(row) for row in rows_of]):.3f}" for rows_of in (without, with_one)
        ]
        more = [two["tokens"] - one["tokens"] for one, two in zip(without, with_one, strict=True)]
        yield f"| {name or 'none'} | {len(images)} | {' | '.join(cells)} | {np.mean(more):.0f} |"


def _near(q: float | None, other: float | None) -> bool:
    return q is not None and other is not None and abs(q - other) <= TOLERANCE


def _error(row: dict) -> float:
    """In levels; of an answer without q the largest that there is."""
    return 4.0 if row["q"] is None else abs(row["q"] - row["mos"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("manifest", type=Path, help="image and mos (1..5) of each picture")
    parser.add_argument("--pictures", type=int, default=60)
    parser.add_argument("--out", type=Path, required=True, help="JSON lines")
    args = parser.parse_args()
    with args.manifest.open(encoding="utf-8") as file:
        every = list(csv.DictReader(file))
    drawn = np.random.default_rng(SEED).permutation(len(every))[: args.pictures]
    lines = args.out.read_text(encoding="utf-8").splitlines() if args.out.exists() else []
    each = len(LIMITS) * (1 + len(FAULTS))
    kept = [json.loads(line) for line in lines[: len(lines) // each * each]]
    left = [every[i] for i in drawn][len(kept) // each :]
    args.out.write_text("".join(f"{json.dumps(row)}\n" for row in kept), encoding="utf-8")
    with args.out.open("a", encoding="utf-8") as file:
        for row in rows(left, args.manifest.parent, load_services()) if left else ():
            print(json.dumps(row), file=file, flush=True)
            kept.append(row)
    print("\n".join(table(kept)))


if __name__ == "__main__":
    main()
