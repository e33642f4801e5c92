"""The tables of a report, but those of intervals: how the modes agree with the human scores, how good the letters'
probabilities are, what was seen before, and what failed. Each is made of a run."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import entr

from agentic_iqa_local.nodes.prompts import choice_letters
from agentic_iqa_local.studies import statistics
from agentic_iqa_local.studies.readings import LEVELS
from agentic_iqa_local.studies.scored_run import SIGNIFICANCE, ScoredRun
from agentic_iqa_local.studies.statistics import difference, interval, mean, plcc, srcc

KRCC_DRAWS = 200
COVERAGES = (100, 90, 75, 50, 25)  # percent
SPENT = ["seconds", "prefilled", "reused", "decoded"]  # of a row's cost
WORST = 10  # images
Table = pd.DataFrame
RunMode = tuple[ScoredRun, str]  # a run and its mode


def modes(run: ScoredRun) -> Table:
    """SRCC, PLCC, KRCC, and PLCC and RMSE after the logistic, of each mode on the images that it answered."""
    table = []
    for name, scored in run.modes.items():
        kept, mapped = scored.answered, run.mapped[name]
        line = {"mode": name, "seen": run.mark(name), "n": kept.sum(), "failed": (~kept).sum()}
        line |= (
            {"coverage": kept.mean()}
            | run.figure("srcc", srcc, name)
            | run.figure("plcc", plcc, name)
        )
        line |= run.figure("krcc", statistics.krcc, name, first=KRCC_DRAWS)
        for key, statistic in (("plcc_mapped", plcc), ("rmse_mapped", statistics.rmse)):
            line |= interval(
                key, *run.draws.of(statistic, mapped, run.quality, np.isfinite(mapped))
            )
        table.append(line)
    return pd.DataFrame(table)


def differences(run: ScoredRun) -> Table:
    """SRCC and PLCC of every mode less those of the baseline, on the images that both answered."""
    others, baseline = [name for name in run.modes if name != run.baseline], (run, run.baseline)
    pairs = [
        ((run, mode), baseline, run.modes[mode].answered & run.modes[run.baseline].answered)
        for mode in others
    ]
    return paired([{"first": mode, "second": run.baseline} for mode in others], pairs)


def paired(
    lines: list[dict[str, Any]], pairs: Sequence[tuple[RunMode, RunMode, np.ndarray]]
) -> Table:
    """`lines`, which name the `first` and the `second`, with PLCC and SRCC of the first less those of the second, on
    the given rows and on the same draws. `p` is that of SRCC, and `better` holds after Holm's correction."""
    for line, (first, second, both) in zip(lines, pairs, strict=True):
        line |= {"n": both.sum(), "failed": (~both).sum()}
        for name, statistic in (("plcc_difference", plcc), ("srcc_difference", srcc)):
            line |= difference(
                name, *(run.sampled(statistic, mode, both) for run, mode in (first, second))
            )
    for line, p in zip(lines, statistics.holm([line["p"] for line in lines]), strict=True):
        better = line["first"] if line["srcc_difference"] > 0 else line["second"]
        line |= {"p_holm": p, "better": better if p < SIGNIFICANCE else "undecided"}
    return pd.DataFrame(lines)


def within(run: ScoredRun) -> dict[str, Table]:
    """SRCC, PLCC and means within each distortion type, level and subset ("by_distortion" ...), and SRCC averaged over
    these by their images ("within"). Intervals are given for the product's mode and the baseline."""
    tables: dict[str, list[dict[str, Any]]] = {
        "within": [],
        **{f"by_{by}": [] for by in run.labels},
    }
    for (by, labels), (mode, scored) in itertools.product(run.labels.items(), run.modes.items()):
        first, parts = None if mode in (run.product, run.baseline) else 0, []
        for value in sorted(labels.dropna().unique()):
            inside = (labels == value).to_numpy()
            kept = inside & scored.answered
            n, ranks = kept.sum(), run.sampled(srcc, mode, kept, first)
            line = {
                "mode": mode,
                by: value,
                "n": n,
                "failed": (inside & ~kept).sum(),
                **interval("srcc", *ranks),
            }
            line |= {
                "plcc": run.sampled(plcc, mode, kept, 0)[0],
                "mean_score": mean(scored.scores[kept]),
            }
            tables[f"by_{by}"].append(line | {"mean_mos": mean(run.mos[kept])})
            parts += [(n, *ranks)] if np.isfinite(ranks[0]) else []
        if len(parts) > 1:
            counts, values, on_draws = (np.array(column) for column in zip(*parts, strict=True))
            shares = counts / counts.sum()
            line = {"mode": mode, "within": by, "parts": len(parts), "n": counts.sum()}
            tables["within"].append(line | interval("srcc", shares @ values, shares @ on_draws))
    return {name: pd.DataFrame(lines) for name, lines in tables.items()}


def claims(run: ScoredRun) -> dict[tuple[str, ...], Table]:
    """Of each p_c, by the modes that rest on it, a line for each image that it is judged on: the probability of the
    likeliest level (`confidence`), whether that is the true one (`correct`), and the true `level`."""
    (level, usable, _), found = run.levels, {}
    for names, p in run.letters.items():
        kept = np.flatnonzero(np.isfinite(p).all(axis=1) & usable)
        if len(kept):
            correct = p[kept].argmax(axis=1) + 1 == np.floor(level[kept] + 0.5)
            columns = {"confidence": p[kept].max(axis=1), "correct": correct, "level": level[kept]}
            found[names] = pd.DataFrame(columns, kept)
    return found


