"""Calibrations made on drawn pictures whose truth is known, the tables that judge them, and fits by the command."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from scipy import stats
from scripted import study_here
from test_study_report import analysed, command, make_rows, make_run, one, store, table

from agentic_iqa_local.judgement.fit import read_fit
from agentic_iqa_local.judgement.intervals import FEATURES
from agentic_iqa_local.result import Condition
from agentic_iqa_local.studies.calibrating import cases, errors
from agentic_iqa_local.studies.datasets import load_dataset
from agentic_iqa_local.studies.fitting import fit_runs
from agentic_iqa_local.studies.interval_tables import cross_fitted, trial
from agentic_iqa_local.studies.readings import Readings, scored_modes
from agentic_iqa_local.studies.run import Plan
from agentic_iqa_local.studies.store import fusion_settings, read_run

CONDITION = Condition(pipeline="agent", reference=False, look="one order")
SETTINGS = fusion_settings(make_run())


def drawn(count: int, seed: int, *, uneven: bool = True, scenes: int = 200) -> pd.DataFrame:
    """Truth = 0.3 + 0.9 · q plus noise whose standard deviation is `spread` of the picture (0.02 to 0.6), or 0.3."""
    rng = np.random.default_rng(seed)
    q, difficulty = rng.uniform(2, 4, count), rng.uniform(0.02, 0.6, count)
    table = pd.DataFrame(0.0, range(count), FEATURES)
    table["constant"], table["spread"] = 1.0, difficulty
    noise = rng.normal(0, 1, count) * (difficulty if uneven else 0.3)
    scene = np.arange(count) if scenes >= count else rng.integers(0, scenes, count)
    return table.assign(
        q=q, truth=0.3 + 0.9 * q + noise, scene=scene.astype(str), voters=[("NIQE",)] * count
    )


def calibrated(known: pd.DataFrame):
    return errors(CONDITION, known, np.random.default_rng(0))


@pytest.mark.parametrize("uneven", [True, False])
def test_fresh_pictures_are_covered_as_often_as_promised(uneven):
    """A calibration of n errors covers 90 % on average, with a standard deviation over calibrations of
    √(0.9 · 0.1 / n) (Vovk 2012); of m fresh pictures it adds √(0.9 · 0.1 / m)."""
    part, fresh = calibrated(drawn(1500, 0, uneven=uneven)), drawn(4000, 1, uneven=uneven)
    deviation = np.sqrt(0.09 / len(part.errors) + 0.09 / len(fresh))
    assert abs(trial(part, fresh).covered.mean() - 0.9) < 4 * deviation


def test_learnt_difficulties_make_narrower_intervals_than_a_constant_width():
    """Of a normal variable with standard deviation s the interval is 3.29 · s wide: on average 1.02 for s uniform in
    0.02 to 0.6. A constant one has to be 1.25 wide (by simulation of the mixture)."""
    part, fresh = calibrated(drawn(1500, 0)), drawn(4000, 1)
    assert part.line == pytest.approx((0.3, 0.9), abs=0.15)
    assert FEATURES[np.argmax(part.weights)] == "spread"
    found = trial(part, fresh)
    assert found.constant_width.mean() == pytest.approx(1.25, rel=0.12)
    assert found.width.mean() < 0.95 * found.constant_width.mean()
    wide, narrow = found[fresh.spread > 0.5], found[fresh.spread < 0.1]
    assert wide.width.mean() > 2 * narrow.width.mean()
    assert min(wide.covered.mean(), narrow.covered.mean()) > 0.75
    assert (
        trial(part, fresh.assign(voters=[("PIQE",)] * 4000)).width.mean() > 1.1 * found.width.mean()
    )  # other tools


def test_constant_widths_by_hand():
    """Of 9 distances from q the ⌈10 · 0.9⌉ = 9th is the half, of 19 the 18th; of 8 there is none but the scale's."""
    known = drawn(20, 0).assign(q=3.0)
    for count, width in ((9, 1.8), (19, 3.6), (8, 4.0)):
        part = calibrated(known[:count].assign(truth=3 - np.arange(1, count + 1) / 10))
        assert trial(part, known).constant_width.to_numpy() == pytest.approx(width)


def test_cases_have_the_modes_scores_and_leave_failures_out():
    rows = make_rows()
    readings, truth = Readings(rows), np.linspace(1, 5, len(rows))
    found = {
        (c.pipeline, c.look): known
        for c, known in cases(readings, truth, make_run(), SETTINGS).items()
    }
    modes = scored_modes(readings, SETTINGS, None, ())
    for look, mode in (("one order", "logits"), ("both orders", "logits, both orders")):
        known = found["agent", look]
        assert known.q.to_numpy() == pytest.approx(modes[mode].scores[known.index])
        assert list(known.index) == list(np.flatnonzero(modes[mode].answered))
        assert known.truth.to_numpy() == pytest.approx(truth[known.index])
        assert [rows[i]["group"] for i in known.index] == list(known.scene)
    assert {look for _, look in found} == {"one order", "both orders"}  # crops were not read


