"""Intervals of q and sets of answers from a calibration whose errors are written down here."""

import numpy as np
import pytest
from pydantic import ValidationError

from agentic_iqa_local.judgement.intervals import (
    BELOW,
    FEATURES,
    LEAST_DIFFICULTY,
    Answers,
    Condition,
    Errors,
    IntervalCalibration,
    features,
)
from agentic_iqa_local.state import revised

CONDITION = Condition(pipeline="agent", reference=False, look="one order")
CONSTANT = tuple(np.eye(len(FEATURES))[0].tolist())


def errors(values, difficulties=None, line=(0.0, 1.0), weights=CONSTANT) -> Errors:
    return Errors(
        condition=CONDITION,
        line=line,
        weights=weights,
        errors=tuple(values),
        difficulties=tuple(difficulties or [1.0] * len(values)),
        tools=(("NIQE",),),
    )


def calibration(*ratings: Errors, questions: tuple[Answers, ...] = ()) -> IntervalCalibration:
    return IntervalCalibration(
        source="drawn numbers",
        images=99,
        date="2026-01-01",
        model="M",
        dtype="float32",
        quantization="none",
        query="Rate it.",
        mode="logits",
        temperature=1.0,
        eta=1.0,
        ratings=ratings,
        questions=questions,
    )


def order_statistics(outside: float, count: int) -> tuple[int, int]:
    """Which of `count` sorted errors the ends are, from 1: of n errors the k-th and the l-th have (l − k) of
    the n + 1 equally likely places of a new one between them (Vovk et al. 2005, section 2)."""
    return int(np.floor(outside * BELOW * (count + 1) + 1e-9)), int(
        np.ceil((1 - outside * (1 - BELOW)) * (count + 1) - 1e-9)
    )


def test_ends_are_order_statistics_of_the_errors():
    """999 errors −0.999, −0.997, ..., 0.997: 1000 places of a thousandth each."""
    values = (np.arange(999) * 2 - 999) / 1000
    part = errors(np.random.default_rng(0).permutation(values).tolist())
    found = calibration(part).interval(part, 3.0, 1.0)
    low, high = order_statistics(0.1, 999)
    assert high - low == 900  # of 1000 places
    assert (found.low, found.high) == pytest.approx((3 + values[low - 1], 3 + values[high - 1]), abs=0.0021)
    assert found.width == pytest.approx(1.8, abs=0.005)  # 90 % of a uniform distribution two levels wide
    assert found.coverage == 0.9
    assert found.widened == []
    assert found.calibrated_on == "drawn numbers, 99 pictures, 2026-01-01"
    wider = calibration(part).interval(part, 3.0, 1.0, ["another query"])
    assert wider.width == pytest.approx(1.9, abs=0.005)  # 95 %
    assert wider.widened == ["another query"]


def test_difficulty_scales_the_interval_and_the_line_moves_it():
    """Errors of twice the difficulty count half: −0.999, −0.997, ... again."""
    values = (np.arange(999) * 2 - 999) / 1000
    plain = errors(values.tolist())
    scaled = errors((2 * values).tolist(), [2.0] * 999, line=(-1.0, 1.5))
    of_two = calibration(scaled).interval(scaled, 8 / 3, 0.5)  # expected: −1 + 1.5 · 8/3 = 3
    of_one = calibration(plain).interval(plain, 3.0, 0.5)
    assert (of_two.low, of_two.high) == pytest.approx((of_one.low, of_one.high))
    assert of_one.width == pytest.approx(0.9, abs=0.003)


def test_ends_stay_on_the_scale():
    part = errors(np.linspace(-4, 4, 199).tolist())
    found = calibration(part).interval(part, 4.5, 2.0)
    assert (found.low, found.high) == (1.0, 5.0)


def test_too_few_errors_give_the_whole_scale_and_say_so():
    """90 % with the smaller tail of 10 % · (1 − BELOW) needs an error beyond which that tail lies."""
    fewest = round(1 / (0.1 * (1 - BELOW)))
    few = errors([0.0] * (fewest - 1))
    assert few.fewest == fewest
    found = calibration(few).interval(few, 3.0, 1.0)
    assert (found.low, found.high) == (1.0, 5.0)
    assert f"{fewest - 1} pictures of known quality are fewer than the {fewest}" in found.widened[0]
    enough = errors([0.0] * fewest)
    assert calibration(enough).interval(enough, 3.0, 1.0).width == 0


