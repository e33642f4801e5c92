"""The tables of a report, but those of intervals: how the modes agree with the human scores, how good the letters'
probabilities are, what an image costs, what was seen before, and what failed. Each is made of a run."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import entr
from scipy.stats import rankdata

from agentic_iqa_local.studies import statistics
from agentic_iqa_local.studies.readings import LEVELS
from agentic_iqa_local.studies.scored_run import MARGIN, SIGNIFICANCE, ScoredRun
from agentic_iqa_local.studies.statistics import interval, mean, plcc, srcc

KRCC_DRAWS = 200
TOKENS = ("prefilled", "reused", "decoded")
COVERAGES = (100, 90, 75, 50, 25)  # percent


def mode_table(run: ScoredRun) -> pd.DataFrame:
    """SRCC, PLCC, KRCC, and PLCC and RMSE after the logistic, of each mode on the images that it answered."""
    table = []
    for name, scored in run.modes.items():
        kept, mapped = scored.answered, run.mapped[name]
        line = {"mode": name, "seen": run.mark(name), "n": kept.sum(), "failed": (~kept).sum()}
        line |= {"coverage": kept.mean()} | run.figure("srcc", srcc, name) | run.figure("plcc", plcc, name)
        line |= run.figure("krcc", statistics.krcc, name, first=KRCC_DRAWS)
        for key, statistic in (("plcc_mapped", plcc), ("rmse_mapped", statistics.rmse)):
            line |= interval(key, *run.draws.of(statistic, mapped, run.quality, np.isfinite(mapped)))
        table.append(line | {"interval_over": run.draws.over})
    return pd.DataFrame(table)


def differences(run: ScoredRun) -> pd.DataFrame:
    """SRCC and PLCC of every mode less those of the baseline, on the images that both answered. `better` holds after
    Holm's correction, `verdict` is what the interval alone shows."""
    table = []
    for name in (name for name in run.modes if name != run.baseline):
        both = run.modes[name].answered & run.modes[run.baseline].answered
        line = {"first": name, "second": run.baseline, "n": both.sum(), "failed": (~both).sum()}
        table.append(line | paired((run, name), (run, run.baseline), both))
    for line, p in zip(table, statistics.holm([line["p"] for line in table]), strict=True):
        better = line["first"] if line["srcc_difference"] > 0 else line["second"]
        line |= {"p_holm": p, "better": better if p < SIGNIFICANCE else "undecided"}
    return pd.DataFrame(table)


def paired(first: tuple[ScoredRun, str], second: tuple[ScoredRun, str], both: np.ndarray) -> dict[str, Any]:
    """PLCC and SRCC of one run's mode less those of another's, on the rows `both`, on the draws that they share; `p`
    and `verdict` are those of SRCC."""
    line: dict[str, Any] = {}
    for name, statistic in (("plcc_difference", plcc), ("srcc_difference", srcc)):
        line |= statistics.difference(name, *(run.sampled(statistic, mode, both) for run, mode in (first, second)))
    return line | {"verdict": statistics.verdict(line["srcc_difference_low"], line["srcc_difference_high"], MARGIN)}


def within(run: ScoredRun, by: str) -> pd.DataFrame:
    """SRCC and PLCC within each label that the rows have under the name `by`: "distortion", "level" or "subset".

    Intervals are given for the product's mode and the baseline. Of subsets there is a line "within subsets" too: the
    mean of their figures by their images, on the draws that they share.
    """
    labels = pd.Series([row.get(by) for row in run.rows], dtype=object)
    table = []
    for mode, scored in run.modes.items():
        first, parts = None if mode in (run.product, run.baseline) else 0, []
        for value in sorted(labels.dropna().unique()):
            inside = (labels == value).to_numpy()
            kept = inside & scored.answered
            count, failed, ranks = kept.sum(), (inside & ~kept).sum(), run.sampled(srcc, mode, kept, first)
            parts.append((count, failed, *ranks))
            line = {"mode": mode, by: value, "n": count, "failed": failed, **interval("srcc", *ranks)}
            line |= {"plcc": run.sampled(plcc, mode, kept, 0)[0], "mean_score": mean(scored.scores[kept])}
            table.append(line | {"mean_mos": mean(run.mos[kept])})
        if by == "subset" and len(parts) > 1:
            counts, failed, values, on_draws = zip(*(part for part in parts if np.isfinite(part[2])), strict=True)
            share = np.array(counts) / sum(counts)
            line = {"mode": mode, by: "within subsets", "n": sum(counts), "failed": sum(failed)}
            table.append(line | interval("srcc", share @ values, share @ np.array(on_draws)))
    return pd.DataFrame(table)


def claims(run: ScoredRun) -> dict[tuple[str, ...], pd.DataFrame]:
    """Of each p_c, by the modes that rest on it, a line for each image that it is judged on: the probability of the
    likeliest level (`confidence`), whether that is the true one (`correct`), and the true `level`."""
    human, usable, _ = run.levels
    level, found = np.clip(human, 1, 5), {}
    for names, p in run.letters.items():
        kept = np.flatnonzero(np.isfinite(p).all(axis=1) & usable)
        if len(kept):
            correct = p[kept].argmax(axis=1) + 1 == np.floor(level[kept] + 0.5)
            columns = {"confidence": p[kept].max(axis=1), "correct": correct, "level": level[kept]}
            found[names] = pd.DataFrame(columns, kept)
    return found


