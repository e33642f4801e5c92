"""Fits of temperature and η on made rows whose best parameters are known."""

import json

import numpy as np
import pytest
from scipy import stats
from test_study_report import make_rows, make_run, store

from agentic_iqa_local.config import FusionSettings, Settings, fitted
from agentic_iqa_local.judgement.fit import MOST_TEMPERATURE, FitError, read_fit
from agentic_iqa_local.judgement.identity import fitted_with
from agentic_iqa_local.judgement.intervals import SHIPPED
from agentic_iqa_local.score_fusion import LEVELS, fused_distribution
from agentic_iqa_local.studies.datasets import DatasetError
from agentic_iqa_local.studies.fitting import fit_letters, fit_runs, fit_temperature
from agentic_iqa_local.studies.readings import Readings

SETTINGS = FusionSettings(eta=1.0)


def sharpened(rows, by):
    """The rows with letters `by` times as sharp: a temperature of `by` makes them what they were."""
    rows = json.loads(json.dumps([row for row in rows if row.get("reads")]))
    for row in rows:
        for view in row["reads"]["all_evidence"]["views"]:
            for order in ("forward", "reversed"):
                view[order] = {letter: by * p for letter, p in view[order].items()}
    return rows


def parts(rows) -> tuple[Readings, np.ndarray, np.ndarray]:
    readings = Readings(rows)
    return readings, readings.agent["q_bar"].to_numpy(), readings.p("all_evidence")


def test_the_rps_fit_finds_the_temperature_that_letters_were_sharpened_by():
    """Levels drawn from the fused distribution at temperature 1 and η 1: a proper score is least there. Sharpened
    threefold, the letters need a temperature of 3. With 1,100 rows the estimate scatters by some 10 %."""
    rows = sharpened(make_rows(1300), 1)
    _, q_bar, p = parts(rows)
    rng = np.random.default_rng(0)
    levels = np.array([rng.choice(LEVELS, p=w) for w in fused_distribution(p, q_bar, 1.0)])
    (temperature, eta), before, after = fit_letters(sharpened(rows, 3), "rps", levels, SETTINGS)
    assert 2.2 < temperature < 4.0
    assert 0.7 < eta < 1.4
    assert after <= before


def test_the_temperature_alone_is_fitted_and_letters_that_say_nothing_get_the_highest():
    """As above with η as it is; levels that are drawn from the tools' weights alone leave nothing to the letters."""
    rows = sharpened(make_rows(1300), 1)
    _, q_bar, p = parts(rows)
    rng = np.random.default_rng(0)
    drawn = fused_distribution(p, q_bar, 1.0)
    levels = np.array([rng.choice(LEVELS, p=w) for w in drawn])
    (temperature, eta), before, after = fit_temperature(
        sharpened(rows, 3), "temperature", levels, SETTINGS
    )
    assert 2.2 < temperature < 4.0
    assert (eta, after < before) == (1.0, True)
    alike = fused_distribution(np.full_like(p, 0.2), q_bar, 1.0)
    levels = np.array([rng.choice(LEVELS, p=w) for w in alike])
    (temperature, _), _, _ = fit_temperature(sharpened(rows, 3), "temperature", levels, SETTINGS)
    assert temperature > MOST_TEMPERATURE / 2


def test_the_shipped_fit_is_of_the_tools_that_ship_and_says_how_the_models_letters_count():
    fit = read_fit(SHIPPED)
    assert fit.made_with == fitted_with()
    assert fitted(Settings()).fusion.temperature == fit.temperature
    asked = Settings(fusion={"temperature": 1.0})
    assert fitted(asked).fusion.temperature == 1.0
    other = Settings(models={"embedded": {"path": "/no/such/folder"}})
    assert fitted(other).fusion.temperature == 1.0


def test_the_srcc_fit_finds_the_parameters_that_the_scores_were_made_with():
    """Scores that are the fused q at temperature 2.5 and η 0.4: SRCC is 1 there, and less elsewhere."""
    rows = sharpened(make_rows(400), 1)
    readings, q_bar, p = parts(rows)
    targets = fused_distribution(readings.p("all_evidence", temperature=2.5), q_bar, 0.4) @ LEVELS
    best, before, after = fit_letters(rows, "srcc", targets, SETTINGS)
    assert best == pytest.approx((2.5, 0.4), rel=0.05)
    assert before == pytest.approx(
        stats.spearmanr(fused_distribution(p, q_bar, 1.0) @ LEVELS, targets).statistic
    )
    assert after == pytest.approx(1, abs=1e-6)


def test_fits_without_an_optimum_are_refused():
    """Scores that fall where the letters rise: the less they weigh the better, without an end."""
    rows = sharpened(make_rows(300), 1)
    _, q_bar, p = parts(rows)
    for of, targets, message in (
        (rows, q_bar - p @ LEVELS, "SRCC is better beyond it"),
        (rows, np.full(len(rows), 3.0), "all alike"),
        (make_rows(12), np.ones(12), "at least 20"),
    ):
        with pytest.raises(FitError, match=message):
            fit_letters(of, "srcc", targets, SETTINGS)


def test_a_fit_of_a_manifest_wants_its_range_names_its_rows_and_is_read_again(tmp_path):
    run, rows = make_run("manifest"), make_rows(240)  # with scores in 0..9
    run["dataset"] |= {"higher_is_better": True, "title": "my40.csv"}
    folder = store(tmp_path / "run", run, rows)
    with pytest.raises(DatasetError, match=r"my40\.csv: .* --mos-range LOW HIGH"):
        fit_runs([folder], "rps", split=None, share=0.5)
    run["dataset"] |= {"low": 0.0, "high": 9.0, "scale": "absolute categories"}
    (folder / "run.json").write_text(json.dumps(run))
    fit = fit_runs([folder], "rps", split=None, share=0.5)
    assert 0 < fit.after <= fit.before < 1
    used = {row["group"] for row in rows if row["key"] in fit.keys}
    assert len(used) == len({row["group"] for row in rows}) // 2  # whole scenes
    assert all(
        fit.used(row) == (row["group"] in used) for row in rows
    )  # failed rows of these scenes too
    (tmp_path / "fit.json").write_text(fit.model_dump_json())
    assert read_fit(tmp_path / "fit.json") == fit
    for options, message in (
        ({"split": None, "share": 1.0}, "others to judge"),
        ({"split": "val", "share": 0.3}, "use 0 of 240"),
    ):
        with pytest.raises(FitError, match=message):
            fit_runs([folder], "srcc", **options)
