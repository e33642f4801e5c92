"""Run against run on the same images: two models, or two versions of the program, from stored rows alone.

Images are matched by their rows' keys, all runs are resampled on the same draws, and every difference is paired.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from agentic_iqa_local.errors import one_line
from agentic_iqa_local.studies.datasets import listed
from agentic_iqa_local.studies.scored_run import ScoredRun
from agentic_iqa_local.studies.statistics import mean, plcc, srcc
from agentic_iqa_local.studies.store import Run, StudyError, dataset_info
from agentic_iqa_local.studies.tables import paired

FEWEST = 10  # common images
ALL = "all"


def compare(
    stored: Mapping[str, Run], *, modes: Sequence[str] = ("logits",), draws: int = 1000
) -> tuple[dict[str, pd.DataFrame], list[str]]:
    """Each run after the first against the first: the tables "runs" and "run_differences", and notes.

    `stored` holds run.json and rows of each by its name, `modes` are scoring modes, or `ALL` for those that every run
    has. Raises StudyError for fewer than two runs or FEWEST common images, runs of different data sets, images or
    human scores that differ, and a mode that is not in all of them.
    """
    rows = _matched(stored)
    runs = [ScoredRun(stored[name][0], rows[name], name=name, draws=draws) for name in stored]
    for run in runs:
        run.draws = runs[0].draws
    shared = [mode for mode in runs[0].modes if all(mode in run.modes for run in runs)]
    wanted = shared if list(modes) == [ALL] else list(modes)
    if not set(wanted) <= set(shared):
        expected = f"expected modes that every run has ({listed(shared)}), got {listed(modes)}"
        raise StudyError(f"compare: {expected}", "choose with --mode")
    figures, lines, pairs, alike = [], [], [], []
    for mode in wanted:
        kept = np.all([run.modes[mode].answered for run in runs], axis=0)
        for run in runs:
            line = {
                "mode": mode,
                "run": run.name,
                "model": run.run["model"]["name"],
                "n": kept.sum(),
            }
            line |= run.figure("srcc", srcc, mode, kept=kept)
            figures.append(line | run.figure("plcc", plcc, mode, kept=kept))
        for run in runs[1:]:
            lines.append({"mode": mode, "first": run.name, "second": runs[0].name})
            pairs.append(((run, mode), (runs[0], mode), kept))
            scores = run.modes[mode].scores[kept], runs[0].modes[mode].scores[kept]
            gap, line = np.abs(scores[0] - scores[1]), {"rank_correlation": srcc(*scores)}
            alike.append(
                line
                | {"mean_absolute_difference": mean(gap), "largest_difference": gap.max(initial=0)}
            )
    differences = pd.concat([paired(lines, pairs), pd.DataFrame(alike)], axis=1)
    tables = {"runs": pd.DataFrame(figures), "run_differences": differences}
    left = ", ".join(
        f"{len(stored[run.name][1]) - len(run.rows)} of {listed([run.name])}" for run in runs
    )
    notes = [f"{len(runs[0].rows)} images are in every run; left out: {left}."]
    notes += [_settings_that_differ(runs[0], run) for run in runs[1:]]
    return tables, [one_line(note) for note in notes]


def _matched(stored: Mapping[str, Run]) -> dict[str, list[dict[str, Any]]]:
    """The rows of the images that all runs have, in one order. Raises StudyError."""
    if len(stored) < 2:
        raise StudyError(
            f"compare: expected two runs or more, got {len(stored)}", "name another folder"
        )
    keys = {name: dataset_info(run).key for name, (run, _) in stored.items()}
    if len(set(keys.values())) > 1:
        told = " and ".join(f"{name} is of {key}" for name, key in keys.items())
        raise StudyError(f"compare: expected runs of one data set, {told}", "compare them apart")
    by_key = {name: {row["key"]: row for row in rows} for name, (_, rows) in stored.items()}
    (first, ours), *others = by_key.items()
    common = [key for key in ours if all(key in rows for _, rows in others)]
    if len(common) < FEWEST:
        expected = f"expected at least {FEWEST} common images, found {len(common)}"
        raise StudyError(f"compare: {expected}", "run both on that many images or more")
    for name, theirs in others:
        for what, fact in (("scores", "mos"), ("files", "sha256")):
            differ = [
                key
                for key in common
                if len({ours[key].get(fact), theirs[key].get(fact)} - {None}) > 1
            ]
            if differ:
                expected = f"expected the same images, {len(differ)} of {len(common)} common ones have other {what}"
                raise StudyError(
                    f"compare: {expected} in {name} than in {first} (the first is {differ[0]})"
                )
    return {name: [rows[key] for key in common] for name, rows in by_key.items()}


def _settings_that_differ(ours: ScoredRun, theirs: ScoredRun) -> str:
    """A note on what the runs' rows depend on, and the versions that they were made with."""
    parts = [
        {name: each.run.get(name) for name in ("identity", "git", "versions")}
        for each in (ours, theirs)
    ]
    told = pd.json_normalize(parts).drop(columns="identity.dataset", errors="ignore").map(str)
    differ = sorted({name.removeprefix("identity.") for name in told.columns[told.nunique() > 1]})
    return f"{listed([theirs.name])} differs from {listed([ours.name])} in: {', '.join(differ) or 'nothing known'}."
