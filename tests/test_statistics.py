"""Statistics of the studies. Expected values come from scipy, from published tables, or are worked out in the
comments."""

import math

import numpy as np
import pytest
from scipy import stats

from agentic_iqa_local.studies.statistics import (
    Draws,
    difference,
    expected_calibration_error,
    holm,
    interval,
    krcc,
    plcc,
    ranked_probability_scores,
    reliability_bins,
    risk_curve,
    rmse,
    srcc,
    vqeg_logistic,
)

AGREEMENT = {
    srcc: lambda x, y: stats.spearmanr(x, y).statistic,
    plcc: lambda x, y: stats.pearsonr(x, y).statistic,
    krcc: lambda x, y: stats.kendalltau(x, y).statistic,
    rmse: lambda x, y: math.sqrt(np.mean((x - y) ** 2)),
}


def tied_scores(rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Two related columns in steps of a tenth and a fifth of a level: many ties in both."""
    rng = np.random.default_rng(seed)
    quality = rng.uniform(1, 5, rows)
    return np.round(quality + rng.normal(0, 0.8, rows), 1), np.round(5 * quality) / 5


def draws_of(rows: int, count: int = 50, seed: int = 1, groups=None, kinds=None) -> Draws:
    labels = {"group": groups, "distortion": kinds}
    facts = [
        {name: None if of is None else of[i] for name, of in labels.items()} for i in range(rows)
    ]
    return Draws(facts, np.random.default_rng(seed), count)


# The logistic


def logistic(x: np.ndarray, b1: float, b2: float, b3: float, b4: float, b5: float) -> np.ndarray:
    return b1 * (0.5 - 1 / (1 + np.exp(b2 * (x - b3)))) + b4 * x + b5


@pytest.mark.parametrize(
    ("ends", "parameters"),
    [((0, 100), (40, 0.15, 50, 0.1, 30)), ((0, 1), (-3, 8, 0.6, -0.5, 3))],
    ids=["rising", "falling"],
)
def test_logistic_recovers_exact_data(ends, parameters):
    x = np.linspace(*ends, 200)
    y = logistic(x, *parameters)
    assert vqeg_logistic(x, y) == pytest.approx(y, abs=1e-5 * np.ptp(y))


# Draws


def test_the_resampling_unit():
    ten, nine = [f"scene {i % 10}" for i in range(30)], [f"scene {i % 9}" for i in range(30)]
    types = ["blur", "noise", "jpeg"] * 10
    labels = [
        draws_of(30, groups=g, kinds=k).over
        for g, k in [(ten, types), (nine, types), (nine, None), (None, types)]
    ]
    assert labels == [
        "groups",
        "distortion types, within these scenes",
        "rows, within these scenes",
        "rows",
    ]
    whole = draws_of(60, groups=np.repeat(np.arange(12), 5).tolist())
    assert (
        np.ptp(whole.weights.reshape(50, 12, 5), axis=2) == 0
    ).all()  # whole groups, and as many as there are
    assert (whole.counts.sum(axis=1) == 12).all()


@pytest.mark.parametrize("statistic", AGREEMENT)
@pytest.mark.parametrize("groups", [None, (np.arange(200) // 8).tolist()], ids=["rows", "groups"])
def test_each_draw_agrees_with_scipy_on_the_repeated_rows(statistic, groups):
    x, y = tied_scores(200)
    kept = np.arange(200) % 7 != 0
    x[~kept] = np.nan
    draws = draws_of(200, groups=groups)
    value, on_draws = draws.of(statistic, x, y, kept)
    assert value == pytest.approx(AGREEMENT[statistic](x[kept], y[kept]), abs=1e-12)
    for weights, found in zip(draws.weights, on_draws, strict=True):
        rows = np.repeat(np.arange(200), weights * kept)
        assert found == pytest.approx(AGREEMENT[statistic](x[rows], y[rows]), abs=1e-12)


@pytest.mark.parametrize("statistic", [srcc, plcc, krcc])
def test_draws_on_which_a_column_is_constant_are_undefined(statistic):
    # Of ten units the first alone varies the column: a draw without it (0.9^10, a third of them) is constant.
    x, y = np.full(20, 0.1), np.arange(20.0)
    assert math.isnan(statistic(x, y))
    x[0] = 0.7
    draws = draws_of(20, groups=(np.arange(20) // 2).tolist())
    value, on_draws = draws.of(statistic, x, y, np.full(20, True))
    assert (np.isnan(on_draws) == (draws.counts[:, 0] == 0)).all()
    assert math.isnan(interval("a", value, on_draws)["a_low"])


# Intervals


def test_intervals_cover_a_known_truth():
    # Spearman's correlation of a bivariate normal with correlation r is 6/π·asin(r/2); of 100 intervals at 95 % between
    # 88 and 100 cover it (3 standard deviations of .95·.05/100, less a little for the percentile interval's own bias).
    rng = np.random.default_rng(3)
    truth, covered = 6 / math.pi * math.asin(0.3), 0
    for seed in range(100):
        x, y = rng.multivariate_normal([0, 0], [[1, 0.6], [0.6, 1]], 80).T
        figure = interval("a", *draws_of(80, 200, seed).of(srcc, x, y, np.full(80, True)))
        covered += figure["a_low"] <= truth <= figure["a_high"]
    assert covered >= 88


@pytest.mark.parametrize(("undefined", "bounded"), [(5, True), (6, False)])
def test_an_interval_stands_on_nineteen_draws_in_twenty(undefined, bounded):
    """95 of 100 draws are just enough."""
    on_draws = np.where(np.arange(100) < undefined, np.nan, np.linspace(0, 1, 100))
    assert np.isfinite(interval("a", 0.5, on_draws)["a_low"]) == bounded


def test_the_mean_of_a_number_a_row_and_its_interval():
    values = np.where(np.arange(40) % 4 == 0, np.nan, np.arange(40.0))
    draws = draws_of(40, 200)
    found = draws.mean("a", values)
    expected = [np.nanmean(np.repeat(values, weights)) for weights in draws.weights]
    assert found["a"] == pytest.approx(np.nanmean(values))
    assert [found["a_low"], found["a_high"]] == pytest.approx(np.percentile(expected, [2.5, 97.5]))


# Comparisons


def test_a_paired_difference_is_that_of_the_same_draws():
    x, y = tied_scores(100)
    draws, whole = draws_of(100, 200), np.full(100, True)
    first, second = draws.of(srcc, y + 0.1 * x, y, whole), draws.of(srcc, x, y, whole)
    found = difference("a", first, second)
    assert found["a"] == first[0] - second[0]
    assert [found["a_low"], found["a_high"]] == list(
        np.percentile(first[1] - second[1], [2.5, 97.5])
    )
    assert found["p"] == pytest.approx(2 / 201)  # no draw at or below 0: two sides, 1 of 200 + 1
    assert difference("a", second, first)["p"] == found["p"]
    assert difference("a", first, first) == {"a": 0, "a_low": 0, "a_high": 0, "p": 1}


def test_holm():
    # Sorted: .0003·5, .003·4, .054·3, .32·2, and .5·1 raised to the .64 before it.
    assert holm([0.5, 0.003, 0.32, 0.054, 0.0003]) == pytest.approx(
        [0.64, 0.012, 0.64, 0.162, 0.0015]
    )
    assert holm([0.6, 0.7]) == pytest.approx([1, 1])  # .6·2 = 1.2 is cut to 1
    assert holm([0.01, math.nan]) == pytest.approx(
        [0.02, math.nan], nan_ok=True
    )  # the unknown one is counted


# Calibration


def test_ranked_probability_score_gives_published_values_and_those_between_levels():
    # Constantinou and Fenton (2012), tables 1 and 3; outcomes H, D, A are levels 1, 2, 3
    p = np.array([(1, 0, 0), (0.5, 0.25, 0.25), (0.6, 0.3, 0.1), (0.57, 0.33, 0.1)])
    scores = [0, 0.15625, 0.1850, 0.09745]
    assert ranked_probability_scores(p, np.array([1, 1, 2, 1])) == pytest.approx(scores, abs=1e-12)
    # Certain of 3 where the truth is 3.5: wrong by 1 over half a step of four, .5/4; certain of 1 where it is 5: 1.
    assert ranked_probability_scores(np.eye(5)[[2, 0]], np.array([3.5, 5])) == pytest.approx(
        [0.125, 1]
    )


def test_expected_calibration_error():
    # Three rows at .9, two of them right: 3/4·|2/3 − .9| = .175; one at .6, wrong: 1/4·.6 = .15.
    bins = reliability_bins(np.array([0.9, 0.9, 0.9, 0.6]), np.array([1, 1, 0, 0]), 10)
    assert expected_calibration_error(bins) == pytest.approx(0.325)
    # .5, which floats hold exactly, closes the bin of .45: |.55 − .5|/2; in a bin of its own it were (.55 + .5)/2.
    closed = reliability_bins(np.array([0.45, 0.5]), np.array([1, 0]), 2)
    assert expected_calibration_error(closed) == pytest.approx(0.025)


def test_risk_curve():
    # The two rows at .2 stand for either order, 2 each: 0/1, 2/2, 4/3, 8/4.
    risk = risk_curve(np.array([0.9, 0.2, 0.1, 0.2]), np.array([4.0, 1, 0, 3]))
    assert risk == pytest.approx([0, 1, 4 / 3, 2])
