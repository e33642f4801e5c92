"""What are the intervals of q worth on a run: how often they hold the truth, how wide they are, what is gained by
leaving the widest out, how often a verdict of `--at-least` is wrong, and which of two pictures is better?

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
from scipy.stats import binomtest, rankdata

from agentic_iqa_local.judgement.fit import Fit, read_fit
from agentic_iqa_local.judgement.intervals import COVERAGE, FEATURES, HIGHEST, LOWEST, SHIPPED, WIDENED, Errors
from agentic_iqa_local.result import Condition
from agentic_iqa_local.state import lower_edge
from agentic_iqa_local.studies.calibrating import cases, errors
from agentic_iqa_local.studies.scored_run import ScoredRun
from agentic_iqa_local.studies.statistics import Draws, mean, srcc

SPLITS = 20
VALUES = 41  # of a picture's predictive distribution: enough for the probability that one of two is better
GATES = {letter: lower_edge(letter) for letter in ("B", "C", "D")}  # the quality that --at-least asks for
ERROR_RATE, ERROR_RATE_WIDENED = 0.1, 0.05  # as gates.Sureness has them
FEWEST = 50  # pictures in all: a calibration of half of them can give 90 %
FAMILIES = {  # of the synthetic kinds of scripts/training/distortions.py
    "Blurs": ("gaussian_blur", "defocus_blur", "motion_blur", "upscale", "denoise"),
    "Noise": ("white_noise", "chroma_noise", "impulse_noise", "speckle_noise", "poisson_noise", "blotchy_noise"),
    "Compression": ("jpeg", "jpeg2000", "webp", "palette"),
    "Brightness change": ("brighten", "darken"),
    "Contrast": ("contrast_decrease", "contrast_increase"),
    "Color distortions": ("desaturate", "colour_cast", "colour_bleed", "aberration"),
    "Sharpness": ("oversharpen", "halo"),
}
KEPT = (100, 90, 80, 70, 60, 50)  # percent
MOST, MOST_DRAWS = 2000, 200  # pictures whose pairs are all looked at, and draws: each takes a product of matrices
PAIRS = 20_000  # whose probability is looked at
APART = (0.0, 0.5, 1.0, 2.0, math.inf)  # levels between the human scores
CONFIDENCE = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
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
        return pd.concat(self.trials)[name].groupby(level=0).mean().reindex(range(len(run.rows))).to_numpy()


def interval_tables(run: ScoredRun, fit: Fit | None) -> tuple[dict[str, pd.DataFrame], list[str]]:
    """The tables by name, and what could not be made. `fit` calibrates in the place of the calibration that ships."""
    notes: list[str] = []
    found: list[Judged] = []
    if run.settings.mode == "logits":
        found = [*_under_given(run, fit, notes), *_under_own(run, notes)]
    else:
        notes.append("No figures of intervals: they are of the mode logits, the run was made with another.")
    lines = {name: [of.line | line for of in found for line in make(run, of)] for name, make in TABLES.items()}
    return {name: pd.DataFrame(table) for name, table in lines.items()}, notes


def _under_given(run: ScoredRun, fit: Fit | None, notes: list[str]) -> Iterator[Judged]:
    """Under the calibration of `fit`, or else the shipped one where that is of the run's model, query and fusion."""
    name, given = ("the fit", fit) if fit else ("shipped", read_fit(SHIPPED))
    calibration = given.intervals
    if calibration is None:
        notes.append(f"No figures of intervals with {name}: it calibrates no intervals.")
        return
    if fit is None and (other := _differing(run, given)):
        notes.append(f"No figures of intervals with {name}: it was made with another {' and another '.join(other)}.")
        return
    seen = np.array([given.dataset == run.info.key and given.used(row) for row in run.rows])
    fitted = {"temperature": calibration.temperature, "eta": calibration.eta}
    truth, settings = np.where(seen, np.nan, _truth(run)), run.settings.model_copy(update=fitted)
    for condition, known in cases(run.readings, truth, run.run, settings).items():
        part, line = calibration.of(condition), _line(condition) | {"calibration": name}
        if part is None:
            notes.append(f"No figures of intervals with {name} for {condition.look}: it holds no such picture.")
            continue
        if run.on_levels:
            yield Judged(line | {"scale": "levels"}, known, [whole := trial(part, known)], whole)
        expected = np.clip(part.expected(known.q.to_numpy()), LOWEST, HIGHEST)
        known = known.assign(truth=rank_matched(known.truth.to_numpy(), expected))
        yield Judged(line | {"scale": "ranks"}, known, [whole := trial(part, known)], whole)