def test_ends_of_many_are_those_of_each():
    rng = np.random.default_rng(1)
    part = errors(rng.normal(0, 0.4, 200).tolist(), rng.uniform(0.5, 2, 200).tolist(), line=(0.2, 0.9))
    q, difficulty = rng.uniform(1, 5, 30), rng.uniform(0.2, 2, 30)
    each = [part.ends(*pair, 0.9) for pair in zip(q.tolist(), difficulty.tolist(), strict=True)]
    assert part.all_ends(q, difficulty, 0.9) == pytest.approx(np.array(each))


def test_each_range_of_q_has_its_own_errors():
    """Below q 3 errors −0.999 ... 0.997 in steps of 0.002, from 3 on those of half the size."""
    values = (np.arange(999) * 2 - 999) / 1000
    below, above = errors(values.tolist()), errors((values / 2).tolist())
    both = revised(
        below,
        errors=below.errors + above.errors,
        difficulties=(1.0,) * 1998,
        edges=(3.0,),
        ranges=(0,) * 999 + (1,) * 999,
    )
    for q, part in ((2.9, below), (3.0, above), (3.6, above)):
        assert both.ends(q, 0.7, 0.9) == pytest.approx(part.ends(q, 0.7, 0.9))
        at = np.array([q]), np.array([0.7])
        assert both.probability_at_least(*at, 3.2) == pytest.approx(part.probability_at_least(*at, 3.2))
        assert both.quantiles(*at, 5) == pytest.approx(part.quantiles(*at, 5))
        assert both.predictive(q, 0.7) == pytest.approx(part.predictive(q, 0.7))
    pair = np.array([2.9, 3.6]), np.array([0.7, 0.7])
    (one, other) = both.all_ends(*pair, 0.9)
    assert (one[1] - one[0], other[1] - other[0]) == pytest.approx(
        (0.7 * 1.8, 0.7 * 0.9), abs=0.003
    )  # 90 % of 2 levels and of 1


def test_a_range_with_too_few_errors_reaches_to_the_ends_of_the_scale():
    part = revised(errors([0.0] * 210), edges=(3.0,), ranges=(0,) * 200 + (1,) * 10)
    assert part.ends(2.0, 1.0, 0.9) == (2.0, 2.0)
    assert part.ends(4.0, 1.0, 0.9) == (1.0, 5.0)


@pytest.mark.parametrize("ranges", [(), (0, 0), (0, 1, 2), (0, 2, 1)])
def test_ranges_that_do_not_fit_the_errors_are_refused(ranges):
    with pytest.raises(ValidationError, match="a range for each error and errors in each of 2 ranges"):
        revised(errors([0.0] * 3), edges=(3.0,), ranges=ranges)


def test_the_predictive_distribution_and_its_probabilities():
    """Errors −1, −0.5, 0, 0.5, 1 around 3 at half the difficulty."""
    part = errors([1.0, -1.0, 0.5, -0.5, 0.0])
    known = calibration(part)
    interval = known.interval(part, 3.0, 0.5)
    assert known.predictive(interval, 3.0) == pytest.approx([2.5, 2.75, 3, 3.25, 3.5])
    at_most = known.predictive(known.interval(part, 5.0, 0.5), 5.0)
    assert at_most == pytest.approx([4.5, 4.75, 5, 5, 5])
    q, difficulty = np.array([3.0, 5.0]), np.array([0.5, 0.5])
    assert part.probability_at_least(q, difficulty, 3.1) == pytest.approx([2 / 5, 1])
    assert part.probability_at_least(q, difficulty, 3.0)[0] == pytest.approx(3 / 5)  # 3.0 itself is enough
    assert part.quantiles(q, difficulty, 1) == pytest.approx(np.array([[3.0], [5.0]]))  # the median
    other = interval.model_copy(update={"condition": CONDITION.model_copy(update={"look": "crops"})})
    with pytest.raises(ValueError, match="expected one of this calibration"):
        known.predictive(other, 3.0)


