"""A small study: does the set-up rank pictures of known quality? On a labelled folder, else on synthetic
distortions of the sample photographs."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from agentic_iqa_local.config import Settings
from agentic_iqa_local.judgement.assessment import assess
from agentic_iqa_local.offline.certify.check import Check, judged, not_run
from agentic_iqa_local.offline.certify.probes import SEED, photograph
from agentic_iqa_local.services import Services
from agentic_iqa_local.studies.datasets.registry import load_dataset
from agentic_iqa_local.studies.datasets.types import DatasetError
from agentic_iqa_local.studies.statistics import Draws, interval, srcc
from agentic_iqa_local.synthetic.distortions import DISTORTIONS
from agentic_iqa_local.synthetic.pseudo_mos import PseudoMos

MOST = 200  # pictures of a labelled folder; of a larger one, so many spread evenly over its list
SIDE = 256
MADE = ("gaussian_blur", "white_noise", "jpeg", "darken", "upscale", "contrast_decrease")
SEVERITIES = (1, 3, 5)


def check_labelled(folder: Path) -> None:
    """Raises DatasetError unless `folder` has pictures with scores."""
    if not load_dataset(folder).items:
        raise DatasetError(f"{folder}: expected pictures with scores, found none", "name another folder")


def run_study(settings: Settings, device: str, labelled: Path | None) -> dict[str, Any]:
    """q of each labelled picture by the letters pipeline, and its label, higher is better. Raises
    DatasetError."""
    services = Services(settings, device)
    with _pictures(labelled, device) as (items, name):
        rows, failed = [], []
        for path, label in items:
            row = assess(path, pipeline="letters", services=services)
            if row.q is None:
                failed.append(f"{path.name}: {row.error}")
            else:
                rows.append((row.q, label))
    return {"name": name, "rows": rows, "failed": failed}


@contextmanager
def _pictures(labelled: Path | None, device: str) -> Iterator[tuple[list[tuple[Path, float]], str]]:
    if labelled is not None:
        data = load_dataset(labelled)
        sign = -1 if data.info.higher_is_better is False else 1
        places = np.unique(np.linspace(0, len(data.items) - 1, MOST).round().astype(int))
        chosen = [data.items[i] for i in places]
        yield [(item.image, sign * item.mos) for item in chosen], f"{data.info.title} ({labelled.name})"
        return
    with tempfile.TemporaryDirectory(prefix="certify-study-") as scratch:
        yield _synthetic(Path(scratch), device), "synthetic distortions of the sample photographs"


def _synthetic(folder: Path, device: str) -> list[tuple[Path, float]]:
    """Both photographs as they are and distorted, each with its pseudo-MOS, 1..5."""
    quality = PseudoMos("cpu")
    items = []
    for photo in ("sumac", "prudential"):
        clean = np.ascontiguousarray(photograph(photo)[:SIDE, :SIDE])
        made = [(kind, severity) for kind in MADE for severity in SEVERITIES]
        for number, (kind, severity) in enumerate([("clean", 0), *made]):
            rng = np.random.default_rng([SEED, 1, number])
            pixels = clean if kind == "clean" else DISTORTIONS[kind].apply(clean, severity, rng)
            path = folder / f"{photo}_{kind}{severity}.png"
            Image.fromarray(pixels).save(path)
            items.append((path, quality(pixels, clean)))
    return items


def judge_study(found: dict[str, Any]) -> Check:
    """SRCC of q with the labels and its 95 % interval. No better than chance is a fault, and so are failed
    pictures."""
    rows, failed = found["rows"], found["failed"]
    if len(rows) < 10:
        if failed:
            return judged("study", [f"{len(failed)} pictures gave no score, such as {failed[0]}"], "")
        return not_run("study", f"{len(rows)} labelled pictures; at least 10 are needed")
    q, labels = np.array(rows).T
    draws = Draws.make(len(rows), np.random.default_rng(SEED))
    figure = interval(draws.of(srcc, q, labels))
    row = {
        "comparison": f"q against the labels of {found['name']}",
        "pictures": len(rows),
        "srcc": figure.value,
        "low": figure.low,
        "high": figure.high,
        "within": bool(figure.low > 0),
    }
    problems = [f"{len(failed)} pictures gave no score, such as {failed[0]}"] if failed else []
    words = f"SRCC {figure.value:.3f} (95 % {figure.low:.3f} to {figure.high:.3f}, {len(rows)} pictures)"
    if not row["within"]:
        problems.append(f"q ranks {found['name']} no better than chance: {words}")
    return judged("study", problems, f"q ranks {found['name']} as labelled: {words}", [row])
