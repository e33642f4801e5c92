"""One run with human scores as its tables see it: the modes' scores, the draws, and what may have been seen."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from sklearn.isotonic import IsotonicRegression

from agentic_iqa_local.iqa_tools import TOOLS
from agentic_iqa_local.studies.datasets import listed
from agentic_iqa_local.studies.leakage import exposures
from agentic_iqa_local.studies.readings import LEVELS, PRODUCT, Readings, scored_modes
from agentic_iqa_local.studies.statistics import Draws, Statistic, interval, vqeg_logistic
from agentic_iqa_local.studies.store import StudyError, dataset_info, fusion_settings

SIGNIFICANCE = 0.05
LABELS = ("distortion", "level", "subset")  # of rows, within which figures are given too


class ScoredRun:
    """A run and what its rows say. Arrays have an entry for each row.

    `quality` is the human score with higher for better and `mos` as the authors give it, `labels` (rows, LABELS) name
    the parts of the set, `product` is the mode of the run's configuration, `baseline` the one to compare with.
    """

    def __init__(
        self,
        run: dict[str, Any],
        rows: Sequence[dict[str, Any]],
        *,
        name: str = "run",
        draws: int = 1000,
        baseline: str | None = None,
        fitted: dict[str, Any] | None = None,
    ):
        """Reads the modes and makes the bootstrap's `draws`, of `run` and `rows` as `store.read_run` gives them.

        `name` is for messages and tables; `baseline` by default the first mode of the letters that the model wrote, or
        else the first. `fitted` is a fit's temperature and η, which add the mode "logits, fitted". Raises StudyError
        for no scored rows, no known direction of the scores, or no such baseline.
        """
        self.name, self.run, self.rows = name, run, rows
        self.info, self.settings = dataset_info(run), fusion_settings(run)
        if not rows or any("mos" not in row for row in rows):
            found = "questions" if rows else "none"
            raise StudyError(
                f"{name}: expected rows with a human score, got {found}", "use a scored run"
            )
        if self.info.higher_is_better is None:
            raise StudyError(
                f"{name}: expected run.json to say whether higher scores are better (higher_is_better)"
            )
        self.readings = Readings(rows, self.settings.vote)
        configured = run["tools"]["full_reference" if self.info.kind == "FR" else "no_reference"]
        with_fit = self.settings.model_copy(update=fitted) if fitted else None
        self.modes = scored_modes(self.readings, self.settings, with_fit, configured)
        written = (mode for mode, scored in self.modes.items() if scored.source == "generated")
        self.baseline = baseline or next(written, next(iter(self.modes), ""))
        if self.baseline not in self.modes:
            known = listed(self.modes) or "no mode: every row failed"
            raise StudyError(f"{name}: expected a baseline of {known}; got {baseline!r}")
        product = PRODUCT[self.settings.mode]
        self.product = product if product in self.modes else next(iter(self.modes))
        self.mos = np.array([row["mos"] for row in rows], float)
        self.labels = pd.DataFrame(
            {by: [row.get(by) for row in rows] for by in LABELS}, dtype=object
        )
        self.quality = self.mos if self.info.higher_is_better else -self.mos
        rng = np.random.default_rng(0)
        self.draws = Draws(rows, rng, draws)
        self._units = rng.permutation(self.draws.counts.shape[1])
        self._sampled: dict[Any, tuple[float, np.ndarray]] = {}

    def sampled(
        self,
        statistic: Statistic,
        mode: str,
        kept: np.ndarray | bool = True,
        first: int | None = None,
    ) -> tuple[float, np.ndarray]:
        """`Draws.of` of a mode with the human scores, on the `kept` rows that it answered; computed once."""
        scored = self.modes[mode]
        kept = kept & scored.answered
        key = statistic, mode, kept.tobytes(), first
        if key not in self._sampled:
            self._sampled[key] = self.draws.of(statistic, scored.scores, self.quality, kept, first)
        return self._sampled[key]

    def figure(
        self, name: str, statistic: Statistic, mode: str, **options: Any
    ) -> dict[str, float]:
        """The columns of a statistic of a mode with its interval; options of `sampled`."""
        return interval(name, *self.sampled(statistic, mode, **options))

    @cached_property
    def mapped(self) -> dict[str, np.ndarray]:
        """Each mode's scores on the scale of `quality`, through the fitted logistic; nan where there is none."""
        found = {name: np.full(len(self.rows), np.nan) for name in self.modes}
        for name, scored in self.modes.items():
            kept = scored.answered
            found[name][kept] = vqeg_logistic(scored.scores[kept], self.quality[kept])
        return found

    @cached_property
    def letters(self) -> dict[tuple[str, ...], np.ndarray]:
        """Each p_c (rows, 5) that tells levels apart, by the names of the modes that rest on it."""
        found: dict[Any, tuple[list[str], np.ndarray]] = {}
        for name, scored in self.modes.items():
            p = scored.p
            if p is not None and scored.answered.any() and np.nanmax(np.ptp(p, axis=1)) > 0:
                found.setdefault((scored.read, scored.source, scored.fitted), ([], p))[0].append(
                    name
                )
        return {tuple(names): p for names, p in found.values()}

    @cached_property
    def levels(self) -> tuple[np.ndarray, np.ndarray, str]:
        """The human scores as levels, the rows to judge letters on, both (rows,), and where the levels come from.

        Linearly on an absolute category scale, else through a rising map to what the letters expect, fitted on other
        rows: the training split, or half of what is drawn.
        """
        if self.info.on_levels:
            return (
                self.info.to_levels(self.mos),
                np.full(len(self.mos), True),
                "the scale, linearly",
            )
        half, half_is = (
            np.array([row.get("split") == "train" for row in self.rows]),
            "the training split",
        )
        if not half.any() or half.all():
            half = np.isin(self.draws.unit, self._units[: len(self._units) // 2])
            half_is = f"half of the {self.draws.over.partition(',')[0]}"
        source = f"monotone map fitted on {half_is}, judged on the others"
        nothing = np.full(len(self.rows), np.nan)
        expected = np.mean([p @ LEVELS for p in self.letters.values()] or [nothing], axis=0)
        fit = np.isfinite(expected) & half
        if not fit.any():
            return nothing, np.full(len(nothing), False), source
        rising = IsotonicRegression(out_of_bounds="clip").fit(self.quality[fit], expected[fit])
        return rising.predict(self.quality), ~half, source

    @cached_property
    def exposures(self) -> pd.DataFrame:
        """How the parts of each mode have met the data set."""
        found = []
        for name, scored in self.modes.items():
            tools = [tool for tool in scored.tools if tool in TOOLS]
            maps = {} if scored.kind in ("letters", "tool") else self.run["maps"]
            model = self.run["model"] if scored.asks_model else {}
            parts = exposures(self.info.key, tools, maps, model.get("name"), model.get("notice"))
            found += [(name, *part) for part in parts]
        return pd.DataFrame(found, columns=["mode", "what", "how", "touches"])

    def mark(self, mode: str) -> str:
        """What stands beside a mode's figures: "seen" by a part of it, "?" where that is unknown, or nothing where its
        rank correlation may enter a mean over data sets, which the scale alone of a single score does not touch."""
        found = self.exposures[self.exposures["mode"] == mode]
        if not (found.touches.eq("ranks") | (self.modes[mode].kind != "tool")).any():
            return ""
        return "?" if found.how.eq("training data unknown").all() else "seen"