def test_features_by_hand():
    """p and q̄ agree on level 3 against half and half on 2 and 4, with flat tool weights at η = 0."""
    nan = np.full(2, np.nan)
    p = np.array([[0, 0, 1.0, 0, 0], [0, 0.5, 0, 0.5, 0]])
    table = features(
        p,
        np.array([3.0, 3.5]),
        np.zeros(2),
        sigma=np.array([0.7, np.nan]),
        disagreement=np.array([0.3, 0.0]),
        order_gap=nan,
        crop_spread=nan,
    )
    by_name = dict(zip(FEATURES, table.T.tolist(), strict=True))
    assert by_name["constant"] == [1, 1]
    assert by_name["above_bad"] == pytest.approx([2, 2])
    assert by_name["below_excellent"] == pytest.approx([2, 2])
    assert by_name["spread"] == pytest.approx([0, 1])
    assert by_name["gap"] == pytest.approx([0, 0.5])
    assert by_name["sigma"] == [0.7, 0]  # what is absent counts as nothing
    assert by_name["order_gap"] == by_name["crop_spread"] == [0, 0]


def test_a_difficulty_is_never_nothing():
    part = errors([0.0] * 3, weights=tuple([0.0] * len(FEATURES)))
    assert part.difficulty(np.ones((2, len(FEATURES)))).tolist() == [LEAST_DIFFICULTY] * 2


def answers(choices: int, scores) -> Answers:
    return Answers(pipeline="agent", reference=False, choices=(choices,) * len(scores), right=tuple(scores))


def test_the_set_of_answers_holds_what_known_questions_do_not_rule_out():
    """99 questions whose right choice was reached with 0.01 ... 0.99 of the probability: the 90th of them is
    0.90, so that a choice stays while it is reached with 0.90 or less."""
    part = answers(4, np.arange(1, 100) / 100)
    known = calibration(questions=(part,))
    found = known.answer_set(part, {"A": 0.11, "B": 0.3, "C": 0.04, "D": 0.55})  # 0.96, 0.85, 1, 0.55
    assert found.letters == ["B", "D"]
    assert found.widened == []
    wider = known.answer_set(part, {"A": 0.09, "B": 0.3, "C": 0.06, "D": 0.55}, ["another query"])
    assert wider.letters == ["A", "B", "D"]  # 0.94, with 95 %
    assert wider.coverage == 0.9


def test_the_likeliest_answer_always_stays():
    part = answers(2, [0.001 * i for i in range(1, 100)])  # all were answered surely and rightly
    found = calibration(questions=(part,)).answer_set(part, {"A": 0.6, "B": 0.4})
    assert found.letters == ["A"]


def test_too_few_questions_rule_out_nothing():
    part = answers(2, [0.1] * 8)
    assert part.fewest == 9  # ⌈(9 + 1) · 0.9⌉ = 9
    found = calibration(questions=(part,)).answer_set(part, {"A": 0.999, "B": 0.001})
    assert found.letters == ["A", "B"]
    assert "8 questions of known answer are fewer than the 9" in found.widened[0]


def test_questions_of_about_as_many_choices_are_taken_where_there_are_enough():
    part = Answers(
        pipeline="agent",
        reference=False,
        choices=(2,) * 9 + (4,) * 3,
        right=(0.1,) * 9 + (0.7,) * 3,
    )
    assert part.like(2).tolist() == [0.1] * 9
    assert len(part.like(4)) == 12


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"difficulties": (1.0,)}, "as many difficulties as errors"),
        ({"errors": (), "difficulties": ()}, "at least 1"),
        ({"errors": (float("nan"), 0.0)}, "finite"),
        ({"difficulties": (0.0, 1.0)}, "greater than 0"),
        ({"weights": (1.0,)}, "at least 9"),
    ],
)
def test_records_refuse_what_is_not_whole(change, message):
    fields = errors([0.1, 0.2]).model_dump() | change
    with pytest.raises(ValidationError, match=message):
        Errors.model_validate(fields)


def test_questions_refuse_what_is_not_whole():
    with pytest.raises(ValidationError, match="as many numbers of choices"):
        Answers(pipeline="agent", reference=False, choices=(2, 2), right=(0.1,))
