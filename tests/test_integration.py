"""The whole pipeline on the embedded model and the real tools."""

import math

import numpy as np
import pytest
import torch
from conftest import EMBEDDED
from families import load
from scripted import BACKEND

from agentic_iqa_local import assess
from agentic_iqa_local.config import Settings
from agentic_iqa_local.nodes.prompts import DEFAULT_QUERY
from agentic_iqa_local.nodes.summarizer import summarizer_node
from agentic_iqa_local.services import Services
from agentic_iqa_local.state import LETTERS


@pytest.fixture(scope="module")
def rated(photo_path, services):
    return assess(photo_path, services=services)


@pytest.fixture(scope="module")
def compared(noisy_path, photo_path, services):
    return assess(noisy_path, photo_path, services=services)


@pytest.mark.parametrize("which", ["rated", "compared"])
def test_a_rating_holds_its_own_arithmetic(which, request):
    """Every figure of the row follows from the others by the paper's formulas."""
    row = request.getfixturevalue(which)
    fusion, levels = row.fusion, np.arange(1, 6)
    scores = {run.tool_name: run.normalized_score for run in row.tools if not run.trailing}
    q_bar = np.mean([score for score in scores.values() if score])
    alpha = np.exp(-fusion.eta * (q_bar - levels) ** 2)
    weights = alpha * [fusion.p_c[letter] for letter in "EDCBA"]
    weights /= weights.sum()
    q = weights @ levels
    assert (row.error, fusion.q_bar) == (None, pytest.approx(q_bar))
    assert list(fusion.alpha.values()) == pytest.approx(alpha / alpha.sum())
    assert row.q == pytest.approx(q)
    assert fusion.dq_dqbar == pytest.approx(2 * fusion.eta * (weights @ levels**2 - q**2))
    assert fusion.eta == pytest.approx(1 / (2 * fusion.sigma**2))
    assert row.final_answer == LETTERS[5 - math.floor(q + 0.5)]
    assert fusion.vlm_letter == max(fusion.p_c, key=fusion.p_c.get)


def test_the_image_is_prefilled_once_for_all_roles(rated):
    """The image is 256 tokens, which three further roles and reads take from the cache."""
    assert rated.tokens.reused >= 3 * 256


def test_flat_logits_give_uniform_letters_that_count_for_nothing(photo_path, services):
    """A model whose final norm weight is zero: p_c is 0.2 each, off-letter mass 1 − 5/V. q is what
    the tools say, so nobody is warned of the letters."""
    flat = load(EMBEDDED)
    torch.nn.init.zeros_(flat.model.model.language_model.norm.weight)
    own = Services(Settings(), "cpu", {BACKEND: flat}, services.tools)
    row = assess(photo_path, pipeline="letters", services=own)
    assert list(row.fusion.p_c.values()) == pytest.approx([0.2] * 5, abs=1e-6)
    assert row.fusion.off_letter_mass == pytest.approx(1 - 5 / flat.vocabulary, abs=1e-6)
    assert not any("did not keep to the answers" in line for line in row.warnings)


def test_repeating_an_assessment_repeats_every_number(rated, photo_path, services):
    again = assess(photo_path, services=services)
    assert (again.fusion, again.quality_reasoning) == (rated.fusion, rated.quality_reasoning)


@pytest.mark.parametrize("mode", ["classification", "uniform"])
def test_other_scoring_modes(mode, photo_path, services, rated):
    settings = Settings(fusion={"mode": mode})
    other = Services(settings, "cpu", services.clients, services.tools)
    fusion = assess(photo_path, services=other).fusion
    assert (fusion.mode, fusion.off_letter_mass) == (mode, None)
    if mode == "uniform":
        assert (fusion.vlm_letter, set(fusion.p_c.values())) == (None, {0.2})
    else:  # greedy generation at the same position answers the most probable letter
        assert fusion.vlm_letter == rated.fusion.vlm_letter
        assert fusion.p_c[fusion.vlm_letter] == pytest.approx(0.8)


def test_choices_are_answered_with_probabilities(photo_path, services):
    query, choices = "Which distortion is most visible in the image?", ["Noise", "Blurs", "None"]
    row = assess(photo_path, query=query, choices=choices, services=services)
    assert (row.error, row.q, set(row.fusion.p_c)) == (None, None, {"A", "B", "C"})
    assert sum(row.fusion.p_c.values()) == pytest.approx(1)
    assert row.final_answer == max(row.fusion.product, key=row.fusion.product.get)
    assert row.fusion.measurement == "the measured distortions"


def test_a_large_photograph_is_scored_on_native_crops(photo_path, services):
    """512×512 pixels are large to a model that takes a quarter of them. Its letters at temperature 20
    cannot change the score, so that one view of them is read; at 1 they can."""
    small, rows = {BACKEND: load(EMBEDDED, max_pixels=256 * 256)}, []
    for temperature in ("auto", 1.0):
        settings = Settings(fusion={"temperature": temperature})
        given = Services(settings, "cpu", small, services.tools)
        rows.append(assess(photo_path, pipeline="letters", services=given))
    assert [len(row.seen.views) for row in rows] == [1, 5]
    row = rows[1]
    assert row.error is None
    for view in row.seen.views:
        left, top, right, bottom = view.box
        assert (right - left, bottom - top) == view.pixels  # nothing was resized
    assert any("more than the model sees at once" in line for line in row.warnings)


def test_summarizer_node_loads_its_own_configuration(photo_path, rated):
    """Called as the specification calls it, with a state alone."""
    state = {"query": DEFAULT_QUERY, "image_path": photo_path, "plan": rated.plan}
    update = summarizer_node(state | {"executor_evidence": rated.evidence})
    assert update["summarizer_result"].fusion.q == pytest.approx(rated.q, abs=1e-4)
