"""Calibrations made on drawn pictures whose truth is known, and the tables that judge them."""

import json
from dataclasses import replace

import numpy as np
import pytest
from conftest import ROOT
from scipy import stats
from test_study_report import analysed, make_rows, make_run

from agentic_iqa_local.judgement.fit import Fit, FitError, read_fit
from agentic_iqa_local.judgement.intervals import FEATURES
from agentic_iqa_local.result import Condition
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


def judged(part, known: Cases):
    return trial(part, known, np.arange(len(known.q)))


def calibrated(known: Cases):
    return errors(known, np.random.default_rng(0))


@pytest.mark.parametrize("uneven", [True, False])
def test_fresh_pictures_are_covered_as_often_as_promised(uneven):
    """A calibration of n errors covers 90 % on average, with a standard deviation over calibrations of
    √(0.9 · 0.1 / n) (Vovk 2012); of m fresh pictures it adds √(0.9 · 0.1 / m)."""
    part, fresh = calibrated(drawn(1500, 0, uneven=uneven)), drawn(4000, 1, uneven=uneven)
    deviation = np.sqrt(0.09 / len(part.errors) + 0.09 / len(fresh.q))
    assert abs(judged(part, fresh).covered.mean() - 0.9) < 4 * deviation


def test_learnt_difficulties_make_narrower_intervals_than_a_constant_width():
    """Of a normal variable with standard deviation s the interval is 3.29 · s wide: on average 1.02 for s uniform in
    0.02 to 0.6. A constant one has to be 1.25 (by simulation of the mixture)."""
    part, fresh = calibrated(drawn(1500, 0)), drawn(4000, 1)
    assert part.line == pytest.approx((0.3, 0.9), abs=0.15)
    assert np.argmax(part.weights) == SPREAD
    found, rng = judged(part, fresh), np.random.default_rng(2)
    constant = 2 * np.quantile(np.abs(rng.normal(0, 1, 200_000) * rng.uniform(0.02, 0.6, 200_000)), 0.9)
    assert found.constant.mean() == pytest.approx(constant, rel=0.12)
    assert found.width.mean() < 0.95 * found.constant.mean()
    wide, narrow = fresh.features[:, SPREAD] > 0.5, fresh.features[:, SPREAD] < 0.1
    assert found.width[wide].mean() > 2 * found.width[narrow].mean()
    assert min(found.covered[wide].mean(), found.covered[narrow].mean()) > 0.75


def test_line_and_weights_are_learnt_on_scenes_whose_errors_are_not_kept():
    known = drawn(1000, 0, scenes=50)
    part = calibrated(known)
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
    """Noise of 0.1 at q 2 to 0.6 at q 4 that no feature tells of: one range would cover less than 80 % of the upper
    third (0.6/0.35 of the mean spread) and more than 98 % of the lower."""

    def growing(known: Cases, seed: int) -> Cases:
        known.features[:, 1:] = 0
        noise = np.random.default_rng(seed).normal(0, 1, len(known.q)) * (0.1 + 0.25 * (known.q - 2))
        return replace(known, truth=known.q + noise)

    fresh = growing(drawn(6000, 1), 4)
    found = judged(calibrated(growing(drawn(3000, 0), 3)), fresh)
    for low in (2.0, 2.67, 3.33):
        inside = (fresh.q >= low) & (fresh.q < low + 0.67)
        assert 0.86 < found.covered[inside].mean() < 0.94
    alike = replace(drawn(400, 0), q=np.where(np.arange(400) % 2, 3.0, 2.9))
    assert calibrated(alike).edges == ()  # no ranges where scores are nearly all alike


@pytest.mark.parametrize(("count", "scenes"), [(ENOUGH - 1, 200), (ENOUGH + 50, 1)])
def test_too_few_pictures_or_scenes_teach_nothing(count, scenes):
    known = drawn(count, 0, scenes=scenes)
    part = calibrated(known)
    assert (part.line, part.weights) == ((0.0, 1.0), tuple(np.eye(len(FEATURES))[0]))
    assert part.errors == pytest.approx(known.truth - known.q, abs=1e-5)
    assert set(part.difficulties) == {1.0}


