"""A run's tables: every scoring mode against the human scores, from stored rows alone.

`analyse` makes all tables and what the figures need. Knows nothing of models, files and pages.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from scipy.stats import rankdata

from agentic_iqa_local.errors import one_line
from agentic_iqa_local.iqa_tools import TOOLS
from agentic_iqa_local.state import LETTER_TO_LEVEL, LEVEL_WORDS, Look
from agentic_iqa_local.studies.agreement import KRCC_DRAWS, against_parts, differences, mode_table, within
from agentic_iqa_local.studies.datasets import DatasetInfo, listed
from agentic_iqa_local.studies.given import Given
from agentic_iqa_local.studies.interval_tables import IntervalTables, interval_tables
from agentic_iqa_local.studies.leakage import Exposure, exposures, training_of_model
from agentic_iqa_local.studies.letters import calibration, distinct_letters, rank_errors, risk_coverage_table
from agentic_iqa_local.studies.readings import (
    CLASSIFICATION,
    LOGITS,
    UNIFORM,
    Letters,
    Reading,
    product_score,
    readings,
    seconds,
)
from agentic_iqa_local.studies.statistics import Draws
from agentic_iqa_local.studies.study import (
    SIGNIFICANCE,
    Row,
    Study,
    StudyError,
    Table,
    check_scores,
    fusion_settings,
    labels_of,
    mean,
)

WORST = 10
LOOKED: dict[Look, str] = {"one order": LOGITS.name, "both orders": "logits, both orders"}
TOKENS = ("prefilled", "reused", "decoded")
PRODUCT_TOLERANCE = 1e-6
PRODUCT_MODES = {"logits": LOGITS, "classification": CLASSIFICATION, "uniform": UNIFORM}  # by fusion.mode


def analyse(
    run: dict[str, Any],
    rows: Sequence[Row],
    info: DatasetInfo,
    *,
    name: str = "run",
    draws: int = 1000,
    seed: int = 0,
    baseline: str | None = None,
    comparator: str | None = None,
    fitted: Letters | None = None,
    given: Given | None = None,
) -> Study:
    """All figures of a run. `baseline` is the mode that every other is compared with (default: the first that
    takes the letters that the model wrote, "classification" where the run has it), `comparator` the part
    that the fusion is to be judged against, both named before any figure is looked at; `fitted` adds the mode
    "logits, fitted", `given` is a calibration of the intervals beside the run's own.

    Raises StudyError where there are no scored rows, no known direction of the scores, or no such baseline or
    comparator.
    """
    check_scores(name, rows, info)
    settings = fusion_settings(run)
    letters = Letters.of(settings)
    modes = readings(
        rows, letters, fitted, run["tools"]["full_reference" if info.kind == "FR" else "no_reference"]
    )
    if baseline is None:
        written = (name for name, reading in modes.items() if reading.mode.source == "generated")
        baseline = next(written, next(iter(modes), None))
    if baseline is None or baseline not in modes:
        known = listed(modes) or "no mode: every row failed"
        raise StudyError(f"{name}: expected a baseline of {known}; got {baseline!r}")
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
    study.letters.update(distinct_letters(modes))
    intervals = interval_tables(study, letters, given)
    study.tables.update(_tables(study, letters.vote, rng, intervals))
    study.worst.extend(_worst(study))
    study.notes.extend(map(one_line, _notes(study, compared_with_agent=own in modes, fitted=fitted)))
    study.notes.extend(map(one_line, intervals.notes))
    return study


def _tables(
    study: Study, vote: str, rng: np.random.Generator, intervals: IntervalTables
) -> dict[str, list[dict[str, Any]]]:
    """Every table by its name."""
    return dict(
        modes=mode_table(study),
        differences=differences(study),
        parts=against_parts(study),
        by_distortion=within(study, "distortion"),
        by_level=within(study, "level"),
        by_subset=within(study, "subset"),
        calibration=calibration(study, rng),
        risk_coverage=risk_coverage_table(study, vote, _widths(intervals)),
        **intervals.tables,
        cost=_cost(study),
        exposures=_exposure_table(study),
        failures=_failures(study.rows),
    )


def _widths(intervals: IntervalTables) -> dict[str, np.ndarray]:
    """Of the intervals, by the mode whose look they are of."""
    return {LOOKED[look]: widths for look, widths in intervals.widths.items() if look in LOOKED}


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
            "mean_seconds": mean(spent[known]),
        }
        row |= {"median_seconds": float(median), "p95_seconds": float(p95)}
        counted = sum((tokens[part][known] for part in reading.mode.cost), none[known])
        row |= {f"{kind}_tokens": mean(counted[:, i]) for i, kind in enumerate(TOKENS)}
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
    errors, ranks, human = rank_errors(scores, quality), rankdata(-scores), rankdata(-quality)
    found = []
    for i in np.argsort(-np.abs(errors), kind="stable")[:WORST]:
        row = study.rows[int(answered[i])]
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
        eta = fitted.eta if isinstance(fitted.eta, str) else f"{fitted.eta:g}"
        yield f"“logits, fitted”: temperature {fitted.temperature:g}, η {eta}, from {fitted.source}."
    if study.tables["by_subset"]:
        yield (
            "The subset predicts the score in this set: read the figures within subsets before those over all"
            " images."
        )
