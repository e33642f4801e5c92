"""compare() and rank(): probabilities, near-duplicates and orders."""

import math
from pathlib import Path

import numpy as np
import pytest
from distortions import DISTORTIONS
from PIL import Image

from agentic_iqa_local import compare, rank
from agentic_iqa_local.config import Settings
from agentic_iqa_local.judgement.comparison import Candidate, Judge
from agentic_iqa_local.judgement.ordering import (
    MOST_DIFFERENT,
    MOST_PICTURES,
    PAIRS_PER_PICTURE,
    fingerprint,
    pairs_to_compare,
    scene_distance,
    scene_groups,
    strengths,
)
from agentic_iqa_local.judgement.preference import (
    PairFit,
    draws_of,
    probability_above,
    sigmoid,
)
from agentic_iqa_local.output.comparison_report import explain
from agentic_iqa_local.result import new_row
from agentic_iqa_local.state import FusionResult, ToolExecutionLog


def rated(q: float, name: str = "a.png", local_nr: float | None = None):
    """A row with a q, and what a fit may weigh."""
    row = new_row(name, None, "Rate it", None, "letters", Settings())
    p_c = dict.fromkeys("ABCDE", 0.2)
    letters = {"mode": "logits", "vlm_letter": "C", "p_c": p_c, "off_letter_mass": 0.0}
    row.fusion = FusionResult(**letters, q=q, q_bar=q, eta=1.0, sigma=0.7)
    row.final_answer = "C"
    if local_nr is not None:
        about = {"tool_name": "LocalNR", "object_name": "Global", "distortion": "Overall"}
        row.tools = [ToolExecutionLog(**about, raw_score=local_nr, normalized_score=local_nr)]
    return row


def judge_with(**weights: float) -> Judge:
    """A judge whose set-up has a fit with these weights, or none."""
    about = {
        "model": "m",
        "pipeline": "letters",
        "reference": False,
        "source": "a test",
        "date": "2026-01-01",
    }
    return Judge(
        Settings(), PairFit(**about, weights=weights, pairs=10, photographs=2) if weights else None
    )


SCENE = np.zeros(256, bool)


def candidates(rows, scenes=None) -> list[Candidate]:
    scenes = scenes or [SCENE] * len(rows)
    return [
        Candidate(i, row, scene, draws_of(row, "none"), Path(row.image))
        for i, (row, scene) in enumerate(zip(rows, scenes, strict=True))
    ]


def test_independent_draws_are_compared_pair_by_pair():
    """Of the four pairs one is above, one is equal and two are below."""
    one, other = np.array([1.0, 2.0]), np.array([1.0, 3.0])
    assert probability_above(one, other) == pytest.approx((1 + 0.5) / 4)
    assert probability_above(other, one) == pytest.approx(1 - 1.5 / 4)


def test_a_fit_weighs_differences_of_measurements():
    judge = judge_with(q=2.0, LocalNR=3.0)
    pair = judge.compare(*candidates([rated(3.5, local_nr=3.0), rated(3.0, "b.png", local_nr=3.2)]))
    assert pair.probability == pytest.approx(
        1 / (1 + math.exp(-(2 * 0.5 - 3 * 0.2)))
    )  # sigmoid(0.4)
    lacking = judge.compare(*candidates([rated(3.5), rated(3.0, "b.png", local_nr=3.2)]))
    assert (lacking.basis, lacking.fitted_on) == ("fused distributions", None)
    assert 0.999 < sigmoid(1e6) < 1


def test_versions_are_one_scene_and_neighbours_link_groups(photo):
    blurred = DISTORTIONS["gaussian_blur"].apply(np.asarray(photo), 4, np.random.default_rng(0))
    smaller, other = (
        Image.fromarray(blurred).resize((200, 150)),
        Image.open("tests/data/prudential.png").convert("RGB"),
    )
    assert scene_distance(fingerprint(photo), fingerprint(smaller)) <= MOST_DIFFERENT
    assert scene_distance(fingerprint(photo), fingerprint(other)) > 0.35
    # 0 and 3 differ in 120 bits, more than 80, but 1 is within 60 of either; 2 is far from all
    one, two = SCENE.copy(), SCENE.copy()
    one[:60] = two[:120] = True
    assert scene_groups([SCENE, one, ~SCENE, two]) == [[0, 1, 3], [2]]
    assert scene_groups([]) == []


def test_strengths_are_bradley_and_terry_s():
    """Where P(i beats j) is sigmoid(s_i − s_j), the likelihood is greatest at s itself, up to a constant."""
    true = np.array([2.0, -1.0, 0.5, 0.0, -1.5])
    pairs = pairs_to_compare(list(true))
    ahead = {(i, j): sigmoid(true[i] - true[j]) for i, j in pairs}
    ahead |= {(j, i): 1 - p for (i, j), p in ahead.items()}
    found = strengths(ahead, [0.0] * 5)
    np.testing.assert_allclose(found, true - true.mean(), atol=1e-3)
    assert strengths({}, [3.0]).tolist() == [0.0]


def test_the_fit_answers_for_one_scene_alone():
    rows = [rated(3.5), rated(3.0, "b.png")]
    same, apart = (
        judge_with(q=4.0).compare(*candidates(rows, scenes)) for scenes in (None, [SCENE, ~SCENE])
    )
    assert (same.basis, same.probability) == ("same scene, fitted", pytest.approx(sigmoid(2.0)))
    assert (apart.basis, apart.probability < same.probability) == ("fused distributions", True)
    assert judge_with().compare(*candidates(rows)).probability == apart.probability


def test_comparisons_of_an_order_are_linear():
    judge = judge_with(q=4.0)
    ranking = judge.rank(candidates([rated(1 + 4 * i / 60, f"{i}.png") for i in range(60)]))
    assert len(ranking.pairs) <= PAIRS_PER_PICTURE * 60
    assert [ranked.assessment.image for ranked in ranking.order] == [
        f"{i}.png" for i in range(59, -1, -1)
    ]
    with pytest.raises(
        ValueError, match=f"expected at most {MOST_PICTURES} pictures, got {MOST_PICTURES + 1}"
    ):
        judge.rank(candidates([rated(3)] * (MOST_PICTURES + 1)))


def test_both_orders_say_the_same(services, photo_path, noisy_path):
    there = compare(photo_path, noisy_path, services=services)
    back = compare(noisy_path, photo_path, services=services)
    assert there.same_scene
    assert there.probability > 0.9
    assert there.probability + back.probability == pytest.approx(1, abs=1e-9)
    assert (there.better, back.better) == (there.first, back.second)
    assert there.to_dict()["pair"]["basis"] == "same scene, fitted"  # the embedded model has a fit
    assert "The same scene" in explain(there)


def test_a_reference_of_another_size_is_one_sentence(services, photo, noisy_path):
    found = compare(noisy_path, photo, reference=photo.resize((300, 300)), services=services)
    assert found.probability is None
    assert "size" in found.error
    assert "not compared" in explain(found)


def test_an_order_is_by_damage_and_failures_stand_beside_it(services, photo):
    rng = np.random.default_rng(0)
    pictures = [
        DISTORTIONS["white_noise"].apply(np.asarray(photo), level, rng) for level in (3, 1, 5)
    ]
    ranking = rank([*pictures, b"no picture"], services=services)
    assert [ranked.index for ranked in ranking.order] == [1, 0, 2]
    assert ranking.best is ranking.order[0].assessment
    assert ranking.order[-1].better_than_next is None
    assert len(ranking.failed) == 1
    assert "FAILED" in explain(ranking)
