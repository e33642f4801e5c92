"""Calibrations made on drawn pictures whose truth is known, and the tables that judge them."""

import json
from dataclasses import replace

import numpy as np
import pytest
from conftest import ROOT
from scipy import stats
from test_study_report import analysed, make_rows, make_run

from agentic_iqa_local.judgement.fit import Fit, FitError, read_fit
from agentic_iqa_local.judgement.intervals import FEATURES, Condition
from agentic_iqa_local.studies.calibrating import ENOUGH, LEARNED_ON, Cases, cases, errors
from agentic_iqa_local.studies.coverage import (
    SPLITS,
    both_halves,
    cross_fitted,
    half_width,
    halves,
    rank_matched,
    trial,
)
from agentic_iqa_local.studies.fitting import fit_runs
from agentic_iqa_local.studies.given import given_calibration
from agentic_iqa_local.studies.readings import Letters, readings

SPREAD = FEATURES.index("spread")


def drawn(count: int, seed: int, *, uneven: bool = True, scenes: int = 200) -> Cases:
    """Truth = 0.3 + 0.9 · q plus noise whose standard deviation is `spread` of the picture (0.02 to 0.6), or
    0.3 for all."""
    rng = np.random.default_rng(seed)
    q, difficulty = rng.uniform(2, 4, count), rng.uniform(0.02, 0.6, count)
    table = np.zeros((count, len(FEATURES)))
    table[:, 0], table[:, SPREAD] = 1, difficulty
    noise = rng.normal(0, 1, count) * (difficulty if uneven else 0.3)
    return Cases(
        Condition(pipeline="agent", reference=False, look="one order"),
        q,
        0.3 + 0.9 * q + noise,
        table,
        np.arange(count).astype(str) if scenes >= count else rng.integers(0, scenes, count).astype(str),
        (("NIQE",),) * count,
        np.arange(count),
    )


def all_of(known: Cases) -> np.ndarray:
    return np.arange(len(known.q))


@pytest.mark.parametrize("uneven", [True, False])
def test_fresh_pictures_are_covered_as_often_as_promised(uneven):
    """A calibration of n errors covers 90 % on average, with a standard deviation over calibrations of
    √(0.9 · 0.1 / n) (Vovk 2012); of m fresh pictures it adds √(0.9 · 0.1 / m)."""
    part = errors(drawn(1500, 0, uneven=uneven), np.random.default_rng(0))
    fresh = drawn(4000, 1, uneven=uneven)
    found = trial(part, fresh, all_of(fresh))
    deviation = np.sqrt(0.09 / len(part.errors) + 0.09 / len(fresh.q))
    assert abs(found.covered.mean() - 0.9) < 4 * deviation


def test_a_line_and_difficulties_are_learned():
    part = errors(drawn(1500, 0), np.random.default_rng(0))
    assert part.line == pytest.approx((0.3, 0.9), abs=0.15)
    assert np.argmax(part.weights) == SPREAD


def test_uneven_errors_get_narrower_intervals_than_a_constant_width():
    """Of a normal variable with standard deviation s the interval is 3.29 · s wide: on average 1.02 for s
    uniform in 0.02 to 0.6. A constant one has to be 1.25 (by simulation of the mixture)."""
    part = errors(drawn(1500, 0), np.random.default_rng(0))
    fresh = drawn(4000, 1)
    found = trial(part, fresh, all_of(fresh))
    rng = np.random.default_rng(2)
    constant = 2 * np.quantile(np.abs(rng.normal(0, 1, 200_000) * rng.uniform(0.02, 0.6, 200_000)), 0.9)
    assert found.constant.mean() == pytest.approx(constant, rel=0.12)
    assert found.width.mean() < 0.95 * found.constant.mean()
    wide, narrow = fresh.features[:, SPREAD] > 0.5, fresh.features[:, SPREAD] < 0.1
    assert found.width[wide].mean() > 2 * found.width[narrow].mean()
    assert np.mean([found.covered[wide].mean(), found.covered[narrow].mean()]) > 0.8


def test_line_and_weights_are_learned_on_scenes_whose_errors_are_not_kept():
    known = drawn(1000, 0, scenes=50)
    part = errors(known, np.random.default_rng(0))
    residual = known.truth - part.line[0] - part.line[1] * known.q
    difficulty = part.difficulty(known.features)
    kept = [
        np.hypot(residual - error, difficulty - unit).argmin()
        for error, unit in zip(part.errors, part.difficulties, strict=True)
    ]
    kept_scenes = set(known.scenes[kept])
    assert len(kept_scenes) == round((1 - LEARNED_ON) * 50)
    assert len(part.errors) == sum(scene in kept_scenes for scene in known.scenes)  # whole scenes