def test_other_tools_than_the_calibrations_widen_the_interval():
    known = drawn(600, 0)
    part = calibrated(known)
    usual, wider = judged(part, known), judged(part, replace(known, voters=(("PIQE",),) * 600))
    assert not usual.widened.any()
    assert wider.widened.all()
    assert wider.width.mean() > 1.1 * usual.width.mean()  # of a normal distribution 3.92 / 3.29 = 1.19


def test_cases_have_the_modes_scores_and_leave_failures_out():
    rows, letters = make_rows(), Letters()
    truth = np.linspace(1, 5, len(rows))
    found = {(c.condition.pipeline, c.condition.look): c for c in cases(rows, truth, make_run(), letters)}
    modes = readings(rows, letters)
    for look, mode in (("one order", "logits"), ("both orders", "logits, both orders")):
        known = found["agent", look]
        assert known.q == pytest.approx(modes[mode].scores[known.rows])
        assert list(known.rows) == list(np.flatnonzero(modes[mode].answered))
        assert known.truth == pytest.approx(truth[known.rows])
        assert [rows[i]["group"] for i in known.rows] == known.scenes.tolist()
    assert {look for _, look in found} == {"one order", "both orders"}  # crops were not read


def test_halves_keep_scenes_together_and_cross_fitting_covers():
    """Each of 20 halves of 1,200 pictures calibrates 600: √(0.09 / 420 + 0.09 / 600) = 0.019 for one."""
    known = drawn(1200, 0, scenes=120)
    found = list(halves(known))
    assert all(not set(known.scenes[used]) & set(known.scenes[at]) for used, at in found)
    assert all(len(used) + len(at) == 1200 for used, at in found)
    assert len({tuple(used) for used, _ in found}) == SPLITS
    trials = cross_fitted(known)
    assert np.mean([trial.covered.mean() for trial in trials]) == pytest.approx(0.9, abs=0.03)
    assert np.mean([t.width.mean() for t in trials]) < np.mean([t.constant.mean() for t in trials])
    whole = both_halves(known)
    assert whole.at.tolist() == list(range(1200))
    assert whole.expected == pytest.approx(0.3 + 0.9 * known.q, abs=0.15)


def test_constant_widths_and_matched_ranks_by_hand():
    """Of 9 distances the ⌈10 · 0.9⌉ = 9th, of 19 the 18th; of 8 there is none."""
    assert half_width(np.arange(1, 10) / 10) == 0.9
    assert half_width(-np.arange(1, 20) / 10) == 1.8
    assert half_width(np.arange(1, 9)) == np.inf
    assert rank_matched(np.array([30, 10, 20]), np.array([1.5, 4.0, 2.0])).tolist() == [4.0, 1.5, 2.0]
    assert rank_matched(np.array([7, 7, 9]), np.array([1.0, 3.0, 4.0])).tolist() == [2.0, 2.0, 4.0]


def on_levels(count: int = 240) -> tuple[list[dict], dict]:
    """A run on an absolute category scale 1..5."""
    rows = make_rows(count)
    for row in rows:
        row["mos"] = float(np.clip(row["mos"] / 9 * 4 + 1, 1, 5))
    return rows, make_run("koniq10k", quantization="none")


@pytest.fixture(scope="module")
def study():
    return analysed(*on_levels(), draws=100)


def lines(table, **wanted):
    wanted = {"pipeline": "agent", "look": "one order"} | wanted
    return [row for row in table if all(row[key] == value for key, value in wanted.items())]


