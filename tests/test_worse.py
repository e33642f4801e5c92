"""Whether paired losses make a new version worse: outcomes that can be derived."""

import math
import re

import numpy as np
import pytest
from scipy import stats

from agentic_iqa_local.judgement.versions import PairFound, VersionReport, scenes
from agentic_iqa_local.judgement.worse import Rule, decide
from agentic_iqa_local.output.version_report import before, headline, text


def verdict(losses, rule=Rule(), of=None):  # noqa: B008 # it is frozen
    return decide(losses, range(len(losses)) if of is None else of, rule).verdict


def report(losses, share=None) -> VersionReport:
    """Of pairs of different scenes."""
    pairs = [
        PairFound(
            name=f"{scene}",
            old="a",
            new="b",
            scene=scene,
            same=not loss,
            old_q=3,
            new_q=3 - loss,
            loss=loss,
        )
        for scene, loss in enumerate(losses)
    ]
    decision = decide(losses, range(len(losses)), Rule(share=share))
    about = {"old": "a", "new": "b", "reference": False, "worse_share": share, "needed": 10}
    about |= {"margin": 0.1, "error_rate": 0.05, "pairs": pairs, "decision": decision}
    return VersionReport(**about)


def test_what_did_not_change_is_not_worse_however_few_there_are():
    found = decide([0.0, 0.0], [0, 1], Rule())
    assert (found.verdict, found.estimate, found.low, found.high) == ("not worse", 0.0, 0.0, 0.0)


def test_bounds_of_normal_losses_are_those_of_student():
    losses = stats.norm.ppf((np.arange(60) + 0.5) / 60, 0.2, 0.3)
    found = decide(losses, range(60), Rule())
    half = stats.t.ppf(0.95, 59) * losses.std(ddof=1) / math.sqrt(60)
    assert found.low == pytest.approx(0.2 - half, abs=0.1 * half)
    assert found.high == pytest.approx(0.2 + half, abs=0.1 * half)


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (-0.05, "has risen by 0.050 levels, by at least 0.0"),
        (-0.05, "a rise within the margin of 0.1 counts as no change"),
        (-0.3, "a fall of 0.1 is allowed"),
        (0.02, "has fallen by 0.020 levels"),
    ],
)
def test_a_rise_within_the_margin_is_told_as_no_change(loss, said):
    assert said in headline(report([loss] * 20))


@pytest.mark.parametrize(
    ("losses", "share", "warned"),
    [
        ([0.02] * 39, None, True),
        ([0.02] * 40, None, False),
        ([0.02] * 9, None, False),  # without any bound
        ([0.02] * 39, 0.1, False),  # whose bounds are exact
        ([0.0] * 20, None, False),  # the same pixels
    ],
)
def test_few_scenes_are_told_to_err_more_often(losses, share, warned):
    said = text(report(losses, share))
    assert ("fewer than 40 scenes" in said) == warned


def test_what_passes_a_version_is_told_apart_from_what_keeps_the_error_rate():
    assert "about 10 pictures of different scenes" in before(Rule(), 20)
    assert "40 or more to keep to that rate" in before(Rule(), 20)
    assert "40 or more" not in before(Rule(margin=0.02), 20)  # (2.49 * .1 / .02)^2 = 155


@pytest.mark.parametrize(
    ("losses", "said"),
    [  # the bound lies 1.7 standard errors away: of .03, .016 and .07
        ([0.7, 1.0] * 10, r"fallen by 0.850 levels, by at least 0.7\d\d with 95 % confidence \("),
        (
            [-0.12, 0.08] * 20,
            r"risen by 0.020 levels, fallen by at most 0.0\d\d with 95 % confidence \(",
        ),
        ([-0.2, 0.4] * 10, r", risen by at most 0.0\d\d and by at most 0.2\d\d, each with 95 %"),
        ([0.3] * 3, r"fallen by 0.300 levels; 10 scenes or more are needed"),
    ],
)
def test_a_bound_is_told_in_the_words_of_the_estimate(losses, said):
    assert re.search(said, headline(report(losses)))


def test_a_share_is_told_with_its_bound():
    said = headline(report([0.02] * 40, 0.1))
    assert "lost more than 0.1 levels of q, at most 7.2 % with" in said  # 1 - .05^(1/40)


def test_undecided_becomes_decided_with_more_pictures():
    losses = [0.0, 0.3] * 5  # mean .15, standard error .05: 1.8 of them reach down to .06
    assert verdict(losses) == "undecided"
    assert verdict(losses * 8) == "worse"  # .0169: down to .12
    assert verdict([loss - 0.1 for loss in losses]) == "undecided"
    assert verdict([loss - 0.1 for loss in losses] * 8) == "not worse"


def test_pictures_of_one_scene_count_once():
    losses = [0.0, 0.3] * 5
    alone = decide(losses, range(10), Rule())
    twice = decide(losses * 2, [*range(10)] * 2, Rule())
    assert twice.model_dump(exclude={"pictures"}) == alone.model_dump(exclude={"pictures"})
    assert verdict([1.0] * 40, of=[0] * 40) == "undecided"  # one scene says nothing of others


def test_one_picture_that_hardly_changed_does_not_keep_the_others_from_passing():
    assert verdict([0.01] + [0.0] * 39) == "not worse"


@pytest.mark.parametrize(("share", "error_rate"), [(0.02, 0.05), (0.1, 0.1)])
def test_a_share_passes_from_the_number_of_pictures_on_that_is_said_before(share, error_rate):
    # None of n: the upper bound p has (1 - p)^n = error rate
    rule = Rule(share=share, error_rate=error_rate)
    assert rule.needed() == math.ceil(math.log(error_rate) / math.log(1 - share))
    harmless = [0.05] * rule.needed()
    assert verdict(harmless, rule) == "not worse"
    assert verdict(harmless[1:], rule) == "undecided"


def test_a_share_is_bounded_as_by_a_binomial_test():
    losses = [0.5] * 8 + [0.01] * 32
    found = decide(losses, range(40), Rule(share=0.05))
    exact = stats.binomtest(8, 40).proportion_ci(0.9, "exact")  # two sides of 5 % each
    assert (found.low, found.high) == pytest.approx((exact.low, exact.high))
    assert found.verdict == "worse"


def test_a_loss_of_the_margin_itself_is_seldom_called_worse():
    rng = np.random.default_rng(5)
    worse = sum(verdict(rng.normal(0.1, 0.2, 20)) == "worse" for _ in range(200))
    assert worse <= stats.binom.ppf(0.999, 200, 0.05)


def test_scenes_are_those_of_the_manifest_else_near_duplicates():
    one, other = np.zeros(256, bool), np.ones(256, bool)
    assert scenes([one, other, None, one], [None] * 4) == [0, 1, 2, 0]
    assert scenes([one, one, one], ["a", None, "a"]) == [0, 1, 0]
