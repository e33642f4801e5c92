"""A run's tables: every scoring mode against the human scores, from stored rows alone.

`analyse` makes all tables and what the figures need. Knows nothing of models, files and pages.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from pydantic import ValidationError
from scipy.stats import rankdata

from agentic_iqa_local.config import FusionSettings
from agentic_iqa_local.errors import UserError
from agentic_iqa_local.iqa_tools import TOOLS
from agentic_iqa_local.levels import LETTER_TO_LEVEL, LEVEL_WORDS
from agentic_iqa_local.studies.datasets import DATASETS, DatasetInfo, listed
from agentic_iqa_local.studies.leakage import Exposure, exposures, is_clean, training_of_model
from agentic_iqa_local.studies.readings import (
    CLASSIFICATION,
    LEVELS,
    LOGITS,
    UNIFORM,
    Letters,
    Reading,
    product_score,
    readings,
    seconds,
    tool_means,
)
from agentic_iqa_local.studies.statistics import (
    Difference,
    Draws,
    Figure,
    LogisticFit,
    Resampled,
    RiskCoverage,
    Statistic,
    entropy,
    holm,
    interval,
    krcc,
    letters_calibration_error,
    meng,
    monotone_map,
    paired_difference,
    plcc,
    ranked_probability_score,
    ranked_probability_scores,
    risk_coverage,
    rmse,
    srcc,
    verdict,
    vqeg_logistic,
)
from agentic_iqa_local.text import one_line

BASELINE = CLASSIFICATION.name
FIRST_COMPARISON = (LOGITS.name, CLASSIFICATION.name)  # named before any run was looked at
MARGIN = 0.02  # of SRCC: what may be lost without mattering
KRCC_DRAWS = 200
SIGNIFICANCE = 0.05
WORST = 10
COVERAGES = (100, 90, 75, 50, 25)  # percent
TOKENS = ("prefilled", "reused", "decoded")
PRODUCT_TOLERANCE = 1e-6
PRODUCT_MODES = {"logits": LOGITS, "classification": CLASSIFICATION, "uniform": UNIFORM}  # by fusion.mode

Row = dict[str, Any]
Table = list[dict[str, Any]]


class StudyError(UserError, ValueError):
    """A run that cannot be reported on; one sentence for the user."""


@dataclass(frozen=True, eq=False)
class Study:
    """What a report says of one run. Arrays have an entry for each row.

    `quality` is the human score with higher for better. `letters` holds the distinct p_c by the modes that
    rest on them, `reliability` their confidence and correctness where levels are known, `curves` the
    product's mode by signal.
    """

    name: str
    run: dict[str, Any]
    rows: Sequence[Row]
    info: DatasetInfo
    modes: dict[str, Reading]
    quality: np.ndarray
    draws: Draws
    exposures: dict[str, list[Exposure]]
    product: str
    baseline: str
    comparator: str | None = None
    tables: dict[str, Table] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    fits: dict[str, LogisticFit] = field(default_factory=dict)
    letters: dict[tuple[str, ...], np.ndarray] = field(default_factory=dict)
    reliability: dict[tuple[str, ...], tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    curves: dict[str, RiskCoverage] = field(default_factory=dict)
    worst: list[dict[str, Any]] = field(default_factory=list)
    _known: dict[tuple, Resampled] = field(default_factory=dict)

    @property
    def mos(self) -> np.ndarray:
        """The human scores as the authors give them."""
        return self.quality if self.info.higher_is_better else -self.quality

    def sampled(
        self, statistic: Statistic, mode: str, answered: np.ndarray | None = None, **options: Any
    ) -> Resampled:
        """`statistic` of a mode with the human scores on the draws, computed once for the same rows."""
        reading = self.modes[mode]
        answered = reading.answered if answered is None else answered
        among = options.get("among")
        key = (
            statistic,
            mode,
            answered.tobytes(),
            None if among is None else among.tobytes(),
            options.get("first"),
        )
        if key not in self._known:
            self._known[key] = self.draws.of(
                statistic, reading.scores, self.quality, answered=answered, **options
            )
        return self._known[key]

    def is_clean(self, mode: str) -> bool:
        """Whether the mode's rank correlation here may enter an average over data sets."""
        reading = self.modes[mode]
        return is_clean(self.exposures[mode], ranks_of_one=not reading.model and len(reading.tools) == 1)

    def mark(self, mode: str) -> str:
        """What stands beside the mode's figures: "seen" by a part of it, "?" where that is unknown, nothing
        where clean."""
        if self.is_clean(mode):
            return ""
        return (
            "?"
            if all(exposure.how == "training data unknown" for exposure in self.exposures[mode])
            else "seen"
        )