def _differing(run: ScoredRun, given: Fit) -> list[str]:
    """The facts in which a run differs from what a calibration of intervals was made with."""
    ours = {name: run.run["model"].get(name) for name in ("dtype", "quantization")}
    ours |= {"model": run.run["identity"]["model"], "query": run.run["identity"]["reads"]["query"]}
    ours |= {name: getattr(run.settings, name) for name in ("mode", "temperature", "eta")}
    return [name for name, value in ours.items() if getattr(given.intervals, name) != value]


def _under_own(run: ScoredRun, notes: list[str]) -> Iterator[Judged]:
    if not run.on_levels:
        notes.append("No calibration of the run's own: the human scores are not of categories with known ends.")
        return
    for condition, known in cases(run.readings, _truth(run), run.run, run.settings).items():
        known = known.assign(scene=run.draws.unit[known.index].astype(str))
        if len(known) >= FEWEST and known.scene.nunique() > 1:
            line = _line(condition) | {"calibration": f"own, {SPLITS} random halves", "scale": "levels"}
            yield Judged(line, known, *cross_fitted(condition, known))
        else:
            few = f"{len(known)} pictures of {known.scene.nunique()} {run.draws.over}, it takes {FEWEST} of 2"
            notes.append(f"No calibration of the run's own for {', '.join(_line(condition).values())}: {few}.")


def _truth(run: ScoredRun) -> np.ndarray:
    return np.clip(run.levels[0], LOWEST, HIGHEST) if run.on_levels else run.quality


def _line(condition: Condition) -> Line:
    reference = "with" if condition.reference else "without"
    return {"pipeline": condition.pipeline, "reference": reference, "look": condition.look}


# One calibration on pictures


def trial(part: Errors, known: pd.DataFrame) -> pd.DataFrame:
    """One calibration's word on pictures, a table of `calibrating.cases`: a line for each, in levels.

    Columns are q, the truth and what q lets expect of it, the interval's `low`, `high` and `width`, whether it holds
    the truth (`covered`) and is `widened`, the width of an interval that is as wide for all pictures (`constant`),
    under each letter of GATES the probability that the truth is that or better, and as `values` VALUES equally
    probable values of the truth, rising.
    """
    q, truth = known.q.to_numpy(), known.truth.to_numpy()
    expected, difficulty = part.expected(q), part.difficulty(known[[*FEATURES]].to_numpy())
    widened = np.array([voters not in part.tools for voters in known.voters])
    usual, wide = (part.ends(q, difficulty, coverage) for coverage in (COVERAGE, WIDENED))
    low, high = np.where(widened[:, None], wide, usual).T
    half = half_width(np.array(part.errors))
    constant = np.clip(expected + half, LOWEST, HIGHEST) - np.clip(expected - half, LOWEST, HIGHEST)
    columns = {"q": q, "truth": truth, "expected": expected, "low": low, "high": high, "width": high - low}
    columns |= {"covered": ((low <= truth) & (truth <= high)).astype(float), "constant": constant}
    columns |= {letter: part.probability_at_least(q, difficulty, quality) for letter, quality in GATES.items()}
    values = list(part.quantiles(q, difficulty, VALUES))
    return pd.DataFrame(columns, known.index).assign(widened=widened.astype(float), values=values)


def half_width(distances: np.ndarray) -> float:
    """Of the interval that is as wide for all pictures: the ⌈(n + 1) · 0.9⌉-th smallest of n absolute distances,
    infinite where there are too few (split conformal: Lei et al., JASA 2018, algorithm 2)."""
    rank = math.ceil(round((len(distances) + 1) * COVERAGE, 9))
    return float(np.sort(np.abs(distances))[rank - 1]) if rank <= len(distances) else math.inf


