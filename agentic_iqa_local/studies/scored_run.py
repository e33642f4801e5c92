"""One run with human scores as its tables see it: one tidy frame, the draws, and what may have been
seen.

The frame has a line for each image and mode; agreement, differences and figures within parts of the
set are a groupby of it. Beside it the columns that the statistics take stand in the order of the
rows.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from agentic_iqa_local.iqa_tools import TOOLS
from agentic_iqa_local.judgement.fit import Fit
from agentic_iqa_local.studies.datasets import DATASETS, listed
from agentic_iqa_local.studies.leakage import UNKNOWN_TRAINING, exposures
from agentic_iqa_local.studies.modes import scored_modes
from agentic_iqa_local.studies.readings import Readings
from agentic_iqa_local.studies.statistics import Draws
from agentic_iqa_local.studies.store import Run, StudyError

SIGNIFICANCE = 0.05
PARTS = ["distortion", "level", "subset"]  # of a data set, within which figures are given too


class ScoredRun:
    """A run and what its rows say.

    `pictures` has a line for each row (key, split, group, PARTS and `mos` as the authors give it),
    `quality` (rows,) is the human score with higher for better and `levels` (rows,) that score in
    1..5, nan on a scale that has no levels. `wide` has the scores by mode, in the order of the
    rows. `product` is the mode of the run's configuration, `baseline` the one to compare with.
    """

    def __init__(
        self,
        run: Run,
        rows: Sequence[dict[str, Any]],
        *,
        name: str = "run",
        draws: int = 1000,
        baseline: str | None = None,
        fit: Fit | None = None,
    ):
        """Reads the modes and makes the bootstrap's `draws`, of `run` and `rows` as
        `store.read_run` gives them.

        `name` is for messages and tables; `baseline` is by default "classification", or else the
        first mode. A `fit` adds the mode "logits, fitted".
        Raises StudyError for no scored rows or no such baseline.
        """
        self.name, self.run, self.rows = name, run, rows
        if not rows or "mos" not in rows[0]:
            found = "questions" if rows else "none"
            said = f"{name}: expected rows with a human score, got {found}"
            raise StudyError(said, "use a scored run")
        self.readings = Readings(rows, run.fusion.vote)
        fitted = fit and run.fusion.model_copy(update=fit.parameters)
        self.modes = scored_modes(self.readings, run.fusion, fitted)
        self.wide = pd.DataFrame({mode.name: mode.scores for mode in self.modes.values()})
        self.product = run.fusion.mode if run.fusion.mode in self.modes else self.mode()
        usual = "classification" if "classification" in self.modes else self.product
        self.baseline = self.mode(baseline or usual)
        columns = ["key", "split", "group", *PARTS]
        self.pictures = pd.DataFrame(list(rows), columns=[*columns, "mos"]).astype({"mos": float})
        mos = self.pictures["mos"].to_numpy()
        self.quality = mos if run.dataset.higher_is_better else -mos
        self.levels = run.dataset.to_levels(mos) if run.dataset.on_levels else mos * np.nan
        self.draws = Draws(rows, np.random.default_rng(0), draws)

    def mode(self, name: str | None = None) -> str:
        """The mode of that name, or the first. Raises StudyError where it is not there."""
        if name in self.modes:
            return name
        if name or not self.modes:
            known = listed(self.modes) or "no mode: every row failed"
            raise StudyError(f"{self.name}: expected a mode of {known}; got {name!r}")
        return next(iter(self.modes))

    @property
    def intervals(self) -> str:
        """A note on the intervals of its figures."""
        draws = self.draws
        return f"Intervals are 95 %: {len(draws.places)} bootstrap draws of {draws.units} {draws.over}."

    @property
    def scores(self) -> pd.DataFrame:
        """The tidy frame: a line for each image and mode with the columns of `pictures`, mode, and
        score (higher is better, nan where the image failed)."""
        modes = self.modes.values()
        return pd.concat([self.pictures.assign(mode=m.name, score=m.scores) for m in modes])

    @cached_property
    def exposures(self) -> pd.DataFrame:
        """How the parts of each mode have met the data set."""
        return self._exposures_to(self.run.dataset.key)

    def learned_from(self) -> list[str]:
        """The data sets that a part of some mode is known to have met, by the names that --part-of
        takes."""
        keys = [key for key, info in DATASETS.items() if info.scale]
        return [key for key in keys if (self._exposures_to(key).how != UNKNOWN_TRAINING).any()]

    def _exposures_to(self, dataset: str) -> pd.DataFrame:
        found, model = [], self.run.model
        for mode in self.modes.values():
            tools = [tool for tool in mode.tools if tool in TOOLS]
            maps = self.run.maps if mode.maps else {}
            asked = (model.name, model.notice) if mode.model else ()
            for exposure in exposures(dataset, tools, maps, *asked):
                found.append((mode.name, *exposure))
        return pd.DataFrame(found, columns=["mode", "what", "how", "touches"])

    def mark(self, mode: str) -> str:
        """What stands beside a mode's figures: "seen" by a part of it, "?" where that is unknown,
        or nothing where its rank correlation may enter a mean over data sets, which the scale alone
        of a single score does not touch."""
        found = self.exposures[self.exposures["mode"] == mode]
        if not self.modes[mode].model:
            found = found[found.touches == "ranks"]
        if found.empty:
            return ""
        return "?" if found.how.eq(UNKNOWN_TRAINING).all() else "seen"