# Tables


def on_levels(count: int = 240) -> tuple[list[dict], dict]:
    """A run on an absolute category scale 1..5."""
    rows = make_rows(count)
    for row in rows:
        row["reads"] = {
            name: read for name, read in row.get("reads", {}).items() if name == "all_evidence"
        }
        row["mos"] = float(np.clip(row["mos"] / 9 * 4 + 1, 1, 5))
    return rows, make_run("koniq10k", quantization="none")


@pytest.fixture(scope="module")
def study():
    return analysed(*on_levels(), draws=40)


def lines(table: pd.DataFrame, **wanted) -> pd.DataFrame:
    for name, value in ({"pipeline": "agent", "look": "one order"} | wanted).items():
        table = table[table[name] == value]
    return table


def test_the_tables_agree_with_a_count_by_hand(study):
    line = lines(study.tables["intervals"]).iloc[0]
    truth = np.array([row["mos"] for row in study.run.rows])
    found = cases(study.run.readings, truth, study.run.run, SETTINGS)
    known = next(
        known for c, known in found.items() if (c.pipeline, c.look) == ("agent", "one order")
    )
    known = known.assign(scene=study.run.draws.unit[known.index].astype(str))
    trials = cross_fitted(CONDITION, known)[0]
    assert line.coverage_sd == pytest.approx(np.std([each.covered.mean() for each in trials]))
    parts = pd.concat(trials)
    assert line.constant_width == pytest.approx(parts.constant_width.groupby(level=0).mean().mean())
    inside = (parts.low <= truth[parts.index]) & (truth[parts.index] <= parts.high)
    assert line.coverage == pytest.approx(inside.groupby(level=0).mean().mean())
    assert line.coverage_low <= line.coverage <= line.coverage_high
    assert (line.n, line.share) == (len(known), pytest.approx(len(known) / len(truth)))
    assert line.srcc == pytest.approx(stats.spearmanr(known.q, known.truth)[0])
    within = lines(study.tables["intervals_within"], by="fifth of q")
    assert list(within.value) == ["1", "2", "3", "4", "5"]
    assert within.n.sum() == line.n
    assert np.average(within.coverage, weights=within.n) == pytest.approx(line.coverage)


def test_abstaining_verdicts_and_pairs_are_consistent(study):
    table = lines(study.tables["abstaining"])
    assert list(table.n) == [int(np.ceil(table.n.iloc[0] * s / 100)) for s in range(100, 49, -10)]
    assert table.widest.is_monotonic_decreasing
    gates = lines(study.tables["gates"])
    assert list(gates.at_least) == ["B", "C", "D"]
    assert gates.decided.between(
        0.01, 1
    ).all()  # verdicts are rarely wrong where q follows the truth
    assert (
        (gates.error_low <= gates.error) & (gates.error <= gates.error_high) & (gates.error < 0.2)
    ).all()
    assert lines(study.tables["pairwise"]).right.is_monotonic_increasing


def test_a_report_leaves_out_the_rows_of_a_fit(tmp_path):
    rows, run = on_levels()
    folder = store(tmp_path / "run", run, rows)
    fit = fit_runs([folder], "keep", split=None, share=0.5, called="drawn")
    assert (fit.temperature, fit.eta, fit.before, fit.after) == (1.0, 1.0, 0.0, 0.0)
    assert {part.condition.look for part in fit.intervals.ratings} == {"one order", "both orders"}
    found = analysed(rows, run, draws=20, fit=fit)
    assert {row["group"] for row in found.run.rows}.isdisjoint(fit.groups)
    assert "logits, fitted" in found.run.modes
    assert lines(found.tables["intervals"], calibration="the fit").n.item() < 0.6 * len(rows)


def test_on_a_scale_without_levels_intervals_are_judged_by_ranks(tmp_path):
    """TID2013's scores are of paired comparisons: the one with rank r is given the r-th of the expected levels."""
    folder = store(tmp_path / "run", *on_levels()[::-1])
    fit = fit_runs([folder], "keep", split=None, share=1, called="drawn")
    study = analysed(make_rows(), draws=20, fit=fit)
    line = lines(study.tables["intervals"]).iloc[0]
    known = cases(study.run.readings, study.run.mos, study.run.run, SETTINGS)
    condition = Condition(pipeline="agent", reference=True, look="one order")
    part, known = fit.intervals.of(condition), known[condition]
    expected = np.sort(np.clip(part.line[0] + part.line[1] * known.q, 1, 5))
    truth = np.interp(stats.rankdata(known.truth), np.arange(1, len(known) + 1), expected)
    low, high = part.ends(known.q.to_numpy(), part.difficulty(known[[*FEATURES]].to_numpy()), 0.9).T
    assert line.coverage == pytest.approx(((low <= truth) & (truth <= high)).mean())
    assert (line.scale, line.n, line.width) == (
        "ranks",
        len(known),
        pytest.approx((high - low).mean()),
    )
    assert study.tables["gates"].empty
    assert any("not of categories with known ends" in note for note in study.notes)


