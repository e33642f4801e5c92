"""What the embedded model is trained on: the same prompts, pixels and positions that the pipeline uses."""

import itertools

import numpy as np
import pytest
import torch
from PIL import Image

from agentic_iqa_local.levels import DISTORTION_TYPES, LETTERS
from agentic_iqa_local.nodes.planner import derive_flags
from agentic_iqa_local.prompts import ANSWER_PREFIX
from agentic_iqa_local.training.data import draw_crops, level_targets, pixel_values
from agentic_iqa_local.training.distortions import DISTORTIONS, KINDS_BY_FAMILY, draw_sample
from agentic_iqa_local.training.embedded import FACTOR
from agentic_iqa_local.training.language import SEEING, language_losses, pack
from agentic_iqa_local.training.queries import draw_query
from agentic_iqa_local.training.roles import draw_roles
from agentic_iqa_local.training.vision import VisionHeads, crop_labels


@pytest.fixture(scope="module")
def pixels(photo):
    return np.asarray(photo)[:256, :256]


def test_all_seven_families_have_kinds():
    assert set(KINDS_BY_FAMILY) == set(DISTORTION_TYPES)
    assert all(KINDS_BY_FAMILY.values())
    assert len(DISTORTIONS) >= 15


@pytest.mark.parametrize("kind", DISTORTIONS)
def test_a_higher_severity_departs_further_from_the_clean_picture(kind, pixels):
    """Root mean square error rises with severity; the seed is the same, so that angles and signs are."""
    errors = []
    for severity in range(1, 6):
        distorted = DISTORTIONS[kind].apply(pixels, severity, np.random.default_rng(0))
        assert distorted.shape == pixels.shape
        assert distorted.dtype == np.uint8
        errors.append(np.sqrt(np.mean((distorted.astype(float) - pixels) ** 2)))
    assert errors == sorted(errors)
    assert errors[0] > 1


def test_shares_of_clean_pictures_and_severities(pixels):
    rng = np.random.default_rng(0)
    severities = [draw_sample(pixels[:16, :16], rng).severity for _ in range(2000)]
    counts = np.bincount(severities, minlength=6) / 2000
    # Binomial standard errors: sqrt(.12·.88/2000) = .0073 for clean, sqrt(.176·.824/2000) = .0085 for each severity.
    assert counts[0] == pytest.approx(0.12, abs=4 * 0.0073)
    assert counts[1:] == pytest.approx(0.88 / 5, abs=4 * 0.0085)


def test_letter_targets_fall_with_severity():
    targets = level_targets(np.arange(6), 0.5)
    assert targets.sum(1) == pytest.approx(1)
    means = targets @ np.arange(5, 0, -1)
    assert all(a > b for a, b in itertools.pairwise(means))
    assert targets[0].argmax() == 0  # clean: A
    assert targets[5].argmax() == 4  # severity 5: E


def test_training_pixels_are_the_processors(client, pixels):
    ours, grid = pixel_values([pixels], client.processor)
    theirs = client.processor.image_processor(images=[Image.fromarray(pixels)], return_tensors="pt")
    assert torch.equal(grid, theirs["image_grid_thw"])
    assert torch.allclose(ours, theirs["pixel_values"], atol=1e-6)


@pytest.mark.parametrize("images", [1, 2], ids=["no-reference", "full-reference"])
def test_packed_training_rows_give_the_logits_of_the_running_pipeline(client, pixels, images, monkeypatch):
    """Block mask and restarted positions in one pass equal a session that continues from its image prefix."""
    rng = np.random.default_rng(1)
    crops = draw_crops([pixels], 120, (5, 6), rng)[:2]
    rows = [draw_roles(c, images == 2, rng) for c in crops]
    height, width = crops[0].clean.shape[:2]
    pictures = [p for c in crops for p in ([c.clean, c.sample.image] if images == 2 else [c.sample.image])]
    values, grid = pixel_values(pictures, client.processor)
    text = pack(rows, images, height * width // FACTOR**2, SEEING.row_tokens, client.processor)
    language = client.model.model.language_model
    seen, forward = {}, language.forward

    def watched(*args, **options):
        output = forward(*args, **options)
        seen["hidden"] = output.last_hidden_state
        return output

    monkeypatch.setattr(language, "forward", watched)
    letter_ids = torch.tensor([client.tokenizer.convert_tokens_to_ids(x) for x in "ABCDEFGHIJ"])
    losses = language_losses(client.model, VisionHeads(client.model.config.text_config.hidden_size), letter_ids)
    with torch.no_grad():
        losses({"pixels": values, "grid": grid, "images": images, "labels": crop_labels(crops), "text": text})
        packed = client.model.lm_head(seen["hidden"]).double().log_softmax(-1)
    monkeypatch.undo()
    for row in range(len(crops)):
        at = next(i for r, i in text["letter_at"].tolist() if r == row)  # each row's first read is a rating without evidence
        session = client.open([Image.fromarray(p) for p in pictures[row * images : (row + 1) * images]])
        read = session.read_letters(rows[row][0].prompt, ANSWER_PREFIX, LETTERS)
        assert {x: packed[row, at - 1, i].item() for x, i in read.token_ids.items()} == pytest.approx(read.logprobs, abs=1e-3)


def test_every_query_of_the_grammar_carries_the_plan_of_the_rules():
    rng = np.random.default_rng(0)
    for _ in range(500):
        drawn = draw_query(rng)
        plan = drawn.plan
        assert plan.plan == derive_flags(plan.query_type, plan.query_scope, plan.distortion_source, plan.required_tool)
        assert all(name == "Global" or name.lower() in drawn.query.lower() for name in plan.objects)
        assert plan.required_tool is None or plan.required_tool.lower() in drawn.query.lower()
        assert (plan.distortion_source == "Explicit") == bool(plan.distortions)