def dataset_info(run: dict[str, Any]) -> DatasetInfo:
    """What run.json says of the data set, over what is known of a set of that key.

    Raises StudyError for an unknown key, and where run.json lacks a part that a report needs.
    """
    if lacking := [
        part for part in ("dataset", "model", "fusion", "tools", "maps", "identity") if part not in run
    ]:
        raise StudyError(
            f"run.json: expected what a study writes, got no {', '.join(lacking)}; report on a run of this"
            " version"
        )
    told = run["dataset"]
    if told["key"] not in DATASETS:
        raise StudyError(
            f"run.json: expected a data set of {', '.join(DATASETS)}, got {told['key']!r}; correct its key"
        )
    known = {item.name for item in fields(DatasetInfo)} - {"key", "seen_as"}
    return replace(
        DATASETS[told["key"]].info, **{name: value for name, value in told.items() if name in known}
    )


def fusion_settings(run: dict[str, Any]) -> FusionSettings:
    """The fusion that the run was made with. Raises StudyError."""
    try:
        return FusionSettings.model_validate(run["fusion"])
    except ValidationError as error:
        first = error.errors()[0]
        raise StudyError(
            f"run.json: expected the fusion of this version, got {first['loc'][0]}: {first['msg']}; run it"
            " anew"
        ) from error


def analyse(
    run: dict[str, Any],
    rows: Sequence[Row],
    info: DatasetInfo,
    *,
    name: str = "run",
    draws: int = 1000,
    seed: int = 0,
    baseline: str = BASELINE,
    comparator: str | None = None,
    fitted: Letters | None = None,
) -> Study:
    """All figures of a run. `baseline` is the mode that every other is compared with, `comparator` the part
    that the fusion is to be judged against, both named before any figure is looked at; `fitted` adds the mode
    "logits, fitted".

    Raises StudyError where there are no scored rows, no known direction of the scores, or no such baseline or
    comparator.
    """
    if not rows or any("mos" not in row for row in rows):
        raise StudyError(
            f"{name}: expected rows with a human score, got {'questions' if rows else 'none'}; use a"
            " scored run"
        )
    if info.higher_is_better is None:
        raise StudyError(
            f"{name}: expected run.json to say whether higher scores are better (dataset.higher_is_better)"
        )
    settings = fusion_settings(run)
    letters = Letters.of(settings)
    modes = readings(
        rows, letters, fitted, run["tools"]["full_reference" if info.kind == "FR" else "no_reference"]
    )
    if baseline not in modes:
        raise StudyError(
            f"{name}: expected a baseline of {listed(modes) or 'no mode: every row failed'}; got {baseline!r}"
        )
    if comparator not in (None, *modes):
        raise StudyError(f"{name}: expected a comparator of {listed(modes)}; got {comparator!r}")
    own = PRODUCT_MODES[settings.mode].name
    rng = np.random.default_rng(seed)
    sampled = Draws.make(
        len(rows), rng, labels_of(rows, "group", "row {}"), labels_of(rows, "distortion", "none"), draws
    )
    mos = np.array([row["mos"] for row in rows], float)
    quality = mos if info.higher_is_better else -mos
    product = own if own in modes else next(iter(modes))
    study = Study(
        name,
        run,
        rows,
        info,
        modes,
        quality,
        sampled,
        _exposures(run, info, modes),
        product,
        baseline,
        comparator,
    )
    study.letters.update(_distinct_letters(modes))
    study.tables.update(
        modes=_modes(study),
        differences=_differences(study),
        parts=_parts(study),
        by_distortion=_within(study, "distortion"),
        by_level=_within(study, "level"),
        by_subset=_within(study, "subset"),
        calibration=_calibration(study, rng),
        risk_coverage=_risk_coverage(study, letters.vote),
        cost=_cost(study),
        exposures=_exposure_table(study),
        failures=_failures(rows),
    )
    study.worst.extend(_worst(study))
    study.notes.extend(map(one_line, _notes(study, compared_with_agent=own in modes, fitted=fitted)))
    return study


