"""The tables of a report but those of intervals: how the modes agree with the human scores, how
good the letters' probabilities are, what an image costs, and what failed."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from agentic_iqa_local.nodes.prompts import choice_letters
from agentic_iqa_local.studies import statistics
from agentic_iqa_local.studies.scored_run import PARTS, SIGNIFICANCE, ScoredRun
from agentic_iqa_local.studies.statistics import Draws, krcc, plcc, rmse, srcc

Rows = Sequence[dict[str, Any]]
Table = pd.DataFrame


def agreement(draws: Draws, scores: Table, quality: np.ndarray) -> Table:
    """SRCC, PLCC, KRCC, and PLCC and RMSE after the logistic, of each column of scores with the
    human ones, on the images that it answered."""
    table = []
    for name, column in scores.items():
        score = column.to_numpy()
        mapped = statistics.vqeg_logistic(score, quality)
        line = {"mode": name, "n": column.count(), "failed": column.isna().sum()}
        for statistic in (srcc, plcc, krcc):
            line |= draws.figure(statistic.__name__, statistic, score, quality)
        for statistic in (plcc, rmse):
            line |= draws.figure(f"{statistic.__name__}_mapped", statistic, mapped, quality)
        table.append(line)
    return pd.DataFrame(table)


def differences(draws: Draws, scores: Table, quality: np.ndarray, baseline: str) -> Table:
    """SRCC and PLCC of every column of scores less those of the baseline, on the images that both
    answered; `srcc_p` is the p-value of the difference in SRCC."""
    table = []
    for name in scores.columns.drop(baseline):
        both = scores[[name, baseline]].dropna()
        line = {"first": name, "second": baseline, "n": len(both)}
        line["failed"] = len(scores) - len(both)
        pair = scores[name], scores[baseline], quality
        by_srcc = draws.difference("srcc_difference", srcc, *pair)
        by_plcc = draws.difference("plcc_difference", plcc, *pair)
        del by_plcc["p"]
        by_srcc["srcc_p"] = by_srcc.pop("p")
        table.append(line | by_srcc | by_plcc)
    return pd.DataFrame(table)


def decided(table: Table) -> Table:
    """`differences` with `srcc_p` after Holm's correction for their number, and which is better."""
    if table.empty:
        return table
    p_holm = statistics.holm(table["srcc_p"])
    better = table["first"].where(table["srcc_difference"] > 0, table["second"])
    return table.assign(srcc_p_holm=p_holm, better=better.where(p_holm < SIGNIFICANCE, "undecided"))


def within(run: ScoredRun) -> Table:
    """SRCC and PLCC within each distortion type, level and subset. Intervals are given for the
    product's mode and the baseline."""
    table = []
    for by in PARTS:
        for value, of in run.pictures.groupby(by):
            quality = pd.Series(run.quality)[of.index]
            for mode, column in run.wide.loc[of.index].items():
                line = {"by": by, "value": f"{value:g}" if isinstance(value, float) else value}
                line |= {"mode": mode, "n": column.count(), "failed": column.isna().sum()}
                if mode in (run.product, run.baseline):
                    score = column.reindex(run.wide.index)
                    line |= run.draws.figure("srcc", srcc, score, run.quality)
                score = column.dropna()
                pair = score, quality[score.index]
                table.append(line | {"srcc": srcc(*pair), "plcc": plcc(*pair)})
    return pd.DataFrame(table)


def calibration(run: ScoredRun) -> Table:
    """Expected calibration error and ranked probability score of each mode's letters against the
    human scores as levels. It is empty on a scale that has no levels."""
    table = []
    for mode in run.modes.values():
        known = np.isfinite(mode.scores) & np.isfinite(run.levels)
        if mode.p is None or not known.any():
            continue
        p, level = mode.p[known], run.levels[known]
        correct = p.argmax(axis=1) + 1 == np.floor(level + 0.5)
        ece = statistics.expected_calibration_error(p.max(axis=1), correct)
        line = {"mode": mode.name, "n": len(p), "accuracy": correct.mean(), "ece": ece}
        loss = statistics.ranked_probability_scores(mode.p, run.levels)
        table.append(line | run.draws.figure("rps", np.mean, loss))
    return pd.DataFrame(table)


def cost(rows: Rows) -> Table:
    """Seconds and tokens of an image, by the part of the work: the agent, and each tool."""
    lines = []
    for row in rows:
        lines += [{"part": part, **spent} for part, spent in row.get("cost", {}).items()]
    if not lines:
        return pd.DataFrame()
    parts = pd.DataFrame(lines).groupby("part", sort=False)
    seconds = parts["seconds"].describe(percentiles=[0.5, 0.95])
    seconds = seconds[["count", "mean", "50%", "95%"]]
    seconds.columns = ["n", "mean_seconds", "median_seconds", "p95_seconds"]
    seconds = seconds.astype({"n": int})
    tokens = parts.mean().drop(columns="seconds").add_suffix("_tokens")
    return seconds.join(tokens).reset_index()


def failures(rows: Rows) -> Table:
    """How many images failed in each part, by reason."""
    found = []
    for row in rows:
        parts = {"image": row, "agent": {"error": row.get("agent_error")}} | row.get("tools", {})
        found += [(part, one["error"]) for part, one in parts.items() if one.get("error")]
    return pd.DataFrame(found, columns=["part", "error"]).value_counts().reset_index(name="n")


def accuracy(rows: Rows) -> Table:
    """Accuracy on multiple-choice questions: a line for all rows, one for each task and one for
    each question type."""
    columns = ["task", "question_type", "right", "chance", "p_right"]
    table = pd.DataFrame([_answered(row) for row in rows], columns=columns).assign(all="")
    lines = []
    for by in ("all", "task", "question_type"):
        for value, of in table.groupby(by):
            n, right = of["right"].count(), of["right"].sum()
            line = {"part": by.replace("_", " "), "value": value, "n": n, "failed": len(of) - n}
            line |= statistics.share("accuracy", right, n)
            lines.append(line | of[["chance", "p_right"]].mean().to_dict())
    return pd.DataFrame(lines)


def _answered(row: dict[str, Any]) -> dict[str, Any]:
    line = {"task": row.get("task"), "question_type": row.get("question_type")}
    if row.get("answered") is None:
        return line
    choices, answer = row["choices"], row["answer"]
    right = row["answered"] == choice_letters(choices)[answer]
    p_right = row["probabilities"][answer]
    return line | {"right": float(right), "chance": 1 / len(choices), "p_right": p_right}