def test_the_tables_agree_with_a_count_by_hand(study):
    (line,) = lines(study.tables["intervals"])
    truth = np.array([row["mos"] for row in study.rows])
    found = cases(study.rows, truth, study.run, Letters())
    known = next(c for c in found if (c.condition.pipeline, c.condition.look) == ("agent", "one order"))
    known = replace(known, scenes=study.draws.unit[known.rows].astype(str))
    inside, times = np.zeros(len(known.q)), np.zeros(len(known.q))
    for part in cross_fitted(known):
        inside[part.at] += (part.low <= known.truth[part.at]) & (known.truth[part.at] <= part.high)
        times[part.at] += 1
    assert line["coverage"] == pytest.approx(np.mean(inside[times > 0] / times[times > 0]))
    assert line["coverage_low"] <= line["coverage"] <= line["coverage_high"]
    assert (line["n"], line["share"]) == (len(known.q), pytest.approx(len(known.q) / len(study.rows)))
    assert line["srcc"] == pytest.approx(stats.spearmanr(known.q, known.truth)[0])
    within = lines(study.tables["intervals_within"], by="fifth of q")
    assert [row["value"] for row in within] == [1, 2, 3, 4, 5]
    counts = [row["n"] for row in within]
    assert sum(counts) == line["n"]
    assert np.average([row["coverage"] for row in within], weights=counts) == pytest.approx(line["coverage"])


def test_abstaining_verdicts_and_pairs_are_consistent(study):
    rows = lines(study.tables["abstaining"])
    assert [row["n"] for row in rows] == [int(np.ceil(rows[0]["n"] * s / 100)) for s in range(100, 49, -10)]
    assert [row["widest"] for row in rows] == sorted((row["widest"] for row in rows), reverse=True)
    gates = lines(study.tables["gates"])
    assert [row["at_least"] for row in gates] == ["B", "C", "D"]
    for row in gates:  # verdicts are rarely wrong where q follows the truth
        assert 0 < row["decided"] <= 1
        assert row["error_low"] <= row["error"] <= row["error_high"]
        assert row["error"] < 0.2
    right = [row["right"] for row in lines(study.tables["pairwise"], by="levels apart", pairs="all")]
    assert right == sorted(right)
    for row in lines(study.tables["pairwise"], by="probability of the likelier"):
        low, high = (float(end) for end in row["bin"].split(" to "))
        assert low <= row["expected"] <= high


def test_what_cannot_be_made_is_said(study):
    assert any("after a look at crops: this run did not read them" in note for note in study.notes)
    few = analysed(*on_levels(40), draws=20)
    ranked = analysed(make_rows(60), draws=20)  # TID2013's scale is of paired comparisons
    assert (few.tables["intervals"], ranked.tables["intervals"]) == ([], [])
    assert any("it takes 50 of 2" in note for note in few.notes)
    assert any("not of absolute categories" in note for note in ranked.notes)


def written(folder, rows, run):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.json").write_text(json.dumps(run))
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_a_kept_fit_calibrates_and_a_report_leaves_its_rows_out(tmp_path):
    rows, run = on_levels()
    folder = written(tmp_path / "run", rows, run)
    fit = fit_runs([folder], "keep", split=None, share=0.5, called="drawn")
    assert (fit.temperature, fit.eta, fit.before, fit.after) == (1.0, 1.0, 0.0, 0.0)
    assert fit.intervals.source == "drawn"
    assert {part.condition.look for part in fit.intervals.ratings} == {"one order", "both orders"}
    (tmp_path / "fit.json").write_text(fit.to_json())
    assert read_fit(tmp_path / "fit.json") == fit
    given = given_calibration(run, rows, fit)
    assert given.seen.tolist() == [row["group"] in fit.groups for row in rows]
    found = analysed(rows, run, draws=20, given=given)
    (line,) = lines(found.tables["intervals"], calibration="the fit", scale="levels")
    assert line["n"] < 0.6 * len(rows)
    whole = fit_runs([folder], "keep", split=None, share=1.0)
    found = analysed(rows, run, draws=20, given=given_calibration(run, rows, whole))
    assert any("it was made on these scenes" in note for note in found.notes)


def test_fits_of_former_formats_are_read(tmp_path):
    """Format 2 was written before there were intervals."""
    rows, run = on_levels(60)
    fields = json.loads(Fit(2.0, 0.5, "rps", 0.2, 0.1, "koniq10k", "M", ("a.jpg",)).to_json())
    del fields["intervals"]
    for version in (2,):
        (tmp_path / "old.json").write_text(json.dumps(fields | {"format": version}))
        assert given_calibration(run, rows, read_fit(tmp_path / "old.json")).missing == (
            "it calibrates no intervals"
        )


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
