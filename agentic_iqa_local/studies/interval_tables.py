"""What the intervals of q are worth on a run: how often they hold the truth, how wide they are, what is gained by
leaving the widest out, how often a verdict of `--at-least` is wrong, and how often q ranks the better of two higher.

Each table has a line for every condition (pipeline, reference, look) that the run's rows allow, under a calibration
from elsewhere, and under the run's own: a random half of its scenes is judged by a calibration that was made on the
other half, `SPLITS` times. No picture is judged by a calibration that has seen its scene.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from agentic_iqa_local.judgement.fit import Fit, read_fit
from agentic_iqa_local.judgement.intervals import (
    COVERAGE,
    FEATURES,
    HIGHEST,
    LOWEST,
    SHIPPED,
    WIDENED,
    Errors,
)
from agentic_iqa_local.result import Condition
from agentic_iqa_local.state import lower_edge
from agentic_iqa_local.studies.calibrating import cases, errors
from agentic_iqa_local.studies.scored_run import ScoredRun
from agentic_iqa_local.studies.statistics import interval, mean, share, srcc

SPLITS = 20
GATES = {
    letter: lower_edge(letter) for letter in ("B", "C", "D")
}  # the quality that --at-least asks for
ERROR_RATE, ERROR_RATE_WIDENED = 0.1, 0.05  # as gates.Sureness has them
FEWEST = 50  # pictures in all: a calibration of half of them can give 90 %
KEPT = (100, 90, 80, 70, 60, 50)  # percent
MOST, MOST_DRAWS = (
    2000,
    200,
)  # pictures whose pairs are looked at, and draws: each takes a product of matrices
APART = (0.0, 0.5, 1.0, 2.0, math.inf)  # levels between the human scores
Line = dict[str, Any]


class Judged(NamedTuple):
    """The pictures of one condition (a table of `cases`) under one calibration: its trials, and `whole` with each
    picture once. `line` are the first columns of every table."""

    line: Line
    known: pd.DataFrame
    trials: list[pd.DataFrame]
    whole: pd.DataFrame

    def mean(self, name: str, run: ScoredRun) -> np.ndarray:
        """The mean of a trial's column for each of the run's rows, (rows,); nan where there is none."""
        return (
            pd.concat(self.trials)[name]
            .groupby(level=0)
            .mean()
            .reindex(range(len(run.rows)))
            .to_numpy()
        )


def interval_tables(run: ScoredRun, fit: Fit | None) -> tuple[dict[str, pd.DataFrame], list[str]]:
    """The tables by name, and what could not be made. `fit` calibrates in the place of the calibration that ships."""
    if run.settings.mode != "logits":
        return {name: pd.DataFrame() for name in TABLES}, [
            "No figures of intervals: they are of the mode logits."
        ]
    notes: list[str] = []
    found = [*_under_given(run, fit, notes), *_under_own(run, notes)]
    lines = {
        name: [of.line | line for of in found for line in make(run, of)]
        for name, make in TABLES.items()
    }
    return {name: pd.DataFrame(table) for name, table in lines.items()}, notes


def _under_given(run: ScoredRun, fit: Fit | None, notes: list[str]) -> Iterator[Judged]:
    """Under the calibration of `fit`, or else the shipped one where that is of the run's model, query and fusion. On
    a scale that has no levels the human scores have those that are expected, in the order of the scores."""
    name, given = ("the fit", fit) if fit else ("shipped", read_fit(SHIPPED))
    calibration = given.intervals
    if calibration is None:
        notes.append(f"No figures of intervals with {name}: it calibrates no intervals.")
        return
    ours = {name: run.run["model"].get(name) for name in ("dtype", "quantization")}
    ours |= {"model": run.run["identity"]["model"], "query": run.run["identity"]["reads"]["query"]}
    ours |= {name: getattr(run.settings, name) for name in ("mode", "temperature", "eta")}
    if fit is None and (
        other := [fact for fact, value in ours.items() if getattr(calibration, fact) != value]
    ):
        notes.append(
            f"No figures of intervals with {name}: it was made with another {' and another '.join(other)}."
        )
        return
    seen = np.array([given.dataset == run.info.key and given.used(row) for row in run.rows])
    settings = run.settings.model_copy(
        update={"temperature": calibration.temperature, "eta": calibration.eta}
    )
    truth = np.where(seen, np.nan, run.levels[0] if run.info.on_levels else run.quality)
    for condition, known in cases(run.readings, truth, run.run, settings).items():
        if part := calibration.of(condition):
            if not run.info.on_levels:
                expected = np.sort(part.expected(known.q.to_numpy()).clip(LOWEST, HIGHEST))
                known["truth"] = np.interp(
                    known.truth.rank(), np.arange(1, len(known) + 1), expected
                )
            whole = trial(part, known)
            yield Judged(_line(run, condition, name), known, [whole], whole)
        else:
            notes.append(
                f"No figures of intervals with {name} for {condition.look}: it holds no such picture."
            )


def _under_own(run: ScoredRun, notes: list[str]) -> Iterator[Judged]:
    if not run.info.on_levels:
        notes.append(
            "No calibration of the run's own: the human scores are not of categories with known ends."
        )
        return
    for condition, known in cases(run.readings, run.levels[0], run.run, run.settings).items():
        known = known.assign(scene=run.draws.unit[known.index].astype(str))
        line = _line(run, condition, f"own, {SPLITS} random halves")
        if len(known) >= FEWEST and known.scene.nunique() > 1:
            yield Judged(line, known, *cross_fitted(condition, known))
        else:
            few = f"{len(known)} pictures of {known.scene.nunique()} {run.draws.over}, it takes {FEWEST} of 2"
            notes.append(
                f"No calibration of the run's own for {', '.join([*line.values()][:3])}: {few}."
            )


def _line(run: ScoredRun, condition: Condition, calibration: str) -> Line:
    reference, scale = (
        "with" if condition.reference else "without",
        "levels" if run.info.on_levels else "ranks",
    )
    line = {"pipeline": condition.pipeline, "reference": reference, "look": condition.look}
    return line | {"calibration": calibration, "scale": scale}


# One calibration on pictures


def trial(part: Errors, known: pd.DataFrame) -> pd.DataFrame:
    """One calibration's word on pictures, a table of `calibrating.cases`: a line for each, in levels.

    Columns are q, the truth and what q lets expect of it, the interval's `low`, `high` and `width`, whether it holds
    the truth (`covered`) and is `widened`, the width of one that is as wide for all pictures (`constant_width`: split
    conformal, Lei et al., JASA 2018), and under each letter of GATES the probability of that truth or a better.
    """
    q, truth = known.q.to_numpy(), known.truth.to_numpy()
    expected, difficulty = part.expected(q), part.difficulty(known[[*FEATURES]].to_numpy())
    widened = np.array([voters not in part.tools for voters in known.voters])
    usual, wide = (part.ends(q, difficulty, coverage) for coverage in (COVERAGE, WIDENED))
    low, high = np.where(widened[:, None], wide, usual).T
    rank = math.ceil(
        round((len(part.errors) + 1) * COVERAGE, 9)
    )  # of the distance that is half of the constant width
    half = np.append(np.sort(np.abs(part.errors)), math.inf)[rank - 1]
    columns = {
        "q": q,
        "truth": truth,
        "expected": expected,
        "low": low,
        "high": high,
        "width": high - low,
    }
    columns |= {
        "covered": ((low <= truth) & (truth <= high)).astype(float),
        "widened": widened.astype(float),
    }
    columns["constant_width"] = np.ptp(
        np.clip([expected - half, expected + half], LOWEST, HIGHEST), axis=0
    )
    columns |= {
        letter: part.probability_at_least(q, difficulty, quality)
        for letter, quality in GATES.items()
    }
    return pd.DataFrame(columns, known.index)


def cross_fitted(
    condition: Condition, known: pd.DataFrame
) -> tuple[list[pd.DataFrame], pd.DataFrame]:
    """SPLITS trials, each of a random half of the scenes under the calibration of the other half; and one of all
    pictures, each half of the first split under the calibration of the other."""
    drawn, (names, scene) = np.random.default_rng(0), np.unique(known.scene, return_inverse=True)
    halves = [
        np.isin(scene, drawn.permutation(len(names))[: len(names) // 2]) for _ in range(SPLITS)
    ]
    rng, again = np.random.default_rng(0), np.random.default_rng(0)
    trials = [trial(errors(condition, known[used], rng), known[~used]) for used in halves]
    both = [
        trial(errors(condition, known[used], again), known[~used])
        for used in (halves[0], ~halves[0])
    ]
    return trials, pd.concat(both).sort_index()


# Tables


def _intervals(run: ScoredRun, judged: Judged) -> Iterator[Line]:
    known, with_reference = judged.known, judged.line["reference"] == "with"
    alike = sum((row.get("reference") is not None) == with_reference for row in run.rows)
    line = {"n": len(known), "share": len(known) / alike}
    line |= run.draws.mean("coverage", judged.mean("covered", run))
    line["coverage_sd"] = (
        np.std([each.covered.mean() for each in judged.trials]) if judged.trials[1:] else math.nan
    )
    line |= run.draws.mean("width", judged.mean("width", run))
    line |= {
        name: mean(judged.mean(name, run)[known.index]) for name in ("constant_width", "widened")
    }
    yield line | {"srcc": srcc(known.q.to_numpy(), known.truth.to_numpy())}


def _within(run: ScoredRun, judged: Judged) -> Iterator[Line]:
    """Coverage and width within distortion types, levels, subsets and fifths of q."""
    covered, width, q = judged.mean("covered", run), judged.mean("width", run), judged.known.q
    fifth = pd.Series(np.argsort(np.argsort(q, kind="stable")) * 5 // len(q) + 1, q.index)
    parts = run.labels.loc[:, run.labels.nunique() > 1].assign(**{"fifth of q": fifth})
    for by, of in parts.items():
        for value in sorted(of.dropna().unique()):
            chosen = (of == value).to_numpy() & np.isfinite(covered)
            if chosen.any():
                shown = f"{value:g}" if isinstance(value, float) else value
                line = {"by": by, "value": shown, "n": chosen.sum(), "width": mean(width[chosen])}
                yield line | run.draws.mean("coverage", np.where(chosen, covered, np.nan))


def _abstaining(run: ScoredRun, judged: Judged) -> Iterator[Line]:
    """Error and SRCC of the pictures that are kept when those with the widest intervals are left out."""
    whole = judged.whole.sort_values("width", kind="stable")
    error = (whole.truth - whole.expected.clip(LOWEST, HIGHEST)).abs()
    for percent in KEPT:
        kept = whole[: math.ceil(percent * len(whole) / 100)]
        of = error[kept.index].reindex(range(len(run.rows))).to_numpy()
        line = {"kept": f"{percent} %", "n": len(kept), "widest": kept.width.iloc[-1]}
        yield (
            line
            | run.draws.mean("mean_error", of)
            | {"srcc": srcc(kept.q.to_numpy(), kept.truth.to_numpy())}
        )


def _gates(_: ScoredRun, judged: Judged) -> Iterator[Line]:
    """How many pictures a gate decides, as `gates.Sureness` does, and how many of them wrongly; the mean of trials."""
    of = pd.concat(judged.trials)
    sure = 1 - np.where(of.widened, ERROR_RATE_WIDENED, ERROR_RATE)
    for letter, quality in GATES.items() if judged.line["scale"] == "levels" else ():
        good, passed, failed = of.truth >= quality, of[letter] >= sure, 1 - of[letter] >= sure
        counts = len(of), (passed | failed).sum(), ((passed & ~good) | (failed & good)).sum()
        asked, decided, wrong = np.divide(counts, len(judged.trials))
        line = {"at_least": letter, "n": round(asked), "decided": decided / asked}
        yield line | (share("error", wrong, decided) if round(decided) else {"error": math.nan})


def _pairwise(run: ScoredRun, judged: Judged) -> Iterator[Line]:
    """How often q ranks the better of two pictures higher, by how far the human scores lie apart; equal q count half.
    In a draw a pair counts as often as that holds both pictures, and once a copy where they share a unit."""
    known = judged.known.sample(min(len(judged.known), MOST), random_state=0).sort_index()
    truth, q, unit = known.truth.to_numpy(), known.q.to_numpy(), run.draws.unit[known.index]
    weights = run.draws.weights[:MOST_DRAWS, known.index].astype(np.float32)
    apart = np.triu(truth[:, None] - truth[None, :], 1)
    ranked = np.sign(q[:, None] - q[None, :]) * np.sign(apart)
    right, alike = np.where(ranked == 0, 0.5, ranked > 0), unit[:, None] == unit[None, :]

    def on_draws(pairs: np.ndarray) -> np.ndarray:
        both = ((weights @ (pairs * ~alike)) * weights).sum(axis=1)
        return both + weights @ (pairs * alike).sum(axis=1)

    for low, high in itertools.pairwise(APART):
        chosen = ((np.abs(apart) > low) & (np.abs(apart) <= high)).astype(np.float32)
        if count := int(chosen.sum()):
            sums, counts = on_draws(chosen * right.astype(np.float32)), on_draws(chosen)
            shares = np.divide(sums, counts, out=np.full_like(sums, math.nan), where=counts > 0)
            label = f"{low:g} to {high:g}" if high < math.inf else f"beyond {low:g}"
            yield {"levels_apart": label, "n": count} | interval(
                "right", mean(right[chosen > 0]), shares
            )


TABLES: dict[str, Callable[[ScoredRun, Judged], Iterator[Line]]] = {
    "intervals": _intervals,
    "intervals_within": _within,
    "abstaining": _abstaining,
    "gates": _gates,
    "pairwise": _pairwise,
}
