"""Fits p_c's temperature and α_c's η on rows that are then not scored, or without any human score.

rps       minimises the ranked probability score of the fused distribution w ∝ α·p against the human levels: for scales of
          absolute categories
srcc      maximises SRCC of q with the human scores: for any scale
spread    needs no human scores: chooses the temperature at which E[level] from p_c alone spreads as far as the tools' mean
          does over the same images, so that neither side of the product is the sharper by its units; η stays
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from scipy.optimize import brentq, minimize

from agentic_iqa_local.config import FusionSettings
from agentic_iqa_local.errors import UserError
from agentic_iqa_local.studies.analysis import dataset_info
from agentic_iqa_local.studies.readings import LEVELS, Letters, Row, fuse, fused_distribution, probabilities, tool_means
from agentic_iqa_local.studies.statistics import ranked_probability_score, srcc
from agentic_iqa_local.studies.store import read_run

Objective = Literal["rps", "srcc", "spread"]
READ = "all_evidence"  # the product's own
LOWEST, HIGHEST = 0.1, 10.0  # of temperature and η
FEWEST = 20


class FitError(UserError, ValueError):
    """Rows that nothing can be fitted on, or a file that is no fit; one sentence for the user."""


@dataclass(frozen=True)
class Fit:
    """A fitted temperature and η with where they come from. A report must leave out the rows of `keys` and of the scenes
    `groups` of the same data set (`dataset` is its key)."""

    temperature: float
    eta: float
    objective: Objective
    before: float
    after: float
    dataset: str
    model: str
    keys: tuple[str, ...]
    groups: tuple[str, ...] = ()

    def used(self, row: Row) -> bool:
        """Whether the fit has seen the row, or another of its scene."""
        return row["key"] in self.keys or row["group"] in self.groups

    @property
    def letters(self) -> Letters:
        return Letters(self.temperature, self.eta, source=f"{self.objective} on {len(self.keys)} images of {self.dataset}")

    def write(self, file: Path) -> None:
        file.write_text(json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def read_fit(file: Path) -> Fit:
    """Raises FitError for a file that is none."""
    try:
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        fit = Fit(**found | {"keys": tuple(found["keys"]), "groups": tuple(found["groups"])})
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise FitError(f"{file}: expected a fit that study.py wrote, got: {error}") from error
    if not (LOWEST <= fit.temperature <= HIGHEST and LOWEST <= fit.eta <= HIGHEST):
        raise FitError(f"{file}: expected temperature and eta from {LOWEST} to {HIGHEST}, got {fit.temperature} and {fit.eta}")
    return fit


def fit_run(folder: Path, objective: Objective, *, split: str | None, share: float) -> Fit:
    """A fit on the rows of an official `split`, or on a `share` of the scenes (of the images, where there are none) drawn with
    seed 0. Raises FitError, StoreError, DatasetError."""
    run, rows = read_run(folder)
    info = dataset_info(run)
    if split is not None:
        used = [row for row in rows if row["split"] == split]
    else:
        units = sorted({row["group"] or row["key"] for row in rows})
        drawn = set(np.random.default_rng(0).permutation(units)[: round(share * len(units))])
        used = [row for row in rows if (row["group"] or row["key"]) in drawn]
    if len(used) == len(rows):
        raise FitError(
            f"{folder}: expected rows that the fit does not use, it would use all {len(rows)}; choose a split or a share"
        )
    mos = np.array([row["mos"] for row in used], float)
    targets = {"rps": lambda: np.array([info.to_levels(m) for m in mos]), "srcc": lambda: mos if info.higher_is_better else -mos}
    fit = fit_letters(
        used, objective, targets=targets[objective]() if objective in targets else None,
        letters=Letters.of(FusionSettings.model_validate(run["fusion"])), dataset=info.key, model=run["identity"]["model"],
    )  # fmt: skip
    groups = sorted({row["group"] for row in used if row["group"] is not None})
    return replace(fit, keys=tuple(row["key"] for row in used), groups=tuple(groups))


def fit_letters(
    rows: Sequence[Row], objective: Objective, *, targets: np.ndarray | None, letters: Letters, dataset: str, model: str
) -> Fit:
    """`targets` (rows,): human levels in 1..5 for rps, human scores with higher better for srcc, None for spread. Rows that
    failed or that no tool scored are left out. Raises FitError for fewer than twenty rows, or without an optimum inside the bounds.
    """
    q_bar = tool_means(rows, letters.vote)
    usable = np.isfinite(q_bar) & np.isfinite(probabilities(rows, READ)[:, 0])
    if usable.sum() < FEWEST:
        raise FitError(f"fit: expected at least {FEWEST} images with letters and tool scores, got {usable.sum()}")
    rows, q_bar = [row for row, use in zip(rows, usable, strict=True) if use], q_bar[usable]
    target = None if targets is None else targets[usable]

    def p(temperature: float) -> np.ndarray:
        return probabilities(rows, READ, temperature=temperature)

    def worth(temperature: float, eta: float) -> float:
        """Smaller is better."""
        if objective == "rps":
            return ranked_probability_score(fused_distribution(p(temperature), q_bar, eta), target)
        if objective == "srcc":
            return -srcc(fuse(p(temperature), q_bar, eta), target)
        return abs((p(temperature) @ LEVELS).std() - q_bar.std())

    if objective == "spread":
        temperature, eta = _spread(p, q_bar.std()), letters.eta
    else:
        temperature, eta = _minimum(worth, letters)
    return Fit(
        temperature, eta, objective, worth(letters.temperature, letters.eta), worth(temperature, eta), dataset, model,
        tuple(row["key"] for row in rows),
    )  # fmt: skip


def _spread(p, wanted: float) -> float:
    def gap(log_temperature: float) -> float:
        return (p(np.exp(log_temperature)) @ LEVELS).std() - wanted

    ends = np.log(LOWEST), np.log(HIGHEST)
    if gap(ends[0]) * gap(ends[1]) > 0:
        raise FitError(
            f"fit: expected a temperature from {LOWEST} to {HIGHEST} at which E[level] spreads by {wanted:.2f} levels as the tools do, "
            "there is none"
        )
    return float(np.exp(brentq(gap, *ends)))


def _minimum(worth, letters: Letters) -> tuple[float, float]:
    """The best of a coarse grid, refined: neither objective is convex, and SRCC is a step function."""
    grid = np.geomspace(LOWEST, HIGHEST, 9)
    starts = [(letters.temperature, letters.eta), *((t, e) for t in grid for e in grid)]
    best = min(starts, key=lambda pair: worth(*pair))
    found = minimize(
        lambda x: worth(*np.exp(x)), np.log(best), method="Nelder-Mead", bounds=[(np.log(LOWEST), np.log(HIGHEST))] * 2,
        options={"xatol": 1e-3, "fatol": 1e-6},
    )  # fmt: skip
    chosen = np.exp(found.x) if found.fun <= worth(*best) else best
    temperature, eta = np.clip(chosen, LOWEST, HIGHEST)  # exp(log(10)) is a little above 10
    return float(temperature), float(eta)