def test_every_range_of_q_is_covered_where_errors_grow_with_q():
    """Noise of 0.1 at q 2 to 0.6 at q 4 that no feature tells of: one range would cover less than 80 % of
    the upper third (0.6/0.35 of the mean spread) and more than 98 % of the lower."""
    part, fresh = (
        replace(known, truth=uneven_by_q(known, seed))
        for known, seed in ((drawn(3000, 0), 3), (drawn(6000, 1), 4))
    )
    found = trial(errors(part, np.random.default_rng(0)), fresh, all_of(fresh))
    for low in (2.0, 2.67, 3.33):
        inside = (fresh.q >= low) & (fresh.q < low + 0.67)
        assert 0.86 < found.covered[inside].mean() < 0.94


def uneven_by_q(known: Cases, seed: int) -> np.ndarray:
    known.features[:, 1:] = 0
    return known.q + np.random.default_rng(seed).normal(0, 1, len(known.q)) * (0.1 + 0.25 * (known.q - 2))


def test_scores_that_are_all_alike_have_one_range():
    known = drawn(400, 0)
    assert (
        errors(replace(known, q=np.where(np.arange(400) % 2, 3.0, 2.9)), np.random.default_rng(0)).edges == ()
    )


@pytest.mark.parametrize(("count", "scenes"), [(ENOUGH - 1, 200), (ENOUGH + 50, 1)])
def test_too_few_pictures_or_scenes_teach_nothing(count, scenes):
    known = drawn(count, 0, scenes=scenes)
    part = errors(known, np.random.default_rng(0))
    assert part.line == (0.0, 1.0)
    assert part.weights == tuple(np.eye(len(FEATURES))[0])
    assert part.errors == pytest.approx(known.truth - known.q, abs=1e-5)
    assert set(part.difficulties) == {1.0}


def test_cases_have_the_modes_scores_and_leave_failures_out():
    rows, letters = make_rows(), Letters()
    truth = np.linspace(1, 5, len(rows))
    found = {c.condition: c for c in cases(rows, truth, make_run(), letters)}
    modes = readings(rows, letters)
    for look, mode in (("one order", "logits"), ("both orders", "logits, both orders")):
        known = next(c for c in found.values() if (c.condition.pipeline, c.condition.look) == ("agent", look))
        assert known.q == pytest.approx(modes[mode].scores[known.rows])
        assert list(known.rows) == list(np.flatnonzero(modes[mode].answered))
        assert known.truth == pytest.approx(truth[known.rows])
        assert [rows[i]["group"] for i in known.rows] == known.scenes.tolist()
    assert not any(condition.look == "crops" for condition in found)  # none were read


# Judging


def test_halves_keep_scenes_together_and_every_split_is_another():
    known = drawn(300, 0, scenes=30)
    found = list(halves(known))
    assert len(found) == SPLITS
    for used, judged in found:
        assert not set(known.scenes[used]) & set(known.scenes[judged])
        assert len(used) + len(judged) == 300
    assert len({tuple(used) for used, _ in found}) == SPLITS


def test_cross_fitting_covers_and_beats_a_constant_width_on_uneven_errors():
    """Of 20 halves of 1,200 pictures each is one of 600: √(0.09 / 420 + 0.09 / 600) = 0.019 for one."""
    known = drawn(1200, 0, scenes=1200)
    trials = cross_fitted(known)
    assert np.mean([found.covered.mean() for found in trials]) == pytest.approx(0.9, abs=0.03)
    widths, constants = (
        np.mean([getattr(found, name).mean() for found in trials]) for name in ("width", "constant")
    )
    assert widths < constants
    whole = both_halves(known)
    assert whole.at.tolist() == list(range(1200))
    assert whole.expected == pytest.approx(0.3 + 0.9 * known.q, abs=0.15)


def test_a_constant_interval_is_the_conformal_quantile():
    """Of 9 distances the ⌈10 · 0.9⌉ = 9th, of 19 the 18th; of 8 there is none."""
    assert half_width(np.arange(1, 10) / 10) == 0.9
    assert half_width(-np.arange(1, 20) / 10) == 1.8
    assert half_width(np.arange(1, 9)) == np.inf