def calibration(run: ScoredRun) -> Table:
    """Expected calibration error and ranked probability score of each p_c against the human scores as levels."""
    table, losses = [], {}
    for names, claim in claims(run).items():
        p, level = run.letters[names], claim.level.to_numpy()
        losses[names] = loss = np.full(len(run.rows), np.nan)
        loss[claim.index] = statistics.ranked_probability_scores(p[claim.index], level)
        uniform = statistics.ranked_probability_scores(np.full((len(claim), 5), 0.2), level)
        bins = statistics.reliability_bins(claim.confidence.to_numpy(), claim.correct.to_numpy())
        line = {
            "letters": "; ".join(names),
            "n": len(claim),
            "ece": statistics.expected_calibration_error(bins),
        }
        line |= {"accuracy": claim.correct.mean(), "mean_confidence": claim.confidence.mean()}
        table.append(
            line
            | run.draws.mean("rps", loss)
            | {"rps_uniform": mean(uniform), "levels_from": run.levels[2]}
        )
    for baseline in (loss for names, loss in losses.items() if run.baseline in names):
        for line, loss in zip(table, losses.values(), strict=True):
            line |= run.draws.mean("rps_difference", loss - baseline)
    return pd.DataFrame(table)


def rank_errors(run: ScoredRun, mode: str) -> pd.Series:
    """How much higher a mode ranks the images than people do, as a share of those that it answered; nan elsewhere."""
    both = pd.DataFrame({"score": run.modes[mode].scores, "quality": run.quality})
    ranks = both[run.modes[mode].answered].rank()
    return ((ranks.score - ranks.quality) / len(ranks)).reindex(both.index)


def risk_coverage(run: ScoredRun) -> Table:
    """What is gained by setting aside the images that a signal is unsure of, by mode and signal."""
    table = []
    p_of = {name: p for names, p in run.letters.items() for name in names}
    for name, scored in ((name, scored) for name, scored in run.modes.items() if name in p_of):
        answered, p, error = scored.answered, p_of[name], rank_errors(run, name).abs().to_numpy()
        signals = {
            "entropy": entr(p).sum(axis=1).round(12),  # alike where only rounding differs
            "VLM–tool disagreement": np.abs(p @ LEVELS - run.readings.agent["q_bar"].to_numpy()),
        }
        for signal, values in signals.items():
            usable = answered & np.isfinite(values)
            if n := usable.sum():
                risk = statistics.risk_curve(values[usable], error[usable])
                line = {"mode": name, "signal": signal, "n": n, "aurc": risk.mean()}
                table.append(
                    line
                    | {f"risk_{share}": risk[math.ceil(share * n / 100) - 1] for share in COVERAGES}
                )
    return pd.DataFrame(table)


def cost(run: ScoredRun) -> Table:
    """Seconds and tokens that a mode takes for an image: of the agent where it takes part, and of its own reads and
    tools."""
    stored, table = (
        pd.DataFrame([row.get("cost", {}) for row in run.rows]).stack().dropna(),
        [],
    )  # by image and part
    parts = pd.DataFrame(stored.tolist(), stored.index, columns=SPENT)
    for name, scored in run.modes.items():
        own = parts[parts.index.isin(scored.cost, level=1)].groupby(level=0)
        spent = own[SPENT].sum()[own.size() == len(scored.cost)]
        if len(spent):
            seconds = spent.pop("seconds")
            line = {
                "mode": name,
                "n": len(spent),
                "mean_seconds": seconds.mean(),
                "median_seconds": seconds.median(),
            }
            table.append(
                line | {"p95_seconds": seconds.quantile(0.95), **spent.mean().add_suffix("_tokens")}
            )
    return pd.DataFrame(table)


def failures(rows: Sequence[dict[str, Any]]) -> Table:
    """How many images failed in each part, by reason."""
    found = []
    for row in rows:
        parts = {"image": row.get("error"), "agent": row.get("agent_error")}
        parts |= {tool: read.get("error") for tool, read in row.get("tools", {}).items()}
        found += [(part, str(error)) for part, error in parts.items() if error]
    return pd.DataFrame(found, columns=["part", "error"]).value_counts().reset_index(name="n")


def worst(run: ScoredRun) -> Table:
    """The images that the product's mode ranks the furthest from the human scores."""
    table = pd.DataFrame(run.rows, columns=["key", "distortion", "level", "mos"])
    table = table.assign(
        score=run.modes[run.product].scores, rank_error=rank_errors(run, run.product)
    )
    table = table.sort_values("rank_error", key=abs, ascending=False, kind="stable").head(WORST)
    return table.dropna(subset="rank_error")


def accuracy(rows: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """Accuracy on multiple-choice questions: a line for all rows, one for each task and one for each question type."""
    parts = {
        (by, row[by]) for by in ("task", "question_type") for row in rows if row.get(by) is not None
    }
    table = []
    for by, value in [
        ("all", ""),
        *sorted(parts, key=lambda part: (part[0] == "question_type", part[1])),
    ]:
        chosen = [row for row in rows if by == "all" or row.get(by) == value]
        answered = [row for row in chosen if row.get("answered") is not None]
        line = {
            "part": by.replace("_", " "),
            "value": value,
            "n": len(answered),
            "failed": len(chosen) - len(answered),
        }
        if answered:
            right = sum(
                row["answered"] == choice_letters(row["choices"])[row["answer"]] for row in answered
            )
            line |= statistics.share("accuracy", right, len(answered))
            line["chance"] = np.mean([1 / len(row["choices"]) for row in answered])
            line["p_right"] = np.mean([row["probabilities"][row["answer"]] for row in answered])
        table.append(line)
    return pd.DataFrame(table)
