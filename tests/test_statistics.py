"""Statistics of the studies. Expected values come from scipy, from published tables, or are worked out in the
comments."""

import math

import numpy as np
import pytest
from scipy import stats

from agentic_iqa_local.studies.statistics import (
    Draws,
    expected_calibration_error,
    holm,
    interval,
    krcc,
    plcc,
    ranked_probability_scores,
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
    facts = [{"group": groups and groups[i], "distortion": kinds and kinds[i]} for i in range(rows)]
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


TEN, NINE = [f"scene {i % 10}" for i in range(30)], [f"scene {i % 9}" for i in range(30)]
KINDS = ["blur", "noise", "jpeg"] * 10


@pytest.mark.parametrize(
    ("groups", "kinds", "over"),
    [
        (TEN, KINDS, "groups"),
        (NINE, KINDS, "distortion types, within these scenes"),
        (NINE, None, "rows, within these scenes"),
        (None, KINDS, "rows"),
    ],
)
def test_the_resampling_unit(groups, kinds, over):
    assert draws_of(30, groups=groups, kinds=kinds).over == over


def test_draws_hold_whole_groups_and_as_many_as_there_are():
    for places in draws_of(60, groups=[f"g{i // 5}" for i in range(60)]).places:
        assert len(places) == 60
        counts = np.bincount(places, minlength=60).reshape(12, 5)
        assert (counts == counts[:, :1]).all()


@pytest.mark.parametrize("statistic", AGREEMENT)
def test_each_draw_agrees_with_scipy_on_the_repeated_rows(statistic):
    x, y = tied_scores(200)
    x[np.arange(200) % 7 == 0] = np.nan  # failed
    kept = np.isfinite(x)
    draws = draws_of(200, 20, groups=[f"g{i // 8}" for i in range(200)])
    value, on_draws = draws.of(statistic, x, y)
    assert value == pytest.approx(AGREEMENT[statistic](x[kept], y[kept]), abs=1e-12)
    for places, found in zip(draws.places, on_draws, strict=True):
        rows = places[kept[places]]
        assert found == pytest.approx(AGREEMENT[statistic](x[rows], y[rows]), abs=1e-12)


@pytest.mark.parametrize("statistic", [srcc, plcc, krcc])
def test_draws_on_which_a_column_is_constant_are_undefined(statistic):
    """Of ten units the first alone varies the column: a draw without it (0.9^10, a third of them) is constant."""
    x, y = np.full(20, 0.1), np.arange(20.0)
    assert math.isnan(statistic(x, y))
    x[0] = 0.7
    draws = draws_of(20, groups=[f"g{i // 2}" for i in range(20)])
    value, on_draws = draws.of(statistic, x, y)
    assert list(np.isnan(on_draws)) == [0 not in places for places in draws.places]
    assert math.isnan(interval("a", value, on_draws)["a_low"])


# Intervals


def test_intervals_cover_a_known_truth():
    """Spearman's correlation of a bivariate normal with correlation r is 6/π·asin(r/2); of 60 intervals at 95 % at
    least 52 cover it (3 standard deviations of .95·.05/60)."""
    rng = np.random.default_rng(3)
    truth, covered = 6 / math.pi * math.asin(0.3), 0
    for seed in range(60):
        x, y = rng.multivariate_normal([0, 0], [[1, 0.6], [0.6, 1]], 80).T
        figure = draws_of(80, 100, seed).figure("a", srcc, x, y)
        covered += figure["a_low"] <= truth <= figure["a_high"]
    assert covered >= 52


@pytest.mark.parametrize(("undefined", "bounded"), [(5, True), (6, False)])
def test_an_interval_stands_on_nineteen_draws_in_twenty(undefined, bounded):
    """95 of 100 draws are just enough."""
    on_draws = np.where(np.arange(100) < undefined, np.nan, np.linspace(0, 1, 100))
    assert np.isfinite(interval("a", 0.5, on_draws)["a_low"]) == bounded


# Comparisons


def test_a_paired_difference_is_that_of_the_same_draws():
    x, y = tied_scores(100)
    draws, better = draws_of(100, 200), y + 0.1 * x
    first, second = draws.of(srcc, better, y), draws.of(srcc, x, y)
    found = draws.difference("a", srcc, better, x, y)
    assert found["a"] == first[0] - second[0]
    ends = np.percentile(first[1] - second[1], [2.5, 97.5])
    assert [found["a_low"], found["a_high"]] == pytest.approx(ends)
    assert found["p"] == pytest.approx(2 / 201)  # no draw at or below 0: two sides, 1 of 200 + 1
    assert draws.difference("a", srcc, x, better, y)["p"] == found["p"]
    assert draws.difference("a", srcc, x, x, y) == {"a": 0, "a_low": 0, "a_high": 0, "p": 1}


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
    confidence, correct = np.array([0.9, 0.9, 0.9, 0.6]), np.array([1, 1, 0, 0])
    assert expected_calibration_error(confidence, correct, 10) == pytest.approx(0.325)
    # .5, which floats hold exactly, closes the bin of .45: |.55 − .5|/2; in a bin of its own it were (.55 + .5)/2.
    closed = expected_calibration_error(np.array([0.45, 0.5]), np.array([1, 0]), 2)
    assert closed == pytest.approx(0.025)