def test_ranks_are_given_the_values_in_order():
    assert rank_matched(np.array([30, 10, 20]), np.array([1.5, 4.0, 2.0])).tolist() == [4.0, 1.5, 2.0]
    assert rank_matched(np.array([7, 7, 9]), np.array([1.0, 3.0, 4.0])).tolist() == [2.0, 2.0, 4.0]


def test_other_tools_than_the_calibrations_widen_the_interval():
    known = drawn(600, 0)
    part = errors(known, np.random.default_rng(0))
    strange = replace(known, voters=(("PIQE",),) * 600)
    usual, wider = (trial(part, k, all_of(k)) for k in (known, strange))
    assert not usual.widened.any()
    assert wider.widened.all()
    assert (wider.width >= usual.width).all()
    assert wider.width.mean() > 1.1 * usual.width.mean()  # of a normal distribution 3.92 / 3.29 = 1.19


# Tables


def on_levels(count: int = 240) -> tuple[list[dict], dict]:
    """A run on an absolute category scale 1..5."""
    rows = make_rows(count)
    for row in rows:
        row["mos"] = float(np.clip(row["mos"] / 9 * 4 + 1, 1, 5))
    run = make_run("koniq10k", quantization="none")
    return rows, run


@pytest.fixture(scope="module")
def study():
    rows, run = on_levels()
    return analysed(rows, run, draws=100)


def conditions(table, **wanted):
    return [row for row in table if all(row[key] == value for key, value in wanted.items())]


def test_the_tables_agree_with_a_count_by_hand(study):
    (line,) = conditions(study.tables["intervals"], pipeline="agent", look="one order")
    letters = Letters()
    truth = np.array([row["mos"] for row in study.rows])
    known = next(
        c
        for c in cases(study.rows, truth, study.run, letters)
        if (c.condition.pipeline, c.condition.look) == ("agent", "one order")
    )
    known = replace(known, scenes=study.draws.unit[known.rows].astype(str))
    inside = np.zeros(len(known.q))
    times = np.zeros(len(known.q))
    for found in cross_fitted(known):
        inside[found.at] += (found.low <= truth[known.rows][found.at]) & (
            truth[known.rows][found.at] <= found.high
        )
        times[found.at] += 1
    assert line["coverage"] == pytest.approx(np.mean(inside[times > 0] / times[times > 0]))
    assert line["coverage_low"] <= line["coverage"] <= line["coverage_high"]
    assert line["n"] == len(known.q)
    assert line["share"] == pytest.approx(len(known.q) / len(study.rows))
    assert line["srcc"] == pytest.approx(stats.spearmanr(known.q, truth[known.rows])[0])
    within = conditions(study.tables["intervals_within"], pipeline="agent", look="one order", by="fifth of q")
    assert [row["value"] for row in within] == [1, 2, 3, 4, 5]
    assert sum(row["n"] for row in within) == line["n"]
    assert np.average([row["coverage"] for row in within], weights=[row["n"] for row in within]) == (
        pytest.approx(line["coverage"])
    )


def test_what_cannot_be_made_is_said(study):
    assert any("after a look at crops: this run did not read them" in note for note in study.notes)
    rows, run = on_levels(40)
    few = analysed(rows, run, draws=20)
    assert few.tables["intervals"] == []
    assert any("it takes 50 of 2" in note for note in few.notes)
    ranked = analysed(make_rows(60), draws=20)  # TID2013's scale is of paired comparisons
    assert ranked.tables["intervals"] == []
    assert any("not of absolute categories" in note for note in ranked.notes)


def test_abstaining_keeps_fewer_and_narrower(study):
    rows = conditions(study.tables["abstaining"], pipeline="agent", look="one order")
    assert [row["kept"] for row in rows] == ["100 %", "90 %", "80 %", "70 %", "60 %", "50 %"]
    assert [row["n"] for row in rows] == [int(np.ceil(rows[0]["n"] * s / 100)) for s in range(100, 49, -10)]
    assert [row["widest"] for row in rows] == sorted((row["widest"] for row in rows), reverse=True)
    curve = conditions(study.tables["risk_coverage"], mode="logits", signal="width of the interval")
    assert len(curve) == 1


def test_verdicts_are_rarely_wrong_where_q_follows_the_truth(study):
    gates = conditions(study.tables["gates"], pipeline="agent", look="one order")
    assert [row["at_least"] for row in gates] == ["B", "C", "D"]
    for row in gates:
        assert 0 < row["decided"] <= 1
        assert row["error_low"] <= row["error"] <= row["error_high"]
        assert row["error"] < 0.2


