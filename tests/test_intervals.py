"""Intervals of q and sets of answers, from a calibration whose errors are written down here."""

import warnings

import numpy as np
import pytest

from agentic_iqa_local.judgement.intervals import (
    FEATURES,
    Answers,
    Errors,
    IntervalCalibration,
    features,
    reached,
)
from agentic_iqa_local.result import Condition
from agentic_iqa_local.state import revised

CONDITION = Condition(pipeline="agent", reference=False, look="one order")
CONSTANT = tuple(np.eye(len(FEATURES))[0].tolist())
THOUSANDTHS = ((np.arange(999) * 2 - 999) / 1000).tolist()
"""−0.999, −0.997, ..., 0.997: a new error has 1000 equally likely places among them."""


def errors(values, difficulties=None, line=(0.0, 1.0), weights=CONSTANT) -> Errors:
    fields = {
        "weights": weights,
        "errors": tuple(values),
        "difficulties": tuple(difficulties or [1.0] * len(values)),
    }
    return Errors(condition=CONDITION, line=line, tools=(("NIQE",),), **fields)


def calibration(*ratings: Errors, questions: tuple[Answers, ...] = ()) -> IntervalCalibration:
    return IntervalCalibration(
        source="drawn numbers", images=99, date="2026-01-01", model="M", dtype="float32", quantization="none",
        query="Rate it.", mode="logits", temperature=1.0, eta=1.0, ratings=ratings, questions=questions,
    )  # fmt: skip


def ends(part: Errors, q: float, difficulty: float, coverage: float = 0.9) -> tuple[float, float]:
    return tuple(part.ends(np.array([q]), np.array([difficulty]), coverage)[0].tolist())


def test_ends_are_order_statistics_of_the_errors():
    """6.5 % of 1000 places lie below the 65th error and 3.5 % above the 965th (Vovk et al. 2005, section 2); with
    95 % 3.25 % below the 32nd and 1.75 % above the 983rd, rounded outwards."""
    part = errors(np.random.default_rng(0).permutation(THOUSANDTHS).tolist())
    found = calibration(part).interval(part, 3.0, 1.0)
    assert (found.low, found.high) == pytest.approx((3 + THOUSANDTHS[64], 3 + THOUSANDTHS[964]))
    assert (found.coverage, found.widened, found.width) == (0.9, [], pytest.approx(1.8))
    assert found.calibrated_on == "drawn numbers, 99 pictures, 2026-01-01"
    wider = calibration(part).interval(part, 3.0, 1.0, ["another query"])
    assert (wider.low, wider.high) == pytest.approx((3 + THOUSANDTHS[31], 3 + THOUSANDTHS[982]))
    assert wider.widened == ["another query"]


def test_difficulty_scales_and_the_line_moves_an_interval():
    """Errors of twice the size with twice the difficulty are the same errors."""
    part = errors([2 * x for x in THOUSANDTHS], [2.0] * 999, (-1.0, 1.5))
    expected = 2 + 0.5 * THOUSANDTHS[64], 2 + 0.5 * THOUSANDTHS[964]  # around −1 + 1.5·2
    assert ends(part, 2.0, 0.5) == pytest.approx(expected)


def test_features_by_hand():
    """p and q̄ agree on level 3, against half and half on 2 and 4; the tools' weights are flat at
    η = 0."""
    nan = np.full(2, np.nan)
    p = np.array([[0, 0, 1.0, 0, 0], [0, 0.5, 0, 0.5, 0]])
    measured = {
        "sigma": [0.7, np.nan],
        "disagreement": [0.3, 0.0],
        "q_bar": [3.0, 3.5],
        "eta": [0, 0],
    }
    known = {name: np.array(values, float) for name, values in measured.items()}
    table = features(p, known | {"order_gap": nan, "crop_spread": nan})
    expected = {
        "constant": [1, 1], "above_bad": [2, 2], "below_excellent": [2, 2], "spread": [0, 1], "sigma": [0.7, 0],
        "disagreement": [0.3, 0], "gap": [0, 0.5], "order_gap": [0, 0], "crop_spread": [0, 0],
    }  # fmt: skip
    for name, column in zip(FEATURES, table.T, strict=True):
        assert column == pytest.approx(expected[name]), name


def test_each_range_of_q_has_its_own_errors():
    below, above = errors(THOUSANDTHS), errors([x / 2 for x in THOUSANDTHS])
    ranges = {"edges": (3.0,), "ranges": (0,) * 999 + (1,) * 999}
    both = revised(below, errors=below.errors + above.errors, difficulties=(1.0,) * 1998, **ranges)
    for q, part in ((2.9, below), (3.0, above), (3.6, above)):
        assert ends(both, q, 0.7) == pytest.approx(ends(part, q, 0.7))