# Runs of the real model


@pytest.fixture(scope="module")
def runs(photo, services, tmp_path_factory):
    """A run on three crops with scores, and one on two questions; both of the same model."""
    folder = tmp_path_factory.mktemp("intervals")
    rng = np.random.default_rng(0)
    scores = ["image,mos"]
    for i in range(3):
        pixels = np.asarray(photo.crop((32 * i, 0, 32 * i + 256, 224)), np.float32)
        pixels = pixels + rng.normal(0, 25 * i, pixels.shape)
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / f"{i}.png")
        scores.append(f"{i}.png,{5 - i}")
    (folder / "scores.csv").write_text("\n".join(scores))
    asked = {"image": "0.png", "choices": ["Yes", "No"], "answer": "Yes"}
    lines = (json.dumps(asked | {"question": f"Is it sharp? {i}"}) for i in range(2))
    (folder / "q.jsonl").write_text("\n".join(lines))
    data = load_dataset(folder / "scores.csv", mos_range=(1, 5))
    list(study_here(data, services, Plan(tools=("LocalNR", "NIQE")), folder / "rated"))
    list(study_here(load_dataset(folder / "q.jsonl"), services, Plan(), folder / "asked"))
    return folder / "rated", folder / "asked"


KEEP = ("--objective", "keep")


def test_a_fit_of_pictures_and_questions_calibrates_both(runs, tmp_path, capsys):
    out = tmp_path / "fit.json"
    done = command(
        capsys, "fit", *runs, *KEEP, "--share", 1, "--called", "three crops", "--out", out
    )
    assert (done[0], "sets of answers" in done[1]) == (0, True)
    fit, rows, questions = read_fit(out), read_run(runs[0])[1], read_run(runs[1])[1]
    assert set(fit.keys) == {row["key"] for row in (*rows, *questions)}
    assert (fit.intervals.source, fit.intervals.images) == ("three crops", 3)
    part = fit.intervals.of(CONDITION)
    # so few teach nothing: an error is what the agent's own q is away from the score
    assert part.errors == pytest.approx(
        [row["mos"] - row["agent"]["fusion"]["q"] for row in rows], abs=1e-4
    )
    answers = next(part for part in fit.intervals.questions if part.pipeline == "agent")
    given = [
        row["probabilities"] for row in questions
    ]  # Yes is right: a set holds it with p, or with all
    assert answers.right == pytest.approx([yes if yes > no else 1.0 for yes, no in given], abs=1e-6)


def test_reports_with_the_shipped_calibration_and_with_a_fit(runs, tmp_path, capsys):
    command(capsys, "fit", runs[0], *KEEP, "--share", 0.34, "--out", tmp_path / "fit.json")
    for name, options in (("the fit", ["--fit", tmp_path / "fit.json"]), ("shipped", [])):
        out = tmp_path / name
        assert command(capsys, "report", runs[0], "--out", out, "--draws", 20, *options)[0] == 0
        assert (
            "No calibration of the run" in (out / "report.html").read_text()
        )  # of so few pictures
        found = table(out, "intervals")
        assert {line["calibration"] for line in found} == {name}
        if (
            name == "the fit"
        ):  # one picture's error: no interval but the whole scale, which holds everything
            assert {(line["coverage"], line["width"], line["n"]) for line in found} == {
                ("1", "4", "2")
            }
    assert command(capsys, "report", runs[1], "--out", tmp_path / "asked")[0] == 0
    assert one(table(tmp_path / "asked", "accuracy"), part="all")["n"] == "2"


def test_bad_input_is_one_sentence(runs, tmp_path, capsys):
    other = tmp_path / "other"
    shutil.copytree(runs[0], other)
    run = json.loads((other / "run.json").read_text())
    run["identity"]["model"] = "another"
    (other / "run.json").write_text(json.dumps(run))
    made, out = tmp_path / "fit.json", tmp_path / "x.json"
    assert command(capsys, "fit", runs[0], *KEEP, "--share", 1, "--out", made)[0] == 0
    for arguments, message in (
        (
            ["report", other, "--fit", made, "--out", tmp_path / "report"],
            "expected a fit of the model of",
        ),
        (["fit", runs[0], other, *KEEP, "--out", out], "data set, model and fusion of"),
        (["fit", runs[1], "--objective", "srcc", "--out", out], "got one on questions"),
        (["fit", runs[0], *KEEP, "--share", "0.01", "--out", out], "use 0 of 3"),
        (["fit", runs[0], *KEEP, "--share", "1.5", "--out", out], "expected a share of the scenes"),
    ):
        status, _, said = command(capsys, *arguments)
        assert (status, len(said.splitlines())) == (2, 1), arguments
        assert message in said
        assert not out.exists()