def test_pairs_far_apart_are_ranked_rightly_and_probabilities_are_honest(study):
    rows = conditions(study.tables["pairwise"], pipeline="agent", look="one order", by="levels apart")
    every = [row for row in rows if row["pairs"] == "all"]
    right = [row["right"] for row in every]
    assert right == sorted(right)
    answered = conditions(study.tables["intervals"], pipeline="agent", look="one order")[0]["n"]
    assert 0 < sum(row["n"] for row in every) <= answered * (answered - 1) // 2
    assert {row["pairs"] for row in rows} == {"all", "same scene"}
    likelier = conditions(
        study.tables["pairwise"], pipeline="agent", look="one order", by="probability of the likelier"
    )
    for row in likelier:
        low, high = (float(end) for end in row["bin"].split(" to "))
        assert low <= row["expected"] <= high


# Fits


def written(folder, rows, run):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.json").write_text(json.dumps(run))
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_a_kept_fit_calibrates_and_a_report_leaves_its_rows_out(tmp_path):
    rows, run = on_levels()
    fit = fit_runs([written(tmp_path / "run", rows, run)], "keep", split=None, share=0.5, called="drawn")
    assert (fit.temperature, fit.eta, fit.before, fit.after) == (1.0, 1.0, 0.0, 0.0)
    assert fit.intervals
    assert fit.intervals.source == "drawn"
    assert {part.condition.look for part in fit.intervals.ratings} == {"one order", "both orders"}
    fit.write(tmp_path / "fit.json")
    assert read_fit(tmp_path / "fit.json") == fit
    given = given_calibration(run, rows, fit)
    assert given.seen.tolist() == [row["group"] in fit.groups for row in rows]
    found = analysed(rows, run, draws=20, given=given)
    (line,) = conditions(
        found.tables["intervals"], pipeline="agent", look="one order", calibration="the fit", scale="levels"
    )
    assert line["n"] < 0.6 * len(rows)
    assert conditions(found.tables["intervals"], calibration="the fit", scale="ranks")


def test_all_rows_may_be_kept_and_then_nothing_is_left_to_judge(tmp_path):
    rows, run = on_levels(120)
    fit = fit_runs([written(tmp_path / "run", rows, run)], "keep", split=None, share=1.0)
    assert len(fit.keys) == 120
    found = analysed(rows, run, draws=20, given=given_calibration(run, rows, fit))
    assert any("it was made on these scenes" in note for note in found.notes)
    assert {row["calibration"] for row in found.tables["intervals"]} == {"own, 20 random halves"}


def test_fits_without_intervals_are_still_read_and_a_report_says_that_there_are_none(tmp_path):
    """Formats 1 and 2 were written before there were intervals."""
    rows, run = on_levels(60)
    Fit(2.0, 0.5, "rps", 0.2, 0.1, "koniq10k", "M", ("a.jpg",)).write(tmp_path / "fit.json")
    fields = json.loads((tmp_path / "fit.json").read_text())
    del fields["intervals"]
    for version in (1, 2):
        (tmp_path / "old.json").write_text(json.dumps(fields | {"format": version}))
        old = read_fit(tmp_path / "old.json")
        assert old.intervals is None
        assert given_calibration(run, rows, old).missing == "it calibrates no intervals"


def test_the_shipped_calibration_is_for_its_own_model_alone():
    rows, run = on_levels(30)
    shipped = read_fit(ROOT / "configs" / "intervals.json").intervals
    assert shipped
    assert given_calibration(run, rows, None).missing == "it was made with another model"
    run["identity"] |= {"model": shipped.model, "reads": {"query": shipped.query}}
    run["model"] |= {"dtype": shipped.dtype, "quantization": shipped.quantization}
    assert given_calibration(run, rows, None).missing == "it was made with another η"
    run["fusion"] |= {"eta": shipped.eta}
    assert given_calibration(run, rows, None).calibration == shipped
    run["model"]["dtype"] = "bfloat16"
    assert given_calibration(run, rows, None).missing == "it was made with another dtype"


def test_runs_that_do_not_fit_together_are_refused(tmp_path):
    rows, run = on_levels(60)
    first = written(tmp_path / "one", rows, run)
    run["identity"] |= {"model": "another"}
    second = written(tmp_path / "two", rows, run)
    with pytest.raises(FitError, match="two: expected the data set, model and fusion of"):
        fit_runs([first, second], "keep", split=None, share=1.0)
    for share in (0.0, 1.5):
        with pytest.raises(FitError, match="expected a share of the scenes"):
            fit_runs([first], "keep", split=None, share=share)
