"""What looking again only where the interval is wide saves: pictures of known quality are assessed with one
look, until the interval is as narrow as asked for, and with every look and plan.

    python -m agentic_iqa_local.laboratory.narrowing MANIFEST --out benchmarks/intervals/narrowing.json
"""

import argparse
import csv
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from agentic_iqa_local.assessment import assess
from agentic_iqa_local.cli.console import bar, safe_streams
from agentic_iqa_local.config import load_settings
from agentic_iqa_local.provenance import commit, machine
from agentic_iqa_local.request import Pipeline
from agentic_iqa_local.result import Assessment
from agentic_iqa_local.services import Services
from agentic_iqa_local.studies.statistics import srcc

EVERYTHING = 0.01  # levels: no interval is as narrow
DRAWS = 1000


def measure(
    pictures: list[tuple[Path, float, str]], width: float, pipeline: Pipeline, device: str
) -> dict[str, Any]:
    """Figures of each policy over (picture, truth, scene)."""
    policies: dict[str, dict[str, Any]] = {
        "one look": {},
        f"until {width:g} levels": {"target_width": width},
        "every look": {"target_width": EVERYTHING},
    }
    plain = load_settings()
    first = Services(plain, device)
    services = {
        name: Services(plain.with_options(**decisions), device, first.pool.clients, first.tools)
        for name, decisions in policies.items()
    }
    assess(pictures[0][0], pipeline=pipeline, services=first)  # what is loaded at the first picture
    for one in services.values():
        one.pool = first.pool
    rows: dict[str, list[Assessment]] = {name: [] for name in policies}
    for i, (picture, _, _) in enumerate(bar(pictures)):
        for name in list(policies)[i % 3 :] + list(policies)[: i % 3]:
            rows[name].append(assess(picture, pipeline=pipeline, services=services[name]))
    truth, scenes = np.array([mos for _, mos, _ in pictures]), np.array([scene for *_, scene in pictures])
    return {name: _figures(found, truth, scenes) for name, found in rows.items()}


def _figures(rows: list[Assessment], truth: np.ndarray, scenes: np.ndarray) -> dict[str, Any]:
    assert all(row.interval and row.tokens for row in rows)
    q = np.array([row.q for row in rows])
    low, high = (np.array([getattr(row.interval, end) for row in rows]) for end in ("low", "high"))
    names, rng = np.unique(scenes), np.random.default_rng(0)
    draws = []
    for _ in range(DRAWS):
        drawn = np.concatenate([np.flatnonzero(scenes == s) for s in rng.choice(names, len(names))])
        draws.append(srcc(q[drawn], truth[drawn]))
    return {
        "SRCC": round(srcc(q, truth), 4),
        "SRCC interval": np.percentile(draws, (2.5, 97.5)).round(4).tolist(),
        "coverage": round(float(np.mean((low <= truth) & (truth <= high))), 4),
        "width": round(float(np.mean(high - low)), 4),
        "seconds": round(float(np.mean([row.seconds for row in rows])), 4),
        "tokens": round(
            float(np.mean([row.tokens.prefilled + row.tokens.decoded for row in rows if row.tokens]))
        ),
        "calls": round(float(np.mean([row.tokens.calls for row in rows if row.tokens])), 2),
        "both orders": round(float(np.mean([row.both_orders for row in rows])), 3),
        "crops": round(float(np.mean([row.crops > 0 for row in rows])), 3),
        "planned again": round(float(np.mean([bool(row.replan_history) for row in rows])), 3),
    }


@safe_streams()
def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("manifest", type=Path, help="CSV with image, mos (1..5) and group")
    parser.add_argument("--width", type=float, default=1.2, help="levels (default: 1.2)")
    parser.add_argument("--every", type=int, default=8, metavar="N", help="each Nth picture (default: 8)")
    parser.add_argument("--out", type=Path, required=True, help="figures (JSON)")
    args = parser.parse_args(argv)
    with args.manifest.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))[:: args.every]
    pictures = [(args.manifest.parent / row["image"], float(row["mos"]), row["group"]) for row in rows]
    result = {
        "date": time.strftime("%Y-%m-%d"),
        "git": commit(),
        "machine": machine(("torch", "transformers", "pyiqa", "crepes")),
        "pictures": len(pictures),
        **{pipeline: measure(pictures, args.width, pipeline, "cpu") for pipeline in ("agent", "letters")},
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