def cross_fitted(condition: Condition, known: pd.DataFrame) -> tuple[list[pd.DataFrame], pd.DataFrame]:
    """SPLITS trials, each of a random half of the scenes under the calibration of the other half; and one of all
    pictures, each half of the first split under the calibration of the other."""
    drawn, (names, scene) = np.random.default_rng(0), np.unique(known.scene, return_inverse=True)
    halves = [np.isin(scene, drawn.permutation(len(names))[: len(names) // 2]) for _ in range(SPLITS)]
    rng, again = np.random.default_rng(0), np.random.default_rng(0)
    trials = [trial(errors(condition, known[used], rng), known[~used]) for used in halves]
    both = [trial(errors(condition, known[used], again), known[~used]) for used in (halves[0], ~halves[0])]
    return trials, pd.concat(both).sort_index()


def rank_matched(quality: np.ndarray, given: np.ndarray) -> np.ndarray:
    """`given` in the order of the qualities, both (pictures,): the quality with rank r gets the value with rank r.
    Equal qualities share the mean of their ranks."""
    return np.interp(rankdata(quality), np.arange(1, len(given) + 1), np.sort(given))


# Tables


def _intervals(run: ScoredRun, judged: Judged) -> Iterator[Line]:
    known, with_reference = judged.known, judged.line["reference"] == "with"
    alike = sum((row.get("reference") is not None) == with_reference for row in run.rows)
    line = {"n": len(known), "share": len(known) / alike}
    line |= run.draws.mean("coverage", judged.mean("covered", run)) | run.draws.mean("width", judged.mean("width", run))
    line["constant_width"] = mean(judged.mean("constant", run)[known.index])
    line["widened"] = mean(judged.mean("widened", run)[known.index])
    yield line | {"srcc": srcc(known.q.to_numpy(), known.truth.to_numpy())}


def _within(run: ScoredRun, judged: Judged) -> Iterator[Line]:
    """Coverage and width within distortion families, kinds, levels and fifths of q."""
    covered, width, q = judged.mean("covered", run), judged.mean("width", run), judged.known.q
    parts = pd.DataFrame({by: [row.get(by) for row in run.rows] for by in ("distortion", "level")}, dtype=object)
    parts.insert(0, "family", parts.distortion.map({kind: family for family, of in FAMILIES.items() for kind in of}))
    parts = parts.loc[:, parts.nunique() > 1]
    parts["fifth of q"] = pd.Series(np.argsort(np.argsort(q, kind="stable")) * 5 // len(q) + 1, q.index)
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
    for share in KEPT:
        kept = whole[: math.ceil(share * len(whole) / 100)]
        of = error[kept.index].reindex(range(len(run.rows))).to_numpy()
        line = {"kept": f"{share} %", "n": len(kept), "widest": kept.width.iloc[-1]}
        yield line | run.draws.mean("mean_error", of) | {"srcc": srcc(kept.q.to_numpy(), kept.truth.to_numpy())}


def _gates(_: ScoredRun, judged: Judged) -> Iterator[Line]:
    """How many pictures a gate decides, as `gates.Sureness` does, and how many of them wrongly; the mean of trials."""
    of = pd.concat(judged.trials)
    sure = 1 - np.where(of.widened, ERROR_RATE_WIDENED, ERROR_RATE)
    for letter, quality in GATES.items() if judged.line["scale"] == "levels" else ():
        good, passed, failed = of.truth >= quality, of[letter] >= sure, 1 - of[letter] >= sure
        counts = len(of), (passed | failed).sum(), ((passed & ~good) | (failed & good)).sum()
        asked, decided, wrong = np.divide(counts, len(judged.trials))
        line = {"at_least": letter, "n": round(asked), "decided": decided / asked}
        line |= dict.fromkeys(("error", "error_low", "error_high"), math.nan)
        if round(decided):
            ends = binomtest(round(wrong), round(decided)).proportion_ci(method="wilson")
            line |= {"error": wrong / decided, "error_low": ends.low, "error_high": ends.high}
        yield line


def _pairwise(run: ScoredRun, judged: Judged) -> Iterator[Line]:
    """How often q ranks the better of two pictures higher: a line for each bin of the human difference, over all pairs
    and over those of one scene, and one for each bin of the probability that the likelier one is better. Pairs of equal
    human scores are left out."""
    rng = np.random.default_rng(0)
    at = np.arange(len(judged.known))
    if len(at) > MOST:
        at = np.sort(rng.choice(at, MOST, replace=False))
    known, values = judged.known.iloc[at], np.stack([*judged.whole["values"]])[at]
    truth, q, scenes = (known[name].to_numpy() for name in ("truth", "q", "scene"))
    draws = Draws(run.draws.counts[:MOST_DRAWS], run.draws.unit[known.index], run.draws.over)
    apart = np.triu(truth[:, None] - truth[None, :], 1)
    ranked = np.sign(q[:, None] - q[None, :]) * np.sign(apart)
    right = np.where(ranked == 0, 0.5, ranked > 0)
    among = {"all": np.ones_like(apart, bool)}
    if any(row.get("group") is not None for row in run.rows):
        among["same scene"] = scenes[:, None] == scenes[None, :]
    for (pairs, together), (low, high) in itertools.product(among.items(), itertools.pairwise(APART)):
        chosen = (np.abs(apart) > low) & (np.abs(apart) <= high) & together
        label = f"{low:g} to {high:g}" if high < math.inf else f"beyond {low:g}"
        if chosen.any():
            yield {"pairs": pairs, "by": "levels apart", "bin": label, **_share(chosen, right, draws)}

    first, second = np.nonzero(apart)
    if len(first) > PAIRS:
        drawn = rng.choice(len(first), PAIRS, replace=False)
        first, second = first[drawn], second[drawn]
    better = np.array([_better(values[a], values[b]) for a, b in zip(first, second, strict=True)])
    confidence, right = np.maximum(better, 1 - better), np.zeros_like(right)
    right[first, second] = np.where(better == 0.5, 0.5, (better > 0.5) == (apart[first, second] > 0))
    place = np.clip(np.searchsorted(CONFIDENCE, confidence, side="right") - 1, 0, len(CONFIDENCE) - 2)
    for i, (low, high) in enumerate(itertools.pairwise(CONFIDENCE)):
        chosen = np.zeros(right.shape, bool)
        chosen[first[place == i], second[place == i]] = True
        if chosen.any():
            line = {"pairs": "all", "by": "probability of the likelier", "bin": f"{low:g} to {high:g}"}
            yield line | _share(chosen, right, draws, expected=mean(confidence[place == i]))


def _share(chosen: np.ndarray, right: np.ndarray, draws: Draws, expected: float = math.nan) -> Line:
    """The share of the `chosen` pairs, (pictures, pictures), that is `right`, with the interval over the draws: a pair
    counts as often as a draw holds both pictures, and once a copy where they share a unit."""
    together = chosen & (draws.unit[:, None] == draws.unit[None, :])
    apart, weights = (chosen & ~together).astype(np.float32), draws.weights.astype(np.float32)
    sums = [
        ((weights @ (apart * of)) * weights).sum(axis=1) + weights @ (together * of).sum(axis=1)
        for of in (right.astype(np.float32), np.ones_like(apart))
    ]
    shares = sums[0][sums[1] > 0] / sums[1][sums[1] > 0]
    low, high = np.quantile(shares, [0.025, 0.975]) if len(shares) else (math.nan, math.nan)
    count, share = int(chosen.sum()), mean(right[chosen])
    return {"n": count, "expected": expected, "right": share, "right_low": float(low), "right_high": float(high)}


def _better(one: np.ndarray, other: np.ndarray) -> float:
    """The probability that a draw of one, (values,), is above one of the other, both rising; equal ones count half."""
    below = np.searchsorted(other, one) + np.searchsorted(other, one, side="right")
    return float(below.mean() / 2 / len(other))


TABLES: dict[str, Callable[[ScoredRun, Judged], Iterator[Line]]] = {
    "intervals": _intervals,
    "intervals_within": _within,
    "abstaining": _abstaining,
    "gates": _gates,
    "pairwise": _pairwise,
}
