"""Calibrations made on drawn pictures whose truth is known, the tables that judge them, and fits by the command."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from scripted import study_here
from test_study_report import analysed, command, make_rows, make_run, one, store, table
from test_study_run import noisier_crops

from agentic_iqa_local.judgement.fit import read_fit
from agentic_iqa_local.judgement.intervals import FEATURES
from agentic_iqa_local.result import Condition
from agentic_iqa_local.studies.calibrating import cases, errors
from agentic_iqa_local.studies.datasets import load_dataset
from agentic_iqa_local.studies.fitting import fit_runs
from agentic_iqa_local.studies.interval_tables import judged_by
from agentic_iqa_local.studies.modes import scored_modes
from agentic_iqa_local.studies.readings import Readings
from agentic_iqa_local.studies.run import Plan
from agentic_iqa_local.studies.store import Run, read_run

CONDITION = Condition(pipeline="agent", reference=False, look="one order")
RUN = Run.model_validate(make_run())


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
    assert abs(judged_by(part, fresh).covered.mean() - 0.9) < 4 * deviation


def test_learnt_difficulties_make_narrower_intervals_than_a_constant_width():
    """Of a normal variable with standard deviation s the interval is 3.29 · s wide: on average 1.02 for s uniform in
    0.02 to 0.6. A constant one has to be 1.25 wide (by simulation of the mixture)."""
    part, fresh = calibrated(drawn(1500, 0)), drawn(4000, 1)
    assert part.line == pytest.approx((0.3, 0.9), abs=0.15)
    assert FEATURES[np.argmax(part.weights)] == "spread"
    found = judged_by(part, fresh)
    assert found.width.mean() < 0.95 * 1.25
    wide, narrow = found[fresh.spread > 0.5], found[fresh.spread < 0.1]
    assert wide.width.mean() > 2 * narrow.width.mean()
    assert min(wide.covered.mean(), narrow.covered.mean()) > 0.75
    other_tools = judged_by(part, fresh.assign(voters=[("PIQE",)] * 4000))
    assert other_tools.width.mean() > 1.1 * found.width.mean()


def test_cases_have_the_modes_scores_and_leave_failures_out():
    rows = make_rows()
    readings, truth = Readings(rows), np.linspace(1, 5, len(rows))
    found = {}
    for condition, known in cases(readings, truth, RUN, RUN.fusion).items():
        found[condition.pipeline, condition.look] = known
    assert {look for _, look in found} == {"one order", "both orders"}  # crops were not read
    known, logits = found["agent", "one order"], scored_modes(readings, RUN.fusion)["logits"]
    assert known.q.to_numpy() == pytest.approx(logits.scores[known.index])
    assert list(known.index) == list(np.flatnonzero(np.isfinite(logits.scores)))
    assert known.truth.to_numpy() == pytest.approx(truth[known.index])
    assert [rows[i]["group"] for i in known.index] == list(known.scene)


# Tables


def on_levels(count: int = 240) -> tuple[dict, list[dict]]:
    """A run on an absolute category scale 1..5."""
    rows = make_rows(count)
    for row in rows:
        row.get("reads", {}).pop("image_alone", None)
        row["mos"] = float(np.clip(row["mos"] / 9 * 4 + 1, 1, 5))
    return make_run("koniq10k", quantization="none"), rows


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    folder = store(tmp_path_factory.mktemp("levels") / "run", *on_levels())
    return fit_runs([folder], "keep", split=None, share=0.5)


@pytest.fixture(scope="module")
def study(fitted):
    run, rows = on_levels()
    return analysed(rows, run, draws=40, fit=fitted)


def lines(table: pd.DataFrame, **wanted) -> pd.DataFrame:
    for name, value in ({"pipeline": "agent", "look": "one order"} | wanted).items():
        table = table[table[name] == value]
    return table


def test_a_report_leaves_out_the_rows_of_a_fit(study, fitted):
    assert (fitted.temperature, fitted.eta, fitted.before, fitted.after) == (1.0, 1.0, 0.0, 0.0)
    assert {part.condition.look for part in fitted.intervals.ratings} == {
        "one order",
        "both orders",
    }
    assert {row["group"] for row in study.run.rows}.isdisjoint(fitted.groups)
    assert "logits, fitted" in study.run.modes


def test_coverage_and_width_agree_with_a_count_by_hand(study, fitted):
    line = lines(study.tables["intervals"]).iloc[0]
    truth = np.array([row["mos"] for row in study.run.rows])
    condition = Condition(pipeline="agent", reference=True, look="one order")
    known = cases(study.run.readings, truth, RUN, RUN.fusion)[condition]
    part = fitted.intervals.of(condition)
    difficulty = part.difficulty(known[[*FEATURES]].to_numpy())
    low, high = part.ends(known.q.to_numpy(), difficulty, 0.9).T
    covered = (low <= known.truth) & (known.truth <= high)
    assert (line.n, line.coverage) == (len(known), pytest.approx(covered.mean()))
    assert line.width == pytest.approx((high - low).mean())
    assert line.srcc == pytest.approx(stats.spearmanr(known.q, known.truth)[0])
    assert list(lines(study.tables["judged"]).covered) == list(covered)


def test_abstaining_and_verdicts_are_consistent(study):
    table = lines(study.tables["abstaining"])
    assert list(table.n) == [int(np.ceil(table.n.iloc[0] * s / 100)) for s in range(100, 49, -10)]
    assert table.widest.is_monotonic_decreasing
    gates = lines(study.tables["gates"])
    assert list(gates.at_least) == ["B", "C", "D"]
    assert gates.decided.between(0.01, 1).all()
    assert (gates.error < 0.2).all()  # verdicts are rarely wrong where q follows the truth
    assert (gates.error <= gates.error_high).all()


def test_a_scale_without_levels_has_no_figures_of_intervals(fitted):
    study = analysed(make_rows(), draws=20, fit=fitted)
    assert study.tables["intervals"].empty
    assert any("not of categories with known ends" in note for note in study.notes)


# Runs of the real model


@pytest.fixture(scope="module")
def runs(photo, services, tmp_path_factory):
    """A run on three crops with scores, and one on two questions; both of the same model."""
    folder = tmp_path_factory.mktemp("intervals")
    rated = load_dataset(noisier_crops(photo, folder, 3), mos_range=(1, 5))
    (folder / "q.csv").write_text(
        "image,question,choices,answer\n0.png,Is it sharp? 0,Yes|No,Yes\n0.png,Is it sharp? 1,Yes|No,Yes"
    )
    list(study_here(rated, services, Plan(tools=("LocalNR", "NIQE")), folder / "rated"))
    list(study_here(load_dataset(folder / "q.csv"), services, Plan(), folder / "asked"))
    return folder / "rated", folder / "asked"


KEEP = ("--objective", "keep")


def test_a_fit_of_pictures_and_questions_calibrates_both(runs, tmp_path, capsys):
    out = tmp_path / "fit.json"
    done = command(capsys, "fit", *runs, *KEEP, "--share", 1, "--out", out)
    assert (done[0], "sets of answers for 0" in done[1]) == (0, False)
    fit, rows, questions = read_fit(out), read_run(runs[0])[1], read_run(runs[1])[1]
    assert set(fit.keys) == {row["key"] for row in (*rows, *questions)}
    assert (fit.intervals.source, fit.intervals.images) == ("scores.csv", 3)
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
    for name, options in (("fit", ["--fit", tmp_path / "fit.json"]), ("shipped", [])):
        out = tmp_path / name
        assert command(capsys, "report", runs[0], "--out", out, "--draws", 20, *options)[0] == 0
        found = table(out, "intervals")
        assert {line["n"] for line in found} == {"2" if options else "3"}
        if options:  # one picture's error: no interval but the whole scale, which holds everything
            assert {(line["coverage"], line["width"]) for line in found} == {("1", "4")}
    assert command(capsys, "report", runs[1], "--out", tmp_path / "asked")[0] == 0
    assert one(table(tmp_path / "asked", "accuracy"), part="all")["n"] == "2"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["report", "other", "--fit", "fit.json", "--out", "report"], "expected a fit of"),
        (["fit", "rated", "other", *KEEP, "--out", "x.json"], "data set, model and fusion of"),
        (["fit", "asked", "--objective", "srcc", "--out", "x.json"], "got one on questions"),
        (["fit", "rated", *KEEP, "--share", "0.01", "--out", "x.json"], "use 0 of 3"),
    ],
)
def test_bad_input_is_one_sentence(runs, capsys, monkeypatch, arguments, message):
    folder = runs[0].parent
    monkeypatch.chdir(folder)
    if not (folder / "other").exists():
        shutil.copytree("rated", "other")
        run = json.loads((folder / "other" / "run.json").read_text())
        run["identity"]["model"] = "another"
        (folder / "other" / "run.json").write_text(json.dumps(run))
        command(capsys, "fit", "rated", *KEEP, "--share", 1, "--out", "fit.json")
    status, _, said = command(capsys, *arguments)
    assert (status, len(said.splitlines())) == (2, 1)
    assert message in said
    assert not (folder / "x.json").exists()