def labels_of(rows: Sequence[Row], name: str, absent: str) -> list[str] | None:
    """The rows' labels, `absent` where a row has none; None when no row has one."""
    if all(row.get(name) is None for row in rows):
        return None
    return [absent.format(i) if row.get(name) is None else str(row[name]) for i, row in enumerate(rows)]


def _distinct_letters(modes: dict[str, Reading]) -> dict[tuple[str, ...], np.ndarray]:
    """Each p_c that tells levels apart, by the names of the modes that rest on it."""
    names: dict[Any, list[str]] = {}
    distinct: dict[Any, np.ndarray] = {}
    for name, reading in modes.items():
        p, letters = reading.p, reading.mode.letters
        if p is not None and reading.answered.any() and np.nanmax(np.ptp(p, axis=1)) > 0:
            names.setdefault(letters, []).append(name)
            distinct[letters] = p
    return {tuple(names[letters]): p for letters, p in distinct.items()}


def _exposures(
    run: dict[str, Any], info: DatasetInfo, modes: dict[str, Reading]
) -> dict[str, list[Exposure]]:
    """How the parts of each mode have met the data set."""
    model = training_of_model(run["model"]["name"], {"agentic_iqa_notice": run["model"].get("notice")})
    return {
        name: exposures(
            info.key,
            [tool for tool in reading.tools if tool in TOOLS],
            run["maps"] if reading.mapped else {},
            model if reading.model else None,
        )
        for name, reading in modes.items()
    }


# Tables


def spread(name: str, figure: Figure) -> dict[str, float]:
    return {name: figure.value, f"{name}_low": figure.low, f"{name}_high": figure.high}


def _counts(figure: Figure) -> dict[str, Any]:
    return {"n": figure.n, "failed": figure.failed}


def _modes(study: Study) -> Table:
    table = []
    for name, reading in study.modes.items():
        answered = reading.answered
        fit = study.fits[name] = vqeg_logistic(reading.scores[answered], study.quality[answered])
        mapped = np.full(len(answered), np.nan)
        mapped[answered] = fit.mapped
        rank = interval(study.sampled(srcc, name))
        row = {"mode": name, "seen": study.mark(name), **_counts(rank), "coverage": rank.n / len(answered)}
        row |= spread("srcc", rank) | spread("plcc", interval(study.sampled(plcc, name)))
        row |= spread("krcc", interval(study.sampled(krcc, name, first=KRCC_DRAWS)))
        for key, statistic in (("plcc_mapped", plcc), ("rmse_mapped", rmse)):
            figure = Figure(np.nan, np.nan, np.nan, rank.n, rank.failed, rank.interval_over)
            if fit.converged:
                figure = interval(study.draws.of(statistic, mapped, study.quality, answered=answered))
            row |= spread(key, figure)
        table.append(row | {"interval_over": rank.interval_over})
    return table


