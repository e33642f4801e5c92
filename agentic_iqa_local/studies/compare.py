"""Run against run on the same images: two models, or two versions of the program, from stored rows
alone.

Images are matched by their rows' keys, all runs are resampled on the same draws, and every
difference is paired.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from agentic_iqa_local.errors import one_line
from agentic_iqa_local.studies.datasets import listed
from agentic_iqa_local.studies.scored_run import ScoredRun
from agentic_iqa_local.studies.statistics import plcc, srcc
from agentic_iqa_local.studies.store import Stored, StudyError
from agentic_iqa_local.studies.tables import decided, paired

FEWEST = 10  # common images
ALL = "all"


def compare(
    stored: Mapping[str, Stored], *, modes: Sequence[str] = ("logits",), draws: int = 1000
) -> tuple[dict[str, pd.DataFrame], list[str]]:
    """Each run after the first against the first: the tables "runs" and "run_differences", and
    notes.

    `stored` holds run.json and rows of each by its name, `modes` are scoring modes, or `ALL` for
    those that every run has. Raises StudyError for fewer than two runs or FEWEST common images,
    runs of different data sets, images or human scores that differ, and a mode that is not in all
    of them.
    """
    rows = _matched(stored)
    runs = [ScoredRun(stored[name][0], rows[name], name=name, draws=draws) for name in stored]
    first, *others = runs
    figures, differences = [], []
    for mode in _common_modes(runs, modes):
        scores = pd.DataFrame({run.name: run.modes[mode].scores for run in runs})
        scores = scores.where(scores.notna().all(axis=1))  # of the images that all answered
        for run in runs:
            figures.append({"mode": mode, "run": run.name, "model": run.run.model.name})
            figures[-1] |= _figures(first, scores[run.name].to_numpy())
        for run in others:
            ours, theirs = scores[run.name].to_numpy(), scores[first.name].to_numpy()
            line = {"mode": mode, "first": run.name, "second": first.name}
            differences.append(line | paired(first, ours, theirs) | _distances(ours, theirs))
    notes = [_left_out(stored, first)]
    notes += [_settings_that_differ(first, run) for run in others]
    tables = {"runs": pd.DataFrame(figures), "run_differences": decided(differences)}
    return tables, [one_line(note) for note in notes]


def _matched(stored: Mapping[str, Stored]) -> dict[str, list[dict[str, Any]]]:
    """The rows of the images that all runs have, in one order. Raises StudyError."""
    if len(stored) < 2:
        said = f"compare: expected two runs or more, got {len(stored)}"
        raise StudyError(said, "name another folder")
    keys = sorted({run.dataset.key for run, _ in stored.values()})
    if len(keys) > 1:
        said = f"compare: expected runs of one data set, got {listed(keys)}"
        raise StudyError(said, "compare them apart")
    facts, by_key = {}, {}
    for name, (_, rows) in stored.items():
        by_key[name] = {row["key"]: row for row in rows}
        facts[name] = pd.DataFrame(rows, by_key[name].keys(), ["mos", "sha256"])
    common = pd.concat(facts, axis=1, join="inner")
    if len(common) < FEWEST:
        expected = f"expected at least {FEWEST} common images, found {len(common)}"
        raise StudyError(f"compare: {expected}", "run both on that many images or more")
    for what, fact in (("scores", "mos"), ("files", "sha256")):
        differ = common.index[common.xs(fact, axis=1, level=1).nunique(axis=1) > 1]
        if len(differ):
            said = f"{len(differ)} of {len(common)} common ones have other {what} in another run"
            raise StudyError(
                f"compare: expected the same images, {said} ({differ[0]} is the first)"
            )
    return {name: [rows[key] for key in common.index] for name, rows in by_key.items()}


def _common_modes(runs: Sequence[ScoredRun], modes: Sequence[str]) -> list[str]:
    shared = [mode for mode in runs[0].modes if all(mode in run.modes for run in runs)]
    if list(modes) == [ALL]:
        return shared
    if not set(modes) <= set(shared):
        expected = f"expected modes that every run has ({listed(shared)}), got {listed(modes)}"
        raise StudyError(f"compare: {expected}", "choose with --mode")
    return list(modes)


def _figures(run: ScoredRun, score: np.ndarray) -> dict[str, Any]:
    ranks = run.draws.figure("srcc", srcc, score, run.quality)
    plain = run.draws.figure("plcc", plcc, score, run.quality)
    return {"n": np.isfinite(score).sum()} | ranks | plain


def _distances(ours: np.ndarray, theirs: np.ndarray) -> dict[str, float]:
    """How far the scores of two runs lie apart."""
    gap, both = np.abs(ours - theirs), np.isfinite(ours)
    return {
        "rank_correlation": srcc(ours[both], theirs[both]),
        "mean_absolute_difference": np.nanmean(gap),
        "largest_difference": np.nanmax(gap),
    }


def _left_out(stored: Mapping[str, Stored], first: ScoredRun) -> str:
    common = len(first.rows)
    left = [f"{len(rows) - common} of {listed([name])}" for name, (_, rows) in stored.items()]
    return f"{common} images are in every run; left out: {', '.join(left)}."


def _settings_that_differ(ours: ScoredRun, theirs: ScoredRun) -> str:
    """A note on what the runs' rows depend on, and the versions that they were made with."""
    told = [each.run.model_dump(include={"identity", "git", "versions"}) for each in (ours, theirs)]
    table = pd.json_normalize(told).drop(columns="identity.dataset", errors="ignore").map(str)
    differ = sorted(name.removeprefix("identity.") for name in table.columns[table.nunique() > 1])
    return f"{listed([theirs.name])} differs from {listed([ours.name])} in: {', '.join(differ) or 'nothing known'}."
