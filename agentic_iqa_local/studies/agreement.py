"""Tables of how the modes agree with the human scores, and of the differences between them."""

import math
from collections.abc import Iterator

import numpy as np

from agentic_iqa_local.studies.readings import CLASSIFICATION, LOGITS
from agentic_iqa_local.studies.statistics import (
    Difference,
    Figure,
    Resampled,
    Statistic,
    holm,
    interval,
    krcc,
    paired_difference,
    plcc,
    rmse,
    srcc,
    verdict,
    vqeg_logistic,
)
from agentic_iqa_local.studies.study import MARGIN, SIGNIFICANCE, Row, Study, Table, counts, mean, spread

FIRST_COMPARISON = (LOGITS.name, CLASSIFICATION.name)  # named before any run was looked at
KRCC_DRAWS = 200


def mode_table(study: Study) -> Table:
    table = []
    for name, reading in study.modes.items():
        answered = reading.answered
        mapped = np.full(len(answered), np.nan)
        mapped[answered] = study.fits[name] = vqeg_logistic(reading.scores[answered], study.quality[answered])
        rank = interval(study.sampled(srcc, name))
        row = {"mode": name, "seen": study.mark(name), **counts(rank), "coverage": rank.n / len(answered)}
        row |= spread("srcc", rank) | spread("plcc", interval(study.sampled(plcc, name)))
        row |= spread("krcc", interval(study.sampled(krcc, name, first=KRCC_DRAWS)))
        for key, statistic in (("plcc_mapped", plcc), ("rmse_mapped", rmse)):
            figure = Figure(np.nan, np.nan, np.nan, rank.n, rank.failed, rank.interval_over)
            if np.isfinite(mapped[answered]).all() and rank.n:
                figure = interval(study.draws.of(statistic, mapped, study.quality, answered=answered))
            row |= spread(key, figure)
        table.append(row | {"interval_over": rank.interval_over})
    return table


def differences(study: Study) -> Table:
    """Every mode against the baseline, and the comparison named beforehand first."""
    table = [_compared(study, *pair) for pair in _pairs(study)]
    adjusted = holm([1.0 if math.isnan(row["p"]) else row["p"] for row in table])
    for row, value in zip(table, adjusted, strict=True):
        row["p_holm"] = math.nan if math.isnan(row["p"]) else float(value)
        row["better"] = _better(row)
    return table


def _pairs(study: Study) -> Iterator[tuple[str, str]]:
    first = set(FIRST_COMPARISON)
    if first <= study.modes.keys():
        yield FIRST_COMPARISON
    for name in study.modes:
        if name != study.baseline and not ({name, study.baseline} == first <= study.modes.keys()):
            yield name, study.baseline


def _compared(study: Study, first: str, second: str) -> Row:
    both = study.modes[first].answered & study.modes[second].answered
    rank, linear = (_difference(study, statistic, first, second, both) for statistic in (srcc, plcc))
    row = {"first": first, "second": second, **counts(rank), **spread("srcc_difference", rank), "p": rank.p}
    return row | dict.fromkeys(("p_holm", "better")) | spread("plcc_difference", linear)


def _better(row: Row) -> str:
    if not row["p_holm"] < SIGNIFICANCE:
        return "undecided"
    return row["first"] if row["srcc_difference"] > 0 else row["second"]


def against_parts(study: Study) -> Table:
    """The fused score against its parts: the one named beforehand, and the best in hindsight."""
    parts = [name for name, reading in study.modes.items() if reading.mode.is_part]
    ranks = {name: interval(study.sampled(srcc, name)).value for name in parts}
    known = {name: value for name, value in ranks.items() if not math.isnan(value)}
    named = [(study.comparator, "named beforehand")] if study.comparator else []
    if known:
        named.append((max(known, key=lambda name: known[name]), "best in hindsight"))
    table = []
    for name, why in named:
        both = study.modes[study.product].answered & study.modes[name].answered
        found = _difference(study, srcc, study.product, name, both)
        table.append(
            {
                "first": study.product,
                "second": name,
                "why": why,
                **counts(found),
                **spread("srcc_difference", found),
            }
            | {"p": found.p, "verdict": verdict(found, MARGIN)}
        )
    return table


def _difference(study: Study, statistic: Statistic, first: str, second: str, both: np.ndarray) -> Difference:
    return paired_difference(study.sampled(statistic, first, both), study.sampled(statistic, second, both))


def within(study: Study, name: str) -> Table:
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
                **counts(figure),
                **spread("srcc", figure),
                "plcc": linear.value,
            }
            row |= {
                "mean_score": mean(study.modes[mode].scores[rank.kept]),
                "mean_mos": mean(study.mos[rank.kept]),
            }
            table.append(row)
        if name == "subset" and len(sampled) > 1:
            together = interval(_mean_of(list(sampled.values())))
            table.append(
                {"mode": mode, name: "within subsets", **counts(together), **spread("srcc", together)}
            )
    return table


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