def _differences(study: Study) -> Table:
    against = [(name, study.baseline) for name in study.modes if name != study.baseline]
    if set(FIRST_COMPARISON) <= study.modes.keys():
        against = [FIRST_COMPARISON, *(pair for pair in against if set(pair) != set(FIRST_COMPARISON))]
    table: Table = []
    for first, second in against:
        both = study.modes[first].answered & study.modes[second].answered
        rank, linear = (_difference(study, statistic, first, second, both) for statistic in (srcc, plcc))
        table.append(
            {
                "first": first,
                "second": second,
                **_counts(rank),
                **spread("srcc_difference", rank),
                "p": rank.p,
            }
            | _meng(study, first, second, both)
            | spread("plcc_difference", linear)
        )
    for key in ("p", "meng_p"):
        adjusted = holm([1.0 if math.isnan(row[key]) else row[key] for row in table])
        for row, value in zip(table, adjusted, strict=True):
            row[f"{key}_holm"] = math.nan if math.isnan(row[key]) else float(value)
    for row in table:
        decided = row["p_holm"] < SIGNIFICANCE
        row["better"] = (
            (row["first"] if row["srcc_difference"] > 0 else row["second"]) if decided else "undecided"
        )
    order = (
        "first second n failed srcc_difference srcc_difference_low srcc_difference_high p p_holm better"
        " meng_z meng_p "
    )
    order += "meng_p_holm plcc_difference plcc_difference_low plcc_difference_high"
    return [{key: row[key] for key in order.split()} for row in table]


def _parts(study: Study) -> Table:
    """The fused score against its parts: the one named beforehand, and the best in hindsight."""
    parts = [name for name, reading in study.modes.items() if reading.mode.is_part]
    ranks = {name: interval(study.sampled(srcc, name)).value for name in parts}
    known = {name: value for name, value in ranks.items() if not math.isnan(value)}
    named = [(study.comparator, "named beforehand")] if study.comparator else []
    if known:
        named.append((max(known, key=known.get), "best in hindsight"))
    table = []
    for name, why in named:
        both = study.modes[study.product].answered & study.modes[name].answered
        found = _difference(study, srcc, study.product, name, both)
        table.append(
            {
                "first": study.product,
                "second": name,
                "why": why,
                **_counts(found),
                **spread("srcc_difference", found),
            }
            | {"p": found.p, "verdict": verdict(found, MARGIN)}
        )
    return table


def _difference(study: Study, statistic: Statistic, first: str, second: str, both: np.ndarray) -> Difference:
    return paired_difference(study.sampled(statistic, first, both), study.sampled(statistic, second, both))


def _meng(study: Study, first: str, second: str, both: np.ndarray) -> dict[str, float]:
    ours, theirs = (study.sampled(srcc, name, both).value for name in (first, second))
    n = int(both.sum())
    if n <= 3:
        return {"meng_z": math.nan, "meng_p": math.nan}
    test = meng(ours, theirs, srcc(study.modes[first].scores[both], study.modes[second].scores[both]), n)
    return {"meng_z": test.z, "meng_p": test.p}


def _within(study: Study, name: str) -> Table:
    """Figures within each distortion type, level or subset; intervals where they are worth their time."""
    labels = np.array([row.get(name) for row in study.rows], object)
    parts = {value: labels == value for value in sorted({label for label in labels if label is not None})}
    table: Table = []
    for mode in study.modes:
        first = None if mode in (study.product, study.baseline) else 0
        sampled = {
            value: study.sampled(srcc, mode, among=among, first=first) for value, among in parts.items()
        }
        for value, rank in sampled.items():
            linear = study.sampled(plcc, mode, among=parts[value], first=0)
            figure = interval(rank)
            row = {
                "mode": mode,
                name: value,
                **_counts(figure),
                **spread("srcc", figure),
                "plcc": linear.value,
            }
            row |= {
                "mean_score": _mean(study.modes[mode].scores[rank.kept]),
                "mean_mos": _mean(study.mos[rank.kept]),
            }
            table.append(row)
        if name == "subset" and len(sampled) > 1:
            together = interval(_mean_of(list(sampled.values())))
            table.append(
                {"mode": mode, name: "within subsets", **_counts(together), **spread("srcc", together)}
            )
    return table


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else math.nan


