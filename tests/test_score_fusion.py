"""The fusion formula; test_specification.py compares it with the design's own. Expected values are worked out in the
comments or come from the paper and the design card."""

import logging
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_iqa_local.score_fusion import ScoreFusion

LEVELS = (1, 2, 3, 4, 5)
UNIFORM = dict.fromkeys(LEVELS, 0.2)


@pytest.fixture
def fusion() -> ScoreFusion:
    return ScoreFusion()


def one_hot(level: int) -> dict[int, float]:
    return {c: float(c == level) for c in LEVELS}


def test_without_tools_the_score_is_the_models_own(fusion, caplog):
    # .1·1 + .1·2 + .2·3 + .4·4 + .2·5 = 3.5
    p = {1: 0.1, 2: 0.1, 3: 0.2, 4: 0.4, 5: 0.2}
    assert fusion.fuse_scores([], p) == pytest.approx(3.5)
    assert fusion.sensitivity([], p) == 0.0
    with caplog.at_level(logging.WARNING):
        assert fusion.compute_perceptual_weights([]) == UNIFORM
    assert [(r.levelname, r.name) for r in caplog.records] == [
        ("WARNING", "agentic_iqa_local.score_fusion")
    ]


@pytest.mark.parametrize(
    ("answer", "level"),
    [
        ("b", 4),
        ("Poor", 2),
        (4, 4),
    ],
)
def test_a_written_answer_gives_its_level_0_8(fusion, answer, level):
    expected = pytest.approx({c: 0.8 if c == level else 0.05 for c in LEVELS})
    assert fusion.extract_vlm_probabilities(answer, mode="classification") == expected
    assert fusion.extract_vlm_probabilities(answer) == expected


@pytest.mark.parametrize(
    "garbage", [None, "F", "A or B", "", {"A": 0.0}, dict.fromkeys("ABCDE", math.nan)]
)
def test_no_probability_is_invented_from_garbage(fusion, garbage):
    with pytest.raises(ValueError, match=r"expected"):
        fusion.extract_vlm_probabilities(garbage)


@given(
    mean=st.floats(1.001, 4.999),
    weights=st.lists(st.floats(1e-6, 1), min_size=5, max_size=5),
    eta=st.floats(0.1, 10),
)
def test_scores_rise_with_the_tools_mean_by_the_sensitivity(mean, weights, eta):
    fusion = ScoreFusion(eta=eta)
    p = {c: w / sum(weights) for c, w in zip(LEVELS, weights, strict=True)}
    step = 1e-5
    low, high = fusion.fuse_scores([mean - step], p), fusion.fuse_scores([mean + step], p)
    assert 1 - 1e-9 <= low <= high + 1e-9 <= 5 + 1e-9
    slope = (high - low) / (2 * step)
    assert fusion.sensitivity([mean], p) == pytest.approx(slope, abs=1e-5)


def test_one_tool_score_of_2_6_and_uniform_p_gives_close_to_2_6(fusion):
    # exp(−1.6²), exp(−.6²), exp(−.4²), exp(−1.4²), exp(−2.4²) = .077305, .697676, .852144, .140858, .003151;
    # sum 1.771134; times 1..5: 4.608276; quotient 2.60188
    assert fusion.fuse_scores([2.6], UNIFORM) == pytest.approx(2.60188, abs=1e-5)


@pytest.mark.parametrize(
    ("eta", "tool_score", "p", "expected"),
    [
        (1e6, 2.6, UNIFORM, 3),  # the nearest level takes all
        (1e6, 5.0, one_hot(1), 1),  # α_1 underflows to 0 where p is not 0: a plain quotient is 0/0
    ],
)
def test_huge_eta_does_not_divide_zero_by_zero(eta, tool_score, p, expected):
    assert ScoreFusion(eta=eta).fuse_scores([tool_score], p) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("score", "thresholds", "letter"),
    [
        *((score, None, letter) for score, letter in ((5, "A"), (4.5, "A"), (4.49, "B"), (2.49, "D"), (1, "E"))),
        *((score, [2.0, 3.0, 4.0, 4.8], letter) for score, letter in ((1.9, "E"), (2.0, "D"), (4.8, "A"))),
    ],
)  # fmt: skip
def test_the_nearest_level_halves_up_or_by_thresholds(fusion, score, thresholds, letter):
    assert fusion.map_to_level(score, thresholds) == letter


def test_other_levels_than_five_have_their_letters():
    fusion = ScoreFusion(quality_levels=[1, 2, 3])
    assert [fusion.map_to_level(score) for score in (1.0, 1.5, 3.0)] == ["C", "B", "A"]
    assert fusion.extract_vlm_probabilities("C")[1] == pytest.approx(0.8)


@pytest.mark.parametrize("eta", [0, math.nan, math.inf])
def test_an_eta_that_makes_no_sense_is_refused(eta):
    with pytest.raises(ValueError, match=r"^eta: expected"):
        ScoreFusion(eta)


@pytest.mark.parametrize(
    ("scores", "p", "said"),
    [
        ([3.0, 5.01], UNIFORM, "tool score"),
        ([math.nan], UNIFORM, "tool score"),
        ([3.0], UNIFORM | {1: 0.5}, "sum to 1"),
        ([3.0], UNIFORM | {1: -0.2, 2: 0.6}, "sum to 1"),
    ],
)
def test_scores_and_probabilities_that_are_none_are_refused(fusion, scores, p, said):
    with pytest.raises(ValueError, match=said):
        fusion.fuse_scores(scores, p)


def test_an_unknown_mode_falls_back_to_uniform_and_says_so(fusion, caplog):
    assert fusion.extract_vlm_probabilities(None, mode="uniform") == UNIFORM
    assert not caplog.text
    assert fusion.extract_vlm_probabilities("C", mode="logit") == UNIFORM
    assert "expected logits, classification or uniform, got 'logit'" in caplog.text
