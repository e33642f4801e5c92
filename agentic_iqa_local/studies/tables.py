"""The tables of a report but those of intervals: how the modes agree with the human scores, how
good the letters' probabilities are, what an image costs, and what failed."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from agentic_iqa_local.nodes.prompts import choice_letters
from agentic_iqa_local.studies import statistics
from agentic_iqa_local.studies.scored_run import PARTS, SIGNIFICANCE, ScoredRun
from agentic_iqa_local.studies.statistics import krcc, plcc, rmse, srcc

KRCC_DRAWS = 200
WORST = 10  # images


def modes(run: ScoredRun) -> pd.DataFrame:
    """SRCC, PLCC, KRCC, and PLCC and RMSE after the logistic, of each mode on the images that it
    answered."""
    figure, table = run.draws.figure, []
    for mode, of in run.scores.groupby("mode", sort=False):
        score, mos, mapped = (of[name].to_numpy() for name in ("score", "mos", "mapped"))
        answered = np.isfinite(score)
        table.append(
            {"mode": mode, "seen": run.mark(mode), "n": answered.sum()}
            | {"failed": (~answered).sum(), "coverage": answered.mean()}
            | figure("srcc", srcc, score, run.quality)
            | figure("plcc", plcc, score, run.quality)
            | figure("krcc", krcc, score, run.quality, first=KRCC_DRAWS)
            | figure("plcc_mapped", plcc, mapped, mos)
            | figure("rmse_mapped", rmse, mapped, mos)
        )
    return pd.DataFrame(table)


def differences(run: ScoredRun) -> pd.DataFrame:
    """SRCC and PLCC of every mode less those of the baseline, on the images that both answered."""
    lines, baseline = [], run.modes[run.baseline].scores
    for mode in run.modes.values():
        if mode.name != run.baseline:
            told = {"first": mode.name, "second": run.baseline}
            lines.append(told | paired(run, mode.scores, baseline))
    return decided(lines)


def paired(run: ScoredRun, one: np.ndarray, other: np.ndarray) -> dict[str, Any]:
    """SRCC and PLCC of `one` score (rows,) less those of the `other`, where both are known; `p` is
    that of SRCC."""
    both = np.isfinite(one) & np.isfinite(other)
    plain = run.draws.difference("plcc_difference", plcc, one, other, run.quality)
    ranks = run.draws.difference("srcc_difference", srcc, one, other, run.quality)
    return {"n": both.sum(), "failed": (~both).sum()} | plain | ranks


def decided(lines: list[dict[str, Any]]) -> pd.DataFrame:
    """Lines of `paired` with p after Holm's correction for their number, and which of `first` and
    `second` is better."""
    table = pd.DataFrame(lines)
    if len(table):
        table["p_holm"] = statistics.holm(table["p"])
        better = table["first"].where(table["srcc_difference"] > 0, table["second"])
        table["better"] = better.where(table["p_holm"] < SIGNIFICANCE, "undecided")
    return table


def within(run: ScoredRun) -> pd.DataFrame:
    """SRCC and PLCC within each distortion type, level and subset. Intervals are given for the
    product's mode and the baseline."""
    table = []
    for by in PARTS:
        for (value, mode), of in run.scores.groupby([by, "mode"], sort=False):
            inside = (run.pictures[by] == value).to_numpy()
            quality = np.where(inside, run.quality, np.nan)
            score = run.modes[mode].scores
            answered = of["score"].notna()
            first = None if mode in (run.product, run.baseline) else 0
            table.append(
                {"by": by, "value": shown_value(value), "mode": mode}
                | {"n": answered.sum(), "failed": (~answered).sum()}
                | run.draws.figure("srcc", srcc, score, quality, first=first)
                | {"plcc": run.draws.of(plcc, score, quality, first=0)[0]}
            )
    return pd.DataFrame(table)