def calibration(run: ScoredRun) -> pd.DataFrame:
    """Expected calibration error and ranked probability score of each p_c against the human scores as levels."""
    losses, table = {}, []
    for names, claim in claims(run).items():
        p, level = run.letters[names], claim.level.to_numpy()
        losses[names] = loss = np.full(len(run.rows), np.nan)
        loss[claim.index] = statistics.ranked_probability_scores(p[claim.index], level)
        uniform = statistics.ranked_probability_scores(np.full((len(claim), 5), 0.2), level)
        bins = statistics.reliability_bins(claim.confidence.to_numpy(), claim.correct.to_numpy())
        line = {"letters": "; ".join(names), "n": len(claim), "failed": (~np.isfinite(p).all(axis=1)).sum()}
        line |= {"ece": statistics.expected_calibration_error(bins), "accuracy": claim.correct.mean()}
        line |= {"mean_confidence": claim.confidence.mean(), **run.draws.mean("rps", loss)}
        table.append(line | {"rps_uniform": mean(uniform), "levels_from": run.levels[2]})
    baseline = next((loss for names, loss in losses.items() if run.baseline in names), None)
    if baseline is not None:
        for line, loss in zip(table, losses.values(), strict=True):
            line |= run.draws.mean("rps_difference", loss - baseline)
    return pd.DataFrame(table)


def rank_errors(scores: np.ndarray, quality: np.ndarray) -> np.ndarray:
    """How much higher a score ranks than the human score, as a share of all rows, (rows,)."""
    return (rankdata(scores) - rankdata(quality)) / len(scores)


def risk_coverage(run: ScoredRun) -> pd.DataFrame:
    """What is gained by setting aside the images that a signal is unsure of, by mode and signal."""
    table = []
    for name, scored in run.modes.items():
        answered, p = scored.answered, scored.p
        if p is None or not answered.any() or np.ptp(p[answered], axis=1).max() == 0:
            continue
        error = np.full(len(run.rows), np.nan)
        error[answered] = np.abs(rank_errors(scored.scores[answered], run.quality[answered]))
        signals = {
            "entropy": entr(p).sum(axis=1).round(12),  # alike where only rounding differs
            "VLM–tool disagreement": np.abs(p @ LEVELS - run.readings.agent["q_bar"].to_numpy()),
        }
        for signal, values in signals.items():
            usable = answered & np.isfinite(values)
            if n := usable.sum():
                risk = statistics.risk_curve(values[usable], error[usable])
                line = {"mode": name, "signal": signal, "n": n, "failed": (~usable).sum(), "aurc": risk.mean()}
                table.append(line | {f"risk_{share}": risk[math.ceil(share * n / 100) - 1] for share in COVERAGES})
    return pd.DataFrame(table)


def cost(run: ScoredRun) -> pd.DataFrame:
    """Seconds and tokens that each image's inference took for a mode alone."""
    spent = pd.json_normalize([row.get("cost", {}) for row in run.rows])
    table = []
    for name, scored in run.modes.items():
        mode = scored.mode
        parts = {kind: [f"{part}.{kind}" for part in mode.cost] for kind in ("seconds", *TOKENS)}
        own = [] if mode.asks_model else [(tool, "seconds") for tool in mode.tools]
        seconds = spent.reindex(columns=parts["seconds"]).sum(axis=1, skipna=False)
        seconds += run.readings.tools[own].sum(axis=1, skipna=False)
        known = seconds.notna()
        line = {"mode": name, "n": known.sum(), "failed": (~known).sum(), "mean_seconds": seconds.mean()}
        line |= {"median_seconds": seconds.median(), "p95_seconds": seconds.quantile(0.95)}
        for kind in TOKENS:
            line[f"{kind}_tokens"] = spent[known].reindex(columns=parts[kind]).sum(axis=1).mean()
        table.append(line | {"asks_the_model": "yes" if mode.asks_model else "no"})
    return pd.DataFrame(table)


def exposure_table(run: ScoredRun) -> pd.DataFrame:
    """What each mode rests on that has met the data set."""
    table = []
    for name, exposures in run.exposures.items():
        line = {"mode": name, "clean": "no" if run.mark(name) else "yes"}
        met = [(exposure.what, exposure.how, exposure.touches) for exposure in exposures] or [("", "none known", "")]
        table += [line | dict(zip(("what", "how", "touches"), each, strict=True)) for each in met]
    return pd.DataFrame(table)


def failures(rows: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """How many images failed in each part, by reason."""
    reasons: Counter[tuple[str, str]] = Counter()
    for row in rows:
        parts = {"image": row.get("error"), "agent": row.get("agent_error")}
        parts |= {tool: read.get("error") for tool, read in row.get("tools", {}).items()}
        reasons.update((part, str(error)) for part, error in parts.items() if error)
    table = [(*reason, count) for reason, count in reasons.most_common()]
    return pd.DataFrame(table, columns=["part", "error", "n"])