def _mean_of(parts: list[Resampled]) -> Resampled:
    """The mean of parts' figures by their rows, on the draws that the parts share; parts without a figure
    take no part."""
    parts = [part for part in parts if np.isfinite(part.value)] or parts
    share = np.array([part.kept.sum() for part in parts], float)
    share /= max(share.sum(), 1)
    value = float(share @ [part.value for part in parts])
    on_draws = share @ np.array([part.on_draws for part in parts])
    kept = np.any([part.kept for part in parts], axis=0)
    return Resampled(value, on_draws, parts[0].draws, kept, sum(part.failed for part in parts))


def _calibration(study: Study, rng: np.random.Generator) -> Table:
    """Against the human scores as levels: linearly on an absolute category scale, else through a map fitted
    on other rows."""
    info = study.info
    absolute = info.scale == "absolute categories" and info.low is not None and info.high is not None
    levels = np.array([info.to_levels(mos) for mos in study.mos]) if absolute else None
    held, source = _fitting_rows(study, rng)
    # One target for all: the map from human scores goes to what the letters of all modes expect together.
    together = np.mean([p @ LEVELS for p in study.letters.values()], axis=0) if study.letters else None
    table = []
    losses: dict[tuple[str, ...], np.ndarray] = {}
    for names, p in study.letters.items():
        answered = np.isfinite(p).all(axis=1)
        if absolute:
            judged, target, level = answered, "the scale, linearly", levels
        else:
            judged, target = answered & ~held, f"monotone map fitted on {source}"
            if not judged.any() or not (fit := np.isfinite(together) & held).any():
                continue
            level = monotone_map(study.quality[fit], together[fit])(study.quality)
        outside = (level < 1) | (level > 5)
        losses[names] = np.full(len(judged), np.nan)
        losses[names][judged] = ranked_probability_scores(p[judged], np.clip(level, 1, 5)[judged])
        p, level = p[judged], np.clip(level, 1, 5)[judged]
        confidence, correct = p.max(axis=1), p.argmax(axis=1) + 1 == np.floor(level + 0.5)
        study.reliability[names] = confidence, correct
        table.append(
            {
                "letters": "; ".join(names),
                "n": len(p),
                "failed": int((~answered).sum()),
                "ece": letters_calibration_error(p, level),
                "accuracy": _mean(correct),
                "mean_confidence": _mean(confidence),
                **spread("rps", _mean_interval(study, losses[names])),
                "rps_uniform": ranked_probability_score(np.full_like(p, 0.2), level),
                "levels_from": target,
                "off_the_scale": int(outside[judged].sum()),
            }
        )
    baseline = next((loss for names, loss in losses.items() if study.baseline in names), None)
    if baseline is not None:
        for row, loss in zip(table, losses.values(), strict=True):
            row |= spread("rps_difference", _mean_interval(study, loss - baseline))
    return table


def _mean_interval(study: Study, values: np.ndarray) -> Figure:
    """The mean of one number a row (nan where there is none), with its interval on the study's draws."""
    kept = np.isfinite(values)
    weights = study.draws.weights[:, kept]
    total = weights.sum(axis=1)
    on_draws = (weights @ values[kept])[total > 0] / total[total > 0]
    low, high = np.quantile(on_draws, [0.025, 0.975]) if len(on_draws) else (math.nan, math.nan)
    return Figure(
        _mean(values[kept]), float(low), float(high), int(kept.sum()), int((~kept).sum()), study.draws.over
    )


