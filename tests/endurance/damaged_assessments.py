"""Damaged pictures and damaged answers through whole assessments."""

import argparse
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from agentic_iqa_local.paths import ROOT
from endurance.checks import ALLOWED, guarded, require
from endurance.damaged_answers import random_answer
from endurance.damaged_pictures import random_pictures, valid_pictures


class DamagingClient:
    """A client whose generated answers are damaged, half of them; the letters are read as they are."""

    def __init__(self, client: Any, rng: np.random.Generator):
        self._client, self._rng = client, rng

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def open(self, pictures: Any) -> "DamagingSession":
        return DamagingSession(self._client.open(pictures), self._rng)


class DamagingSession:
    def __init__(self, session: Any, rng: np.random.Generator):
        self._session, self._rng = session, rng

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def generate(self, *args: Any, **options: Any) -> str:
        text = self._session.generate(*args, **options)
        return random_answer(self._rng, text) if self._rng.random() < 0.5 else text


def examine_row(row: Any) -> str:
    """What became of an assessment. Raises Wrong for a score that its own numbers do not give."""
    from agentic_iqa_local.score_fusion import ScoreFusion

    require(type(row).model_validate_json(row.model_dump_json()).q == row.q, "the row does not survive JSON")
    if row.error:
        require(
            (row.q, row.q_bar, row.p_c, row.vlm_letter) == (None,) * 4, f"a failed row with a score: {row}"
        )
        return "failed"
    if row.plan and row.plan.query_type == "Other":
        require((row.q, row.p_c) == (None, None), f"a score for a question that asks for none: {row}")
        return "no score asked"
    require(abs(sum(row.p_c.values()) - 1) < 1e-6, f"probabilities that sum to {sum(row.p_c.values())}")
    weights = {c: row.alpha[c] * row.p_c["EDCBA"[c - 1]] for c in range(1, 6)}
    expected = sum(c * w for c, w in weights.items()) / sum(weights.values())
    require(abs(row.q - expected) < 1e-6, f"q {row.q}, but its parts give {expected}")
    scores = [run.normalized_score for run in row.tools if run.normalized_score is not None]
    require((row.q_bar is None) == (not scores), f"tools' mean {row.q_bar} of {scores}")
    require(row.final_answer == ScoreFusion().map_to_level(row.q), f"{row.final_answer} for {row.q}")
    return "scored"


def end_to_end(args: argparse.Namespace) -> dict:
    from agentic_iqa_local import assess
    from agentic_iqa_local.config import load_settings
    from agentic_iqa_local.nodes.ask import TRIES
    from agentic_iqa_local.services import Services

    services = Services(load_settings(), "cpu")
    client = services.client("summarizer")
    photo = Image.open(ROOT / "tests" / "data" / "sumac.png").convert("RGB").crop((128, 128, 384, 384))
    found: dict[str, Any] = {"count": args.count, "wrong": []}
    with tempfile.TemporaryDirectory() as name:
        folder, pictures = Path(name), valid_pictures(photo)
        (folder / "whole.png").write_bytes(pictures["rgb.png"])

        def normal() -> str:
            return examine_row(assess(folder / "whole.png", services=services))

        def with_damaged_image(picture: tuple[str, bytes]) -> str:
            (folder / picture[0]).write_bytes(picture[1])
            return examine_row(assess(folder / picture[0], services=services))

        def with_damaged_output(number: int) -> str:
            hostile: Any = DamagingClient(client, np.random.default_rng([args.seed, number]))
            backend = services.section("summarizer").backend
            own = Services(services.settings, "cpu", {backend: hostile}, services.tools)
            return examine_row(assess(folder / "whole.png", services=own))

        normal()
        usual = _timed("normal", [normal] * 3, found)
        runs = {
            "images": [
                lambda p=p: with_damaged_image(p) for p in random_pictures(pictures, args.count, args.seed)
            ],
            "outputs": [lambda n=n: with_damaged_output(n) for n in range(args.count)],
        }
        longest = {"images": usual + ALLOWED, "outputs": TRIES * usual + ALLOWED}
        for kind, checks in runs.items():
            if (slowest := _timed(kind, checks, found)) > longest[kind]:
                found["wrong"].append(f"{kind}: {slowest:.1f} s, expected at most {longest[kind]:.1f} s")
    return found


def _timed(kind: str, checks: list[Callable[[], str]], found: dict[str, Any]) -> float:
    """Runs all, notes outcomes and seconds in `found`, and gives the slowest."""
    outcomes, seconds = Counter(), []
    for number, check in enumerate(checks):
        began = time.perf_counter()
        outcomes[guarded(check, f"{kind} {number}", found["wrong"])] += 1
        seconds.append(time.perf_counter() - began)
    found[kind] = {
        "outcomes": dict(outcomes),
        "median_seconds": round(statistics.median(seconds), 2),
        "slowest_seconds": round(max(seconds), 2),
    }
    return max(seconds)
