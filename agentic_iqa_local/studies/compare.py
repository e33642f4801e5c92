"""Run against run on the same images: two models, or two versions of the program, from stored rows
alone.

Images are matched by their rows' keys, all runs are resampled on the same draws, and every
difference is paired.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from agentic_iqa_local.errors import one_line
from agentic_iqa_local.studies.datasets import listed
from agentic_iqa_local.studies.scored_run import ScoredRun
from agentic_iqa_local.studies.store import Run, Stored, StudyError
from agentic_iqa_local.studies.tables import agreement, decided, differences

FEWEST = 10  # common images
ALL = "all"
MOST_NAMED = 6  # settings that differ
LONGEST = 100  # characters of a setting
NOT_SET = "none"


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
    draws_of, quality = first.draws, first.quality
    figures, compared = [], []
    for mode in first.modes if list(modes) == [ALL] else modes:
        scores = pd.DataFrame({run.name: run.wide[run.mode(mode)] for run in runs})
        scores = scores.where(scores.notna().all(axis=1))  # of the images that all answered
        figures.append(agreement(draws_of, scores, quality).rename(columns={"mode": "run"}))
        figures[-1].insert(0, "mode", mode)
        compared.append(differences(draws_of, scores, quality, first.name))
        compared[-1] = compared[-1].assign(mode=mode, **_distances(scores, first.name))
    notes = [
        _left_out(stored, first),
        first.intervals,
        *(_settings_that_differ(first, run) for run in others),
    ]
    tables = {"runs": pd.concat(figures), "run_differences": decided(pd.concat(compared))}
    return tables, [one_line(note) for note in notes]


def _matched(stored: Mapping[str, Stored]) -> dict[str, list[dict[str, Any]]]:
    """The rows of the images that all runs have, in one order. Raises StudyError."""
    _check_sets(stored)
    by_key = {name: {row["key"]: row for row in rows} for name, (_, rows) in stored.items()}
    first, *others = by_key.values()
    keys = [key for key in first if all(key in rows for rows in others)]
    if len(keys) < FEWEST:
        expected = f"expected at least {FEWEST} common images, found {len(keys)}"
        raise StudyError(f"compare: {expected}", "run both on that many images or more")
    for key in keys:
        _check_same([rows[key] for rows in by_key.values()])
    return {name: [rows[key] for key in keys] for name, rows in by_key.items()}


def _check_sets(stored: Mapping[str, Stored]) -> None:
    """Raises StudyError unless these are two runs or more of one data set."""
    sets = sorted({run.dataset.key for run, _ in stored.values()})
    if len(stored) < 2 or len(sets) > 1:
        said = f"compare: expected two runs or more of one data set, got {len(stored)}"
        remedy = "name other folders, or repeat the run of a manifest with --part-of"
        raise StudyError(f"{said} of {listed(sets)}", remedy)


def _check_same(rows: Sequence[Mapping[str, Any]]) -> None:
    """Raises StudyError unless the rows are of one image with one human score."""
    for what, fact in (("scores", "mos"), ("files", "sha256")):
        if len({row.get(fact) for row in rows} - {None}) > 1:
            said = f"{rows[0]['key']} has other {what} in another run"
            raise StudyError(f"compare: expected the same images, {said}")


def _distances(scores: pd.DataFrame, first: str) -> dict[str, list[float]]:
    """How far the scores of the other runs lie from those of the first."""
    others = scores.drop(columns=first)
    gap = others.sub(scores[first], axis=0).abs()
    return {
        "rank_correlation": others.corrwith(scores[first], method="spearman").to_list(),
        "mean_absolute_difference": gap.mean().to_list(),
        "largest_difference": gap.max().to_list(),
    }


def _left_out(stored: Mapping[str, Stored], first: ScoredRun) -> str:
    common = len(first.rows)
    left = [f"{len(rows) - common} of {listed([name])}" for name, (_, rows) in stored.items()]
    return f"{common} images are in every run; left out: {', '.join(left)}."


def _settings_that_differ(ours: ScoredRun, theirs: ScoredRun) -> str:
    """A note on what the runs' rows depend on."""
    settings = pd.concat([_settings(ours.run), _settings(theirs.run)])
    settings["git"] = [ours.run.git, theirs.run.git]
    settings = settings.fillna(NOT_SET)
    said = list[str]()
    for name, (was, now) in settings.items():
        if was != now:
            said.append(f"{name} {now:.{LONGEST}}, {ours.name} has {was:.{LONGEST}}")
    if len(said) > MOST_NAMED:
        said[MOST_NAMED:] = [f"and {len(said) - MOST_NAMED} more that run.json has"]
    return f"{theirs.name} has {'; '.join(said) or f'the settings of {ours.name}'}."


def _settings(run: Run) -> pd.DataFrame:
    """One line with the texts of what a run's rows depend on; what users set comes first."""
    apart = {"dataset": True, "models": True, "configuration": {"tools"}}
    identity = run.identity.model_dump(mode="json", exclude=apart)
    parts = [
        run.model_dump(mode="json", include={"fusion", "tools"}),
        run.model_dump(mode="json", include={"model": {"name", "dtype", "quantization"}}),
        identity.pop("configuration", {}),
        identity,
    ]
    return pd.concat([pd.json_normalize(part) for part in parts], axis="columns").map(_text)


def _text(value: Any) -> str:
    return NOT_SET if value is None else json.dumps(value, ensure_ascii=False).replace('"', "")
