"""Statistics of the studies. Expected values come from scipy, from published tables, or are worked out in the
comments."""

import math

import numpy as np
import pytest
from scipy import stats

from agentic_iqa_local.studies import statistics
from agentic_iqa_local.studies.statistics import (
    Draws,
    Figure,
    entropy,
    expected_calibration_error,
    holm,
    interval,
    krcc,
    monotone_map,
    paired_difference,
    plcc,
    ranked_probability_scores,
    resampling_unit,
    risk_coverage,
    rmse,
    srcc,
    verdict,
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


def draws_of_rows(rows: int, count: int = 50, seed: int = 1, **labels) -> Draws:
    return Draws.make(rows, np.random.default_rng(seed), count=count, **labels)


# Agreement with a target


@pytest.mark.parametrize("statistic", AGREEMENT)
def test_statistics_agree_with_scipy(statistic):
    x, y = tied_scores(500)
    assert statistic(x, y) == pytest.approx(AGREEMENT[statistic](x, y), abs=1e-12)


@pytest.mark.parametrize("statistic", AGREEMENT)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_values_that_are_not_finite_are_refused(statistic, bad):
    with pytest.raises(ValueError, match="finite"):
        statistic(np.array([1.0, bad, 3.0]), np.array([1.0, 2.0, 3.0]))


@pytest.mark.parametrize("statistic", [srcc, plcc, krcc])
def test_a_constant_column_has_no_correlation(statistic):
    constant, rising = np.full(5, 0.1), np.arange(5.0)
    assert math.isnan(statistic(constant, rising))
    assert math.isnan(statistic(rising, constant))


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


def test_logistic_is_monotone_where_the_data_turn_and_no_worse_than_a_line():
    x = np.linspace(-1, 2, 300)
    y = -(x**2) + np.random.default_rng(2).normal(0, 0.1, 300)
    fit = vqeg_logistic(x, y)
    steps = np.diff(fit)
    assert (steps <= 0).all() or (steps >= 0).all()
    assert plcc(fit, y) >= abs(plcc(x, y)) - 1e-6


def test_logistic_of_a_constant_column_does_not_converge():
    fit = vqeg_logistic(np.full(20, 3.0), np.arange(20.0))
    assert np.isnan(fit).all()


# Draws


def test_the_resampling_unit():
    ten, nine = [f"scene {i % 10}" for i in range(30)], [f"scene {i % 9}" for i in range(30)]
    types = ["blur", "noise", "jpeg"] * 10
    assert resampling_unit(ten, types) == "groups"
    assert resampling_unit(nine, types) == "distortion types"
    assert resampling_unit(nine, ["blur"] * 30) == "rows"
    assert resampling_unit(None, types) == "rows"
    labels = [
        draws_of_rows(30, groups=g, distortions=d).over
        for g, d in [(ten, types), (nine, types), (nine, None), (None, types)]
    ]
    assert labels == ["groups", "distortion types, within these scenes", "rows, within these scenes", "rows"]


def test_a_draw_holds_whole_groups_and_as_many_as_there_are():
    groups = np.repeat(np.arange(12), 5)
    draws = draws_of_rows(60, groups=groups)
    assert draws.weights.shape == (50, 60)
    assert (draws.weights.reshape(50, 12, 5) == draws.counts[:, :, None]).all()
    assert (draws.counts.sum(axis=1) == 12).all()


def test_draws_repeat_with_the_seed_and_need_a_label_for_each_row():
    assert (draws_of_rows(40).counts == draws_of_rows(40).counts).all()
    assert (draws_of_rows(40).counts != draws_of_rows(40, seed=2).counts).any()
    with pytest.raises(ValueError, match="label for each"):
        draws_of_rows(40, groups=range(39))


@pytest.mark.parametrize("statistic", AGREEMENT)
@pytest.mark.parametrize("groups", [None, np.arange(200) // 8], ids=["rows", "groups"])
def test_each_draw_agrees_with_scipy_on_the_repeated_rows(statistic, groups):
    x, y = tied_scores(200)
    answered = np.arange(200) % 7 != 0
    x[~answered] = np.nan
    draws = draws_of_rows(200, groups=groups)
    sampled = draws.of(statistic, x, y, answered=answered)
    for weights, value in zip(draws.weights, sampled.on_draws, strict=True):
        rows = np.repeat(np.arange(200), weights * answered)
        assert value == pytest.approx(AGREEMENT[statistic](x[rows], y[rows]), abs=1e-12)


@pytest.mark.parametrize("statistic", [srcc, plcc, krcc])
def test_draws_on_which_a_column_is_constant_are_undefined(statistic):
    # Of ten units the first alone varies the column, so a draw without it (0.9^10, about a third of them) is
    # constant.
    x, y = np.full(20, 0.1), np.arange(20.0)
    x[0] = 0.7
    draws = draws_of_rows(20, groups=np.arange(20) // 2)
    sampled = draws.of(statistic, x, y)
    assert (np.isnan(sampled.on_draws) == (draws.counts[:, 0] == 0)).all()
    figure = interval(sampled)
    assert math.isnan(figure.low)
    assert math.isnan(figure.high)


def test_a_failed_row_must_be_marked_and_columns_must_fit():
    x, y = tied_scores(20)
    draws = draws_of_rows(20)
    with pytest.raises(ValueError, match="20 rows"):
        draws.of(srcc, x[:19], y[:19])
    x[3] = np.nan
    with pytest.raises(ValueError, match="answered"):
        draws.of(np.mean, x)


# Intervals


def test_intervals_cover_a_known_truth():
    # Spearman's correlation of a bivariate normal with correlation r is 6/π·asin(r/2); of 100 intervals at 95
    # % between 88 and 100 cover it (3 standard deviations of .95·.05/100, less a little for the percentile
    # interval's own bias).
    rng = np.random.default_rng(3)
    truth, covered = 6 / math.pi * math.asin(0.3), 0
    for _ in range(100):
        x, y = rng.multivariate_normal([0, 0], [[1, 0.6], [0.6, 1]], 80).T
        figure = interval(Draws.make(80, rng, count=200).of(srcc, x, y))
        covered += figure.low <= truth <= figure.high
    assert covered >= 88


def test_resampling_groups_widens_intervals_where_rows_repeat_within_groups():
    # Sixteen equal rows a group hold one row's worth: the interval over rows is a quarter as wide as it
    # should be.
    x, y = (np.repeat(column, 16) for column in tied_scores(30))
    by_group = interval(draws_of_rows(480, count=300, groups=np.repeat(np.arange(30), 16)).of(srcc, x, y))
    by_row = interval(draws_of_rows(480, count=300).of(srcc, x, y))
    assert by_group.value == by_row.value
    assert (by_group.high - by_group.low) / (by_row.high - by_row.low) == pytest.approx(4, rel=0.3)


def test_where_every_row_failed_there_is_no_figure():
    figure = interval(
        draws_of_rows(5).of(srcc, np.full(5, np.nan), np.arange(5.0), answered=np.zeros(5, bool))
    )
    assert (figure.n, figure.failed) == (0, 5)
    assert math.isnan(figure.value)
    assert math.isnan(figure.low)


def test_figures_among_the_rows_of_a_label():
    x, y = tied_scores(60)
    kinds = np.array(["blur", "noise", "jpeg"] * 20)
    answered = np.arange(60) != 4  # row 4 is noise
    draws = draws_of_rows(60)
    figures = {
        kind: interval(draws.of(srcc, x, y, answered=answered, among=kinds == kind)) for kind in set(kinds)
    }
    assert {kind: (f.n, f.failed) for kind, f in figures.items()} == {
        "blur": (20, 0),
        "jpeg": (20, 0),
        "noise": (19, 1),
    }
    assert figures["blur"].value == pytest.approx(stats.spearmanr(x[::3], y[::3]).statistic, abs=1e-12)
    assert figures["blur"].low < figures["blur"].value < figures["blur"].high


def test_within_the_only_unit_there_is_no_interval():
    x, y = tied_scores(60)
    kinds = np.array(["blur", "noise", "jpeg"] * 20)
    draws = draws_of_rows(60, groups=[0] * 60, distortions=kinds.tolist())
    figure = interval(draws.of(srcc, x, y, among=kinds == "blur"))
    assert not math.isnan(figure.value)
    assert math.isnan(figure.low)


@pytest.mark.parametrize(("undefined", "bounded"), [(5, True), (6, False)])
def test_an_interval_stands_on_nineteen_draws_in_twenty(undefined, bounded):
    """95 of 100 draws are just enough."""
    on_draws = np.where(np.arange(100) < undefined, np.nan, np.linspace(0, 1, 100))
    assert np.isfinite(statistics.bounds(on_draws)[0]) == bounded


# Comparisons


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (0.01, 0.09, "gains"),
        (-0.09, -0.03, "loses"),
        (-0.015, -0.005, "loses less than 0.02"),
        (-0.019, 0.24, "loses no more than 0.02"),
        (-0.43, 0.24, "undecided: too few images"),
        (-0.02, 0.3, "undecided: too few images"),  # the bound itself is not above it
        (math.nan, math.nan, "undecided: too few images"),
    ],
)
def test_a_verdict_says_what_the_interval_shows_and_no_more(low, high, said):
    assert verdict(Figure((low + high) / 2, low, high, 40, 0, "rows"), 0.02) == said


def test_a_paired_difference_is_that_of_the_same_draws():
    x, y = tied_scores(100)
    better = y + 0.1 * x
    draws = draws_of_rows(100, count=200)
    first, second = draws.of(srcc, better, y), draws.of(srcc, x, y)
    found = paired_difference(first, second)
    assert found.value == first.value - second.value
    assert [found.low, found.high] == list(np.percentile(first.on_draws - second.on_draws, [2.5, 97.5]))
    assert found.low > 0
    assert found.p == pytest.approx(2 / 201)  # no draw at or below 0: two sides, 1 of 200 + 1
    assert paired_difference(second, first).p == found.p


def test_a_mode_does_not_differ_from_itself():
    x, y = tied_scores(50)
    sampled = draws_of_rows(50).of(plcc, x, y)
    same = paired_difference(sampled, sampled)
    assert (same.value, same.low, same.high, same.p) == (0, 0, 0, 1)


def test_a_paired_difference_refuses_other_draws_and_other_rows():
    x, y = tied_scores(30)
    draws = draws_of_rows(30)
    sampled = draws.of(srcc, x, y)
    with pytest.raises(ValueError, match="same draws"):
        paired_difference(sampled, draws_of_rows(30).of(srcc, x, y))
    with pytest.raises(ValueError, match="same rows"):
        paired_difference(sampled, draws.of(srcc, x, y, answered=np.arange(30) > 0))


def test_holm():
    # Sorted: .0003·5, .003·4, .054·3, .32·2, and .5·1 raised to the .64 before it.
    assert holm([0.5, 0.003, 0.32, 0.054, 0.0003]) == pytest.approx([0.64, 0.012, 0.64, 0.162, 0.0015])
    # .01·3 = .03; .02·2 = .04; .03·1 = .03 is raised to .04. With .6 and .7: .6·2 = 1.2 is cut to 1.
    assert holm([0.02, 0.01, 0.03]) == pytest.approx([0.04, 0.03, 0.04])
    assert holm([0.6, 0.7]) == pytest.approx([1, 1])
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        holm([0.1, math.nan])


# Calibration


@pytest.mark.parametrize(
    ("p", "outcome", "score"),
    [
        # Constantinou and Fenton (2012), tables 1 and 3; outcomes H, D, A are levels 1, 2, 3
        ((1, 0, 0), 1, 0),
        ((0.5, 0.25, 0.25), 1, 0.15625),
        ((0.6, 0.3, 0.1), 2, 0.1850),
        ((0.57, 0.33, 0.1), 1, 0.09745),
    ],
)
def test_ranked_probability_score_gives_published_values(p, outcome, score):
    assert ranked_probability_scores([p], [outcome]) == pytest.approx([score], abs=1e-12)


def test_ranked_probability_score_between_levels_and_over_rows():
    # Certain of 3 where the truth is 3.5: wrong by 1 over half a step of four, .5/4; certain of 1 where it is
    # 5: 1.
    certain = np.eye(5)
    assert ranked_probability_scores(certain[[2, 0]], [3.5, 5]) == pytest.approx([0.125, 1])


def test_ranked_probability_score_refuses_what_is_off_the_scale():
    with pytest.raises(ValueError, match=r"\[1, 5\]"):
        ranked_probability_scores(np.eye(5)[[0]], [0.5])
    with pytest.raises(ValueError, match="sum to 1"):
        ranked_probability_scores([[0.5, 0.4]], [1])
    with pytest.raises(ValueError, match="sum to 1"):
        ranked_probability_scores([[0.5, math.nan]], [1])


def test_expected_calibration_error():
    # Three rows at .9, two of them right: 3/4·|2/3 − .9| = .175; one at .6, wrong: 1/4·.6 = .15.
    confidence, correct = np.array([0.9, 0.9, 0.9, 0.6]), np.array([1, 1, 0, 0])
    assert expected_calibration_error(confidence, correct, bins=10) == pytest.approx(0.325)
    # .5, which floats hold exactly, closes the bin of .45: |.55 − .5|/2; in a bin of its own it would be (.55 + .5)/2.
    closed = expected_calibration_error(np.array([0.45, 0.5]), np.array([1, 0]), bins=2)
    assert closed == pytest.approx(0.025)


def test_monotone_map():
    # 3 and 2 pool to 2.5; halfway from 1 to 2.5 is 1.75; beyond the ends the map stays.
    fitted = monotone_map(np.array([4.0, 2, 3, 1]), np.array([4.0, 3, 2, 1]))
    assert fitted(np.array([1, 1.5, 2, 3, 4, 9, -9])) == pytest.approx([1, 1.75, 2.5, 2.5, 4, 4, 1])
    # Equal x: their mean 2 counts twice, against 1 pools to (2·2 + 1)/3; falling, nothing has to pool.
    tied = np.array([1.0, 1, 2]), np.array([0.0, 4, 1])
    assert monotone_map(*tied)(np.array([1, 2])) == pytest.approx([5 / 3, 5 / 3])
    assert monotone_map(*tied, increasing=False)(np.array([1, 2])) == pytest.approx([2, 1])


# Selective use


def test_entropy():
    assert entropy([[0.2] * 5, [0, 0, 1, 0, 0], [0.5, 0.5, 0, 0, 0]]) == pytest.approx(
        [math.log(5), 0, math.log(2)]
    )


def test_risk_coverage():
    # The two rows at .2 stand for either order, 2 each: 0/1, 2/2, 4/3, 8/4; their mean is 13/12.
    curve = risk_coverage(np.array([0.9, 0.2, 0.1, 0.2]), np.array([4.0, 1, 0, 3]))
    assert curve.coverage == pytest.approx([0.25, 0.5, 0.75, 1])
    assert curve.risk == pytest.approx([0, 1, 4 / 3, 2])
    assert curve.aurc == pytest.approx(13 / 12)