def test_an_end_with_too_few_errors_beyond_it_is_the_scales():
    """Of n errors 6.5 % of n + 1 places lie below one from n = 15 on, and 3.5 % above one from n = 28 on."""
    for count, expected in ((14, (1.0, 5.0)), (27, (3.0, 5.0)), (28, (3.0, 3.0))):
        assert ends(errors([0.0] * count), 3.0, 1.0) == expected
    part = revised(errors([0.0] * 210), edges=(3.0,), ranges=(0,) * 200 + (1,) * 10)
    assert ends(part, 2.0, 1.0) == (2.0, 2.0)
    assert ends(part, 4.0, 1.0) == (1.0, 5.0)  # too few in this range alone


def test_ends_and_sets_are_those_of_crepes():
    """An implementation of others, on errors with ties, a range with too few, and questions with ties."""
    from crepes import ConformalClassifier, ConformalPredictiveSystem

    random = np.random.default_rng(5)
    drawn, difficulties = random.normal(0, 1, 240).round(2), random.uniform(0.2, 2, 240)
    ranges = np.repeat([0, 1, 2], [120, 113, 7])
    fields = {"edges": (2.0, 4.0), "ranges": tuple(ranges.tolist())}
    part = revised(errors(drawn.tolist(), difficulties.tolist(), (0.3, 0.9)), **fields)
    system = ConformalPredictiveSystem().fit(drawn, difficulties, ranges)
    q, difficulty = random.uniform(1, 5, 200), random.uniform(0.1, 1, 200)
    with warnings.catch_warnings(action="ignore"):  # of the range with too few
        theirs = system.predict_percentiles(
            0.3 + 0.9 * q, difficulty, np.digitize(q, [2, 4]), lower_percentiles=[6.5], higher_percentiles=[96.5]
        )  # fmt: skip
    assert part.ends(q, difficulty, 0.9) == pytest.approx(np.clip(theirs, 1, 5))

    right = random.uniform(0.3, 1, 60).round(1)
    asked = answers(3, right)
    for probabilities in random.dirichlet([1, 1, 1], 50):
        found = calibration(questions=(asked,)).answer_set(
            asked, dict(zip("ABC", probabilities, strict=True))
        )
        theirs = ConformalClassifier().fit(right).predict_set(
            reached(probabilities)[None], confidence=0.9, smoothing=False
        )[0]  # fmt: skip
        theirs[probabilities.argmax()] = True
        assert found.letters == [letter for letter, one in zip("ABC", theirs, strict=True) if one]


def test_the_predictive_distribution_and_its_probabilities():
    """Errors −1, −0.5, 0, 0.5, 1 around 3 and 5 at half the difficulty."""
    part = errors([1.0, -1.0, 0.5, -0.5, 0.0])
    known = calibration(part)
    interval = known.interval(part, 3.0, 0.5)
    assert known.predictive(interval, 3.0) == pytest.approx([2.5, 2.75, 3, 3.25, 3.5])
    assert known.predictive(known.interval(part, 5.0, 0.5), 5.0) == pytest.approx(
        [4.5, 4.75, 5, 5, 5]
    )
    q, difficulty = np.array([3.0, 5.0]), np.array([0.5, 0.5])
    assert part.probability_at_least(q, difficulty, 3.1) == pytest.approx([2 / 5, 1])
    assert part.probability_at_least(q, difficulty, 3.0)[0] == pytest.approx(
        3 / 5
    )  # 3.0 itself is enough


def answers(choices: int, scores) -> Answers:
    return Answers(
        pipeline="agent", reference=False, choices=(choices,) * len(scores), right=tuple(scores)
    )


def test_a_set_holds_the_answers_that_are_not_ruled_out():
    """99 questions whose right choice was reached with 0.01 ... 0.99 of the probability: the 90th of them is 0.90,
    so that a choice stays while it is reached with 0.90 or less; with 95 % up to 0.95."""
    part = answers(4, np.arange(1, 100) / 100)
    known = calibration(questions=(part,))
    found = known.answer_set(
        part, {"A": 0.11, "B": 0.3, "C": 0.04, "D": 0.55}
    )  # 0.96, 0.85, 1, 0.55
    assert (found.letters, found.widened) == (["B", "D"], [])
    wider = known.answer_set(
        part, {"A": 0.09, "B": 0.3, "C": 0.06, "D": 0.55}, ["another query"]
    )  # A 0.94
    assert (wider.letters, wider.coverage) == (["A", "B", "D"], 0.9)
    sure = answers(2, [0.001 * i for i in range(1, 100)])  # all were answered surely and rightly
    assert calibration().answer_set(sure, {"A": 0.6, "B": 0.4}).letters == [
        "A"
    ]  # the likeliest stays
