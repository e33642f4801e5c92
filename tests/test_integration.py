"""The whole pipeline on the embedded model and the real tools."""

import math

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
    scores = {
        t.tool_name: t.normalized_score for t in row.tools if t.normalized_score and not t.trailing
    }
    q_bar = sum(scores.values()) / len(scores)
    weights = [math.exp(-row.fusion.eta * (q_bar - c) ** 2) for c in range(1, 6)]
    alpha = [w / sum(weights) for w in weights]
    joint = [a * row.fusion.p_c[letter] for a, letter in zip(alpha, "EDCBA", strict=True)]
    w = [j / sum(joint) for j in joint]
    q = sum(c * x for c, x in zip(range(1, 6), w, strict=True))
    variance = sum(c * c * x for c, x in zip(range(1, 6), w, strict=True)) - q * q
    assert (row.error, row.fusion.q_bar) == (None, pytest.approx(q_bar))
    assert [row.fusion.alpha[c] for c in range(1, 6)] == pytest.approx(alpha)
    assert sum(row.fusion.p_c.values()) == pytest.approx(1)
    assert row.q == pytest.approx(q)
    assert row.fusion.dq_dqbar == pytest.approx(2 * row.fusion.eta * variance)
    assert row.fusion.eta == pytest.approx(1 / (2 * row.fusion.sigma**2))
    assert row.final_answer == LETTERS[5 - math.floor(q + 0.5)]
    assert row.fusion.vlm_letter == max(row.fusion.p_c, key=row.fusion.p_c.get)


def test_the_image_is_prefilled_once_for_all_roles(rated):
    """The image is 256 tokens, which three further roles and reads take from the cache."""
    assert rated.tokens.reused >= 3 * 256


def test_flat_logits_give_uniform_letters_and_the_fusion_of_them(photo_path, services):
    """A model whose final norm weight is zero: p_c is 0.2 each, off-letter mass 1 − 5/V, q the uniform fusion."""
    flat = load(EMBEDDED)
    torch.nn.init.zeros_(flat.model.model.language_model.norm.weight)
    row = assess(
        photo_path,
        pipeline="letters",
        services=Services(Settings(), "cpu", {BACKEND: flat}, services.tools),
    )
    assert list(row.fusion.p_c.values()) == pytest.approx([0.2] * 5, abs=1e-6)
    assert row.fusion.off_letter_mass == pytest.approx(1 - 5 / flat.vocabulary, abs=1e-6)
    weights = {c: math.exp(-row.fusion.eta * (row.fusion.q_bar - c) ** 2) for c in range(1, 6)}
    assert row.q == pytest.approx(
        sum(c * w for c, w in weights.items()) / sum(weights.values()), abs=1e-6
    )
    assert any("something else than the letters" in line for line in row.warnings)


def test_repeating_an_assessment_repeats_every_number(rated, photo_path, services):
    again = assess(photo_path, services=services)
    assert (again.fusion.p_c, again.q, again.quality_reasoning) == (
        rated.fusion.p_c,
        rated.q,
        rated.quality_reasoning,
    )


@pytest.mark.parametrize("mode", ["classification", "uniform"])
def test_other_scoring_modes(mode, photo_path, services, rated):
    settings = Settings(fusion={"mode": mode})
    other = Services(settings, "cpu", services.pool.clients, services.tools)
    row = assess(photo_path, services=other)
    assert (row.fusion.mode, row.fusion.off_letter_mass) == (mode, None)
    if mode == "uniform":
        assert (row.fusion.vlm_letter, set(row.fusion.p_c.values())) == (None, {0.2})
    else:  # greedy generation at the same position answers the most probable letter
        assert row.fusion.vlm_letter == rated.fusion.vlm_letter
        assert row.fusion.p_c[row.fusion.vlm_letter] == pytest.approx(0.8)
        assert min(row.fusion.p_c.values()) == pytest.approx(0.05)


def test_choices_are_answered_with_probabilities(photo_path, services):
    query, choices = "Which distortion is most visible in the image?", ["Noise", "Blurs", "None"]
    row = assess(photo_path, query=query, choices=choices, services=services)
    assert (row.error, row.q, set(row.fusion.p_c)) == (None, None, {"A", "B", "C"})
    assert sum(row.fusion.p_c.values()) == pytest.approx(1)
    assert row.final_answer == max(row.fusion.product, key=row.fusion.product.get)
    assert row.fusion.measurement == "LocalNR's reading of the distortions"


def test_a_large_photograph_is_scored_on_native_crops(photo_path, services):
    """512×512 pixels are large to a model that takes a quarter of them."""
    small = {BACKEND: load(EMBEDDED, max_pixels=256 * 256)}
    row = assess(
        photo_path, pipeline="letters", services=Services(Settings(), "cpu", small, services.tools)
    )
    assert (row.error, len(row.seen.views)) == (None, 5)
    for view in row.seen.views:
        left, top, right, bottom = view.box
        assert (right - left, bottom - top) == view.pixels  # nothing was resized
    assert any("native-resolution crops" in line for line in row.warnings)


def test_summarizer_node_loads_its_own_configuration(photo_path, rated):
    """Called as the specification calls it, with a state alone."""
    state = {"query": DEFAULT_QUERY, "image_path": photo_path, "plan": rated.plan}
    update = summarizer_node(state | {"executor_evidence": rated.evidence})
    assert update["summarizer_result"].fusion.q == pytest.approx(rated.q, abs=1e-4)