def _fitting_rows(study: Study, rng: np.random.Generator) -> tuple[np.ndarray, str]:
    """Rows to fit a map on: the training split, or half of the units that are resampled."""
    train = np.array([row.get("split") == "train" for row in study.rows])
    if train.any() and not train.all():
        return train, "the training split, judged on the others"
    units = rng.permutation(study.draws.counts.shape[1])
    chosen = np.isin(study.draws.unit, units[: len(units) // 2])
    return chosen, f"half of the {study.draws.over.partition(',')[0]}, judged on the others"


def _rank_errors(scores: np.ndarray, quality: np.ndarray) -> np.ndarray:
    """How much higher a score ranks than the human score, as a share of all rows."""
    return (rankdata(scores) - rankdata(quality)) / len(scores)


def _risk_coverage(study: Study, vote: str) -> Table:
    q_bar = tool_means(study.rows, vote)
    table = []
    for name, reading in study.modes.items():
        answered = reading.answered
        if reading.p is None or not answered.any() or np.ptp(reading.p[answered], axis=1).max() == 0:
            continue
        error = np.full(len(answered), np.nan)
        error[answered] = np.abs(_rank_errors(reading.scores[answered], study.quality[answered]))
        uncertain = np.full(len(answered), np.nan)
        uncertain[answered] = entropy(reading.p[answered])
        for signal, values in (
            ("entropy", uncertain),
            ("VLM–tool disagreement", np.abs(reading.p @ LEVELS - q_bar)),
        ):
            usable = answered & np.isfinite(values)
            if not usable.any():
                continue
            curve = risk_coverage(values[usable], error[usable])
            if name == study.product:
                study.curves[signal] = curve
            n = len(curve.risk)
            row = {"mode": name, "signal": signal, "n": n, "failed": len(usable) - n, "aurc": curve.aurc}
            table.append(
                row
                | {f"risk_{share}": float(curve.risk[math.ceil(share * n / 100) - 1]) for share in COVERAGES}
            )
    return table


def _cost(study: Study) -> Table:
    none = np.zeros((len(study.rows), len(TOKENS)), int)
    parts = {part for reading in study.modes.values() for part in reading.mode.cost}
    tokens = {
        part: np.array(
            [[row.get("cost", {}).get(part, {}).get(kind, 0) for kind in TOKENS] for row in study.rows]
        )
        for part in parts
    }
    table = []
    for name, reading in study.modes.items():
        spent = seconds(study.rows, reading)
        known = np.isfinite(spent)
        median, p95 = np.quantile(spent[known], [0.5, 0.95]) if known.any() else (math.nan, math.nan)
        row = {
            "mode": name,
            "n": int(known.sum()),
            "failed": int((~known).sum()),
            "mean_seconds": _mean(spent[known]),
        }
        row |= {"median_seconds": float(median), "p95_seconds": float(p95)}
        counted = sum((tokens[part][known] for part in reading.mode.cost), none[known])
        row |= {f"{kind}_tokens": _mean(counted[:, i]) for i, kind in enumerate(TOKENS)}
        table.append(row | {"asks_the_model": "yes" if reading.model else "no"})
    return table


def _exposure_table(study: Study) -> Table:
    table = []
    for name, found in study.exposures.items():
        clean = "yes" if study.is_clean(name) else "no"
        told = [{"what": item.what, "how": item.how, "touches": item.touches} for item in found]
        table += [
            {"mode": name, "clean": clean, **item}
            for item in told or [{"what": "", "how": "none known", "touches": ""}]
        ]
    return table


def _failures(rows: Sequence[Row]) -> Table:
    found: Counter[tuple[str, str]] = Counter()
    for row in rows:
        found.update(
            (part, str(row[key]))
            for part, key in (("image", "error"), ("agent", "agent_error"))
            if row.get(key)
        )
        found.update(
            (tool, str(read["error"])) for tool, read in row.get("tools", {}).items() if "error" in read
        )
    return [{"part": part, "error": error, "n": count} for (part, error), count in found.most_common()]


def _worst(study: Study) -> list[dict[str, Any]]:
    """The images that the product's mode ranks the furthest from the human scores."""
    reading = study.modes[study.product]
    answered = np.flatnonzero(reading.answered)
    if not len(answered):
        return []
    scores, quality = reading.scores[answered], study.quality[answered]
    errors, ranks, human = _rank_errors(scores, quality), rankdata(-scores), rankdata(-quality)
    found = []
    for i in np.argsort(-np.abs(errors), kind="stable")[:WORST]:
        row = study.rows[answered[i]]
        p = None if reading.p is None else reading.p[answered[i]]
        # Beside p from log-probabilities; p from what the model wrote shows that itself.
        read = reading.mode.read if reading.mode.source == "forward" else ""
        views = row["reads"].get(read, {}).get("views", [])
        found.append(
            {
                "row": row,
                "error": float(errors[i]),
                "score": float(scores[i]),
                "rank": float(ranks[i]),
                "human_rank": float(human[i]),
                "of": len(answered),
                "letters": [
                    (letter, LEVEL_WORDS[level], float(p[level - 1]))
                    for letter, level in LETTER_TO_LEVEL.items()
                    if p is not None
                ],
                "written": ", ".join(view["generated"] for view in views if "generated" in view),
            }
        )
    return found


def _notes(study: Study, *, compared_with_agent: bool, fitted: Letters | None) -> Iterator[str]:
    run, info, rows = study.run, study.info, study.rows
    yield f"Asked of the model: {run['identity']['reads']['query']}"
    expected = run["dataset"].get("images", len(rows))
    yield (
        f"{len(rows)} of {expected} images have a row; {sum(bool(row.get('error')) for row in rows)} of them"
        " failed."
    )
    for name in run["dataset"].get("missing", [])[:1]:
        yield (
            f"{len(run['dataset']['missing'])} files that the authors' list names are absent, the first is"
            f" {name}."
        )
    for reason, count in run["dataset"].get("left_out", {}).items():
        yield f"{count} images are left out: {reason}."
    if not info.higher_is_better:
        yield "In this set a lower score is better: every figure is with the scores turned around."
    if info.key == "manifest":
        yield (
            "The manifest is taken for a data set of its own that nothing was trained on; if its images are"
            " part of a published one, run it with --part-of, and what has seen that set is marked."
        )
    unit, (draws, units) = study.draws.over, study.draws.counts.shape
    yield f"Intervals: {draws} bootstrap draws of {units} {unit}; KRCC on {min(draws, KRCC_DRAWS)} of them."
    if "within these scenes" in unit:
        yield (
            "There are fewer than ten groups: the intervals hold within these scenes and say nothing of"
            " others."
        )
    comparisons = len(study.tables["differences"])
    if 2 * comparisons / (draws + 1) > SIGNIFICANCE:
        yield (
            f"So few draws cannot decide any of {comparisons} comparisons; ask for at least"
            f" {math.ceil(2 * comparisons / SIGNIFICANCE)}."
        )
    yield (
        f"The product's mode is “{study.product}”; every mode is compared with “{study.baseline}”, named"
        " beforehand."
    )
    if compared_with_agent:
        own, read = np.array([product_score(row) for row in rows]), study.modes[study.product].scores
        both, one = np.isfinite(own) & np.isfinite(read), np.isfinite(own) ^ np.isfinite(read)
        gap = np.abs(own - read)[both].max(initial=0)
        verdict = (
            "" if gap <= PRODUCT_TOLERANCE else " They ought to agree: do not trust this mode's figures."
        )
        yield (
            f"The mode “{study.product}” is the agent's own q: on {both.sum()} rows the largest difference is"
            f" {gap:.2g}; {one.sum()} rows have only one of the two.{verdict}"
        )
    if fitted:
        yield f"“logits, fitted”: temperature {fitted.temperature:g}, η {fitted.eta:g}, from {fitted.source}."
    if study.tables["by_subset"]:
        yield (
            "The subset predicts the score in this set: read the figures within subsets before those over all"
            " images."
        )
