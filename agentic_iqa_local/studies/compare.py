"""Run against run on the same images: two models, or two versions of the program, from stored rows alone.

Images are matched by their rows' keys. Every figure is over the images that all runs answered, and every
difference is paired: all runs are resampled on the same draws.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from agentic_iqa_local.errors import one_line
from agentic_iqa_local.studies.datasets import DatasetInfo, listed, quoted
from agentic_iqa_local.studies.readings import LOGITS, Letters, Reading, readings
from agentic_iqa_local.studies.statistics import (
    UNDECIDED,
    Difference,
    Draws,
    Resampled,
    holm,
    interval,
    paired_difference,
    plcc,
    srcc,
    verdict,
)
from agentic_iqa_local.studies.study import (
    MARGIN,
    SIGNIFICANCE,
    Row,
    StudyError,
    Table,
    check_scores,
    dataset_info,
    fusion_settings,
    labels_of,
    spread,
)

FEWEST = 10  # common images
MODE = LOGITS.name  # the fused score q
ALL = "all"
NAMED = 6  # settings that differ

RUNS_TABLE = (
    "The runs on their common images",
    (
        "95 % bootstrap intervals over the images that every run answered; failed counts the common images"
        " that this run failed on."
    ),
)
DIFFERENCES_TABLE = (
    "Paired differences between the runs",
    (
        "The run's figure minus that of the one it is compared with, on the same draws. “Gains” and “loses”"
        " mean that the whole interval of the SRCC difference lies on that side of 0, “loses no more than"
        f" {MARGIN}” that it lies above −{MARGIN}; otherwise these images do not decide. The mean absolute"
        " and the largest difference are those of the mode's scores, in their unit; rank correlation is SRCC"
        " between the two runs' scores."
    ),
)


@dataclass(frozen=True)
class Named:
    """A run by the name that it is shown under: run.json and its rows."""

    name: str
    run: dict[str, Any]
    rows: Sequence[Row]


@dataclass(frozen=True)
class Comparison:
    """The two tables, and what a reader must know of them."""

    runs: Table
    differences: Table
    notes: list[str]


def compare(
    runs: Sequence[Named], *, modes: Sequence[str] = (MODE,), draws: int = 1000, seed: int = 0
) -> Comparison:
    """Each run after the first against the first, in each of `modes`, or in all that every run has (`ALL`).

    Raises StudyError for fewer than two runs, runs of different data sets, fewer than `FEWEST` common images,
    images whose pixels or human scores differ between the runs, and a mode that a run does not have.
    """
    if len(runs) < 2:
        raise StudyError(f"compare: expected two runs or more, got {len(runs)}", "name another folder")
    info = _data_set(runs)
    common, matched = _matched(runs)
    wanted = _readings_by_mode(runs, matched, info, modes)
    labels = labels_of(matched[0], "group", "row {}"), labels_of(matched[0], "distortion", "none")
    on_draws = Draws.make(len(common), np.random.default_rng(seed), *labels, draws)
    mos = np.array([row["mos"] for row in matched[0]], float)
    quality = mos if info.higher_is_better else -mos
    table: Table = []
    differences: list[tuple[Row, Difference]] = []
    for mode, of_runs in wanted.items():
        both = np.all([reading.answered for reading in of_runs], axis=0)
        sampled = [
            [on_draws.of(statistic, reading.scores, quality, answered=both) for statistic in (srcc, plcc)]
            for reading in of_runs
        ]
        lines = list(zip(runs, of_runs, sampled, strict=True))
        table += [_run_line(mode, named, reading, *figures) for named, reading, figures in lines]
        for named, reading, figures in lines[1:]:
            rank, linear = map(paired_difference, figures, sampled[0])
            row = {"mode": mode, "run": named.name, "against": runs[0].name, "n": rank.n}
            row |= spread("srcc_difference", rank) | {"p": rank.p, "p_holm": math.nan}
            row |= spread("plcc_difference", linear)
            row |= _agreement(reading.scores[both], of_runs[0].scores[both])
            differences.append((row, rank))
    _decide(differences)
    notes = list(map(one_line, _notes(runs, common, matched)))
    return Comparison(table, [row for row, _ in differences], notes)


def _matched(runs: Sequence[Named]) -> tuple[list[str], list[list[Row]]]:
    """The keys of the images that all runs have, and each run's rows of them in that order. Raises
    StudyError."""
    by_key = [{row["key"]: row for row in named.rows} for named in runs]
    common = [key for key in by_key[0] if all(key in rows for rows in by_key)]
    if len(common) < FEWEST:
        sizes = ", ".join(f"{quoted(named.name)} has {len(named.rows)}" for named in runs)
        raise StudyError(
            f"compare: expected at least {FEWEST} common images, found {len(common)} ({sizes})",
            "run both on the same images",
        )
    matched = [[rows[key] for key in common] for rows in by_key]
    _check_same_images(runs, matched)
    return common, matched


def _readings_by_mode(
    runs: Sequence[Named], matched: Sequence[Sequence[Row]], info: DatasetInfo, modes: Sequence[str]
) -> dict[str, list[Reading]]:
    """The readings of all runs by each mode that is asked for. Raises StudyError."""
    tools = "full_reference" if info.kind == "FR" else "no_reference"
    of_runs = [
        readings(rows, Letters.of(fusion_settings(named.run)), configured=named.run["tools"][tools])
        for named, rows in zip(runs, matched, strict=True)
    ]
    shared = [name for name in of_runs[0] if all(name in of_run for of_run in of_runs)]
    wanted = shared if list(modes) == [ALL] else list(modes)
    if not wanted or not set(wanted) <= set(shared):
        had = listed(shared) or "none: rows failed"
        raise StudyError(
            f"compare: expected modes that every run has ({had}), got {listed(modes)}", "choose with --mode"
        )
    return {name: [of_run[name] for of_run in of_runs] for name in wanted}


def _run_line(mode: str, named: Named, reading: Reading, rank: Resampled, linear: Resampled) -> Row:
    row = {
        "mode": mode,
        "run": named.name,
        "model": named.run["model"]["name"],
        "version": _version(named.run),
        "n": int(rank.kept.sum()),
        "failed": int((~reading.answered).sum()),
    }
    return row | spread("srcc", interval(rank)) | spread("plcc", interval(linear))


def _data_set(runs: Sequence[Named]) -> DatasetInfo:
    """Raises StudyError unless all runs are of one data set with human scores."""
    first, info = runs[0], dataset_info(runs[0].run)
    for named in runs:
        if (key := dataset_info(named.run).key) != info.key:
            raise StudyError(
                f"compare: expected runs of one data set, {first.name} is of {info.key} and {named.name} of"
                f" {key}"
            )
        if named.rows:  # without, no image is common
            check_scores(named.name, named.rows, info)
    return info


def _check_same_images(runs: Sequence[Named], matched: Sequence[Sequence[Row]]) -> None:
    """Raises StudyError where a key stands for other pixels or another score in one of the runs."""
    for named, rows in zip(runs[1:], matched[1:], strict=True):
        for what, name in (("scores", "mos"), ("files", "sha256")):
            pairs = [
                (a, b)
                for a, b in zip(matched[0], rows, strict=True)
                if None not in (a.get(name), b.get(name))
            ]
            if other := [a["key"] for a, b in pairs if a[name] != b[name]]:
                raise StudyError(
                    f"compare: expected the same images, {len(other)} of {len(rows)} common ones have other"
                    f" {what} in {named.name} than in {runs[0].name} (the first is {other[0]})"
                )


def _agreement(ours: np.ndarray, theirs: np.ndarray) -> Row:
    """How near two runs' scores of the same images, both (n,), lie to each other."""
    gap = np.abs(ours - theirs)
    mean = float(gap.mean()) if len(gap) else math.nan
    return {
        "mean_absolute_difference": mean,
        "largest_difference": float(gap.max(initial=0)),
        "rank_correlation": srcc(ours, theirs),
    }