def shown_value(value: Any) -> str:
    """A part of a data set for a table in which there are names and numbers."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def calibration(run: ScoredRun) -> pd.DataFrame:
    """Expected calibration error and ranked probability score of each mode's letters against the
    human scores as levels. It is empty on a scale that has no levels."""
    table = []
    for mode in run.modes.values():
        if mode.p is None:
            continue
        known = np.isfinite(mode.p[:, 0]) & np.isfinite(run.levels)
        if known.any():
            p, level = mode.p[known], run.levels[known]
            correct = p.argmax(axis=1) + 1 == np.floor(level + 0.5)
            ece = statistics.expected_calibration_error(p.max(axis=1), correct)
            line = {"mode": mode.name, "n": len(p), "accuracy": correct.mean(), "ece": ece}
            loss = statistics.ranked_probability_scores(mode.p, run.levels)
            table.append(line | run.draws.figure("rps", np.mean, loss))
    return pd.DataFrame(table)


def cost(rows: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """Seconds and tokens of an image, by the part of the work: the agent, each read of the letters,
    each tool."""
    lines = []
    for row in rows:
        lines += [{"part": part, **spent} for part, spent in row.get("cost", {}).items()]
    if not lines:
        return pd.DataFrame()
    parts = pd.DataFrame(lines).groupby("part", sort=False)
    seconds = parts["seconds"]
    table = pd.DataFrame({"n": parts.size(), "mean_seconds": seconds.mean()})
    table = table.assign(median_seconds=seconds.median(), p95_seconds=seconds.quantile(0.95))
    tokens = parts.mean().drop(columns="seconds").add_suffix("_tokens")
    return table.join(tokens).reset_index()


def failures(rows: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """How many images failed in each part, by reason."""
    found = []
    for row in rows:
        parts = {"image": row.get("error"), "agent": row.get("agent_error")}
        parts |= {tool: read.get("error") for tool, read in row.get("tools", {}).items()}
        found += [(part, str(error)) for part, error in parts.items() if error]
    return pd.DataFrame(found, columns=["part", "error"]).value_counts().reset_index(name="n")


def worst(run: ScoredRun) -> pd.DataFrame:
    """The images that the product's mode ranks the furthest from the human scores: `rank_error` is
    how much higher, as a share of the images that it answered."""
    table = run.pictures[["key", "distortion", "level", "mos"]]
    table = table.assign(score=run.modes[run.product].scores, quality=run.quality)
    table = table.dropna(subset="score")
    ranks = table[["score", "quality"]].rank()
    error = (ranks["score"] - ranks["quality"]) / len(table)
    table = table.drop(columns="quality").assign(rank_error=error)
    return table.sort_values("rank_error", key=abs, ascending=False, kind="stable").head(WORST)


def accuracy(rows: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """Accuracy on multiple-choice questions: a line for all rows, one for each task and one for
    each question type."""
    columns = ["task", "question_type", "right", "chance", "p_right"]
    table = pd.DataFrame([_answered(row) for row in rows], columns=columns)
    parts = [("all", "", table)]
    for by in ("task", "question_type"):
        parts += [(by.replace("_", " "), value, of) for value, of in table.groupby(by)]
    lines = []
    for part, value, of in parts:
        n = of["right"].count()
        line = {"part": part, "value": value, "n": n, "failed": len(of) - n}
        line |= statistics.share("accuracy", of["right"].sum(), n)
        lines.append(line | of[["chance", "p_right"]].mean().to_dict())
    return pd.DataFrame(lines)


def _answered(row: dict[str, Any]) -> dict[str, Any]:
    line = {"task": row.get("task"), "question_type": row.get("question_type")}
    if row.get("answered") is None:
        return line
    right, answer = choice_letters(row["choices"])[row["answer"]], row["answer"]
    line |= {"right": float(row["answered"] == right), "chance": 1 / len(row["choices"])}
    return line | {"p_right": row["probabilities"][answer]}
