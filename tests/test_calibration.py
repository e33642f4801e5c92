"""Maps from a tool's raw score to 1..5: the logistic, its file and its fit. Expected numbers come from scipy or
from the derivations in the comments."""

import math
from pathlib import Path

import numpy as np
import pytest
import yaml
from pydantic import ValidationError
from scipy import stats
from scipy.special import expit

from agentic_iqa_local.iqa_tools.calibration import CalibrationError, LogisticMap, read_map_file
from scripts.training.map_fit import evaluate, fit_logistic


def plain(**changes) -> LogisticMap:
    fields = dict(tool="T", b1=2, b2=1, b3=0, b4=0, b5=3, domain=(-10, 10), lower_better=False)
    return LogisticMap(**fields | {"source": "test", "fitted_on": "none"} | changes)


def map_file(path: Path, *maps: LogisticMap) -> Path:
    entries = [logistic.model_dump(mode="json", exclude_none=True) for logistic in maps]
    path.write_text(yaml.safe_dump({"maps": entries}))
    return path


def test_logistic_by_hand_and_by_scipy():
    # b = (2, 1, 0, 0, 3) at ln 3: 2 (1/2 - 1/(1 + 3)) + 3 = 3.5. Without the `1 +` of the paper's misprint:
    # 3.33.
    assert plain().unclipped(math.log(3)) == pytest.approx(3.5, abs=1e-12)
    logistic = plain(b1=-592.6, b2=7.5, b3=0.3, b4=-0.2, b5=2.0)
    for x in (-1e6, -3.0, 0.29, 0.31, 4.0, 1e6):
        theirs = -592.6 * (0.5 - expit(-7.5 * (x - 0.3))) - 0.2 * x + 2.0
        assert logistic.unclipped(x) == pytest.approx(theirs, rel=1e-12)


def test_map_clips_to_the_scale_and_holds_beyond_the_domain():
    line = plain(b1=0, b4=1, b5=0, domain=(2, 8))  # f(x) = x
    assert [line(x) for x in (-5, 2.5, 4.5, 7, 100)] == [2, 2.5, 4.5, 5, 5]
    assert line.reachable == (2, 5)
    assert line.unclipped(100) == 100


def test_a_map_that_turns_or_says_nothing_is_not_monotone():
    # Slope b1 b2 u + b4 with u = s(1 - s). b1 = -0.002, b2 = 4000: -8u + 1 < 0 where u > 1/8, i.e. |x - b3|
    # below ln((1 + sqrt(1/2)) / (1 - sqrt(1/2))) / 4000 = 4.4e-4: no grid of a thousand points over [0, 1]
    # need see it.
    narrow = plain(b1=-0.002, b2=4000, b3=0.50051, b4=1, b5=2, domain=(0, 1))
    assert not narrow.monotone
    assert narrow.model_copy(update={"b4": 2.1}).monotone  # -8/4 + 2.1 > 0
    # Slope 4u - 0.75: u is 3/16 at ln 3 from b3 = 2. Left of 2 - ln 3 = 0.90 the map runs down.
    turning = plain(b1=4, b3=2, b4=-0.75, b5=3, domain=(-3, 1))
    domains = {(-3, 1): False, (-3, 0): False, (1, 2): True}
    assert {d: turning.model_copy(update={"domain": d}).monotone for d in domains} == domains
    assert not plain(lower_better=True).monotone
    assert plain(b1=-2, lower_better=True).monotone
    assert not plain(b1=0).monotone  # constant


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"domain": (1, 0)}, "low < high"),
        ({"b1": math.nan}, "finite"),
        ({"b4": 1e308, "domain": (0, 10)}, "too large"),
        ({"slope": 1}, "Extra inputs"),
    ],
)
def test_a_map_that_gives_no_numbers_is_none(changes, message):
    with pytest.raises(ValidationError, match=message):
        plain(**changes)


def test_a_raw_score_that_is_not_finite_is_refused():
    with pytest.raises(CalibrationError, match="T: expected a finite raw score"):
        plain()(math.nan)


TURNING = plain(tool="VSI", b1=-2, b2=2, b3=0.5, b4=0.75, domain=(0, 3))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", "list `maps`"),
        ("maps: [{tool: VSI, b1: 1}]", "maps.0.b2: expected a value"),
        ([TURNING], "map of VSI is not monotone"),
        ([plain(), plain()], "map of T is the second one"),
    ],
)
def test_maps_that_cannot_be_used_are_refused_by_name(tmp_path, content, message):
    path = tmp_path / "maps.yaml"
    if isinstance(content, str):
        path.write_text(content)
    else:
        map_file(path, *content)
    with pytest.raises(CalibrationError, match=message):
        read_map_file(path)


# The fit

COMMON = {"tool": "T", "lower_better": False, "source": "a paper", "fitted_on": "KonIQ-10k"}


@pytest.mark.parametrize("lower_better", [False, True])
def test_fit_finds_a_known_curve(lower_better):
    sign = -1 if lower_better else 1
    curve = dict(b1=sign * 3, b2=0.2, b3=40, b4=sign * 0.005)
    truth = plain(**curve, domain=(0, 100), lower_better=lower_better)
    x = np.random.default_rng(0).uniform(0, 100, 200)
    y = np.array([truth.unclipped(v) for v in x])
    found, _ = fit_logistic(x, y, domain=(0, 100), **COMMON | {"lower_better": lower_better})
    assert max(abs(found.unclipped(v) - truth.unclipped(v)) for v in np.linspace(0, 100, 50)) < 5e-3


def test_a_fit_of_noisy_scores_is_monotone_of_contrary_ones_none():
    rng = np.random.default_rng(1)
    y = rng.uniform(1, 5, 300)
    common = COMMON | {"domain": (-20, 20)}
    weak, quality = fit_logistic(y + rng.normal(0, 4, 300), y, **common)
    assert weak.monotone
    assert quality.rmse <= y.std() + 1e-6  # no worse than always answering the mean
    with pytest.raises(CalibrationError, match="T: expected higher raw scores for better images"):
        fit_logistic(-y, y, **common)
    with pytest.raises(CalibrationError, match="ten or more scores that differ"):
        fit_logistic([math.nan] * 50, [3.0] * 50, **common)


def test_the_quality_of_a_map_is_scipys():
    """Of a tool whose lower scores are better."""
    rng = np.random.default_rng(3)
    x = rng.uniform(-12, 12, 60)
    y = np.clip(3 - x / 6 + rng.normal(0, 0.5, 60), 1, 5)
    mapped = np.clip(-5 * (expit(np.clip(x, -10, 10)) - 0.5) + 3, 1, 5)
    found = evaluate(plain(b1=-5, lower_better=True), x, y)
    assert found.rmse == pytest.approx(math.sqrt(np.mean((mapped - y) ** 2)))
    assert found.srcc == pytest.approx(stats.spearmanr(-x, y).statistic)
    assert found.plcc == pytest.approx(stats.pearsonr(mapped, y).statistic)