def _decide(differences: Sequence[tuple[Row, Difference]]) -> None:
    """Adds Holm's p and the verdict: among several comparisons a gain or a loss counts only where both
    decide."""
    adjusted = holm([1.0 if math.isnan(rank.p) else rank.p for _, rank in differences])
    for (row, rank), p in zip(differences, adjusted, strict=True):
        row["p_holm"] = rank.p if math.isnan(rank.p) else float(p)
        row["verdict"] = verdict(rank, MARGIN) if rank.n >= FEWEST else UNDECIDED
        if (rank.low > 0 or rank.high < 0) and len(differences) > 1 and p >= SIGNIFICANCE:
            row["verdict"] = f"undecided among {len(differences)} comparisons"


def _notes(runs: Sequence[Named], common: Sequence[str], matched: Sequence[Sequence[Row]]) -> Iterator[str]:
    left = ", ".join(f"{len(named.rows) - len(common)} of {quoted(named.name)}" for named in runs)
    yield f"{len(common)} images are in every run; left out: {left}."
    failed = {
        named.name: sum(bool(row.get("error")) for row in rows)
        for named, rows in zip(runs, matched, strict=True)
    }
    if any(failed.values()):
        yield (
            "Common images that failed:"
            f" {', '.join(f'{count} in {quoted(name)}' for name, count in failed.items())}."
        )
    for named in runs[1:]:
        yield (
            f"{quoted(named.name)} differs from {quoted(runs[0].name)} in:"
            f" {_settings_that_differ(runs[0].run, named.run)}."
        )


def _settings_that_differ(ours: dict[str, Any], theirs: dict[str, Any]) -> str:
    """What the runs' rows depend on, and the versions that they were made with, with old and new value where
    these are short."""
    parts = [
        dict(_leaves({k: run.get(k) for k in ("identity", "git", "versions")})) for run in (ours, theirs)
    ]
    changed = []
    for name in sorted(parts[0].keys() | parts[1].keys()):
        old, new = (part.get(name) for part in parts)
        if old != new and name != "dataset":
            values = f" ({old} → {new})" if len(f"{old}{new}") <= 60 else ""
            changed.append(f"{name}{values}")
    more = [f"and {len(changed) - NAMED} more"] if len(changed) > NAMED else []
    return ", ".join(changed[:NAMED] + more) or "nothing that is known"


def _leaves(value: dict[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, inner in value.items():
        full = name if above in ("", "identity") else f"{above}.{name}"
        if isinstance(inner, dict):
            yield from _leaves(inner, full)
        else:
            yield full, inner


def _version(run: dict[str, Any]) -> str:
    """The checkout's commit, with "+" where files differed from it; nothing for a run outside a checkout."""
    git = run.get("git") or ""
    return git[:12] + "+" * git.endswith("+")
