"""The presets of small published models, each on a small random-weight model of the same architecture and
processor settings."""

import re

import pytest
import torch
from agentic_iqa_local.offline.wanted import REPOS, folder_of
from conftest import ROOT
from families import build_preset

from agentic_iqa_local.config import load_settings
from agentic_iqa_local.judgement.assessment import assess
from agentic_iqa_local.levels import LETTERS, LEVEL_WORDS
from agentic_iqa_local.nodes.prompts import (
    ANSWER_PREFIX,
    DEFAULT_QUERY,
    analysis_prompt,
    comparison_prompt,
    in_words,
    summarizer_prompt,
)
from agentic_iqa_local.services import Services
from agentic_iqa_local.vlm_client.rendering import NEXT_SET_UP
from agentic_iqa_local.vlm_client.transformers_client import TransformersClient

SCORING = summarizer_prompt(DEFAULT_QUERY, None, scoring=True)
REVERSED = summarizer_prompt(DEFAULT_QUERY, None, scoring=True, reversed_letters=True)
PRESETS = ("llava_onevision_0_5b", "q_sit_mini", "qwen3_vl_2b", "qwen2_5_vl_3b")


@pytest.fixture(scope="module", params=PRESETS)
def preset(request):
    return request.param


@pytest.fixture(scope="module")
def settings(preset, tmp_path_factory):
    """The preset, its folder a small model of the published one's architecture."""
    folder = tmp_path_factory.mktemp("models") / folder_of(load_settings(preset), backend_of(preset))
    build_preset(preset, folder)
    return load_settings(preset).with_options(model=str(folder))


@pytest.fixture(scope="module")
def model(settings):
    (backend,) = settings.backends
    return TransformersClient(settings.folder(backend).name, settings.model(backend), "cpu")


def backend_of(preset):
    (backend,) = load_settings(preset).backends
    return backend


def test_a_preset_is_fetched_from_a_known_repository_and_stands_in_the_readme(preset):
    repo = REPOS[folder_of(load_settings(preset), backend_of(preset))]
    row = next(line for line in (ROOT / "README.md").read_text().splitlines() if f"| `{preset}` |" in line)
    assert repo.licence in row.lower()


def test_the_embedded_models_note_names_the_command_that_fetches_the_next(client):
    assert NEXT_SET_UP in PRESETS
    assert f"python scripts/fetch_models.py --config {NEXT_SET_UP}" in client.describe()["notice"]


def test_the_letters_are_those_of_a_plain_pass(preset, settings, model, photo):
    picture = photo.crop((0, 0, 448, 384))
    read = model.open([picture]).read_letters(SCORING, ANSWER_PREFIX, LETTERS)
    many = model.read_many([[picture]], SCORING, ANSWER_PREFIX, LETTERS).reads[0]
    asked, words = in_words(SCORING) if preset == "q_sit_mini" else (SCORING, {})
    text = model.renderer.render(asked, 1, ANSWER_PREFIX).text
    batch = model.processor(text=[text], images=[picture], return_tensors="pt")
    if hasattr(model.model.model, "rope_deltas"):
        model.model.model.rope_deltas = None
    with torch.inference_mode():
        logprobs = model.model(**batch, use_cache=False).logits[0, -1].double().log_softmax(-1)
    start = len(model.tokenizer.encode(text))
    for letter in LETTERS:
        token = model.tokenizer.encode(text + words.get(letter, letter))[start]
        assert read.token_ids[letter] == token
        assert read.logprobs[letter] == pytest.approx(logprobs[token].item(), abs=1e-4)
        assert many.logprobs[letter] == pytest.approx(logprobs[token].item(), abs=1e-4)


def test_an_agents_assessment_runs_on_it(preset, settings, model, photo_path):
    (backend,) = settings.backends
    services = Services(settings, "cpu", {backend: model})
    row = assess(photo_path, services=services)
    assert row.error is None
    assert 1 <= row.q <= 5
    assert set(row.p_c) == set(LETTERS)
    if preset in ("llava_onevision_0_5b", "q_sit_mini"):
        # 512×512: a whole view of 27×27 tokens, and 2×2 tiles of 27×27 with a token at the end of each line
        assert row.seen.tokens == 729 + 54 * 54 + 54
    else:  # 512×512 in the preset's range: seen as it is, to whole tokens of 32 or 28 pixels
        side = {"qwen3_vl_2b": 512 // 32, "qwen2_5_vl_3b": round(512 / 28)}[preset]
        assert row.seen.tokens == side * side


def test_words_are_asked_for_and_read_in_either_order():
    prompt, words = in_words(SCORING)
    assert list(words.values()) == list(LEVEL_WORDS.values())
    assert "Excellent\nGood\nFair\nPoor\nBad\n" in prompt.instructions
    assert "<one word>" in prompt.instructions
    assert not re.search(r"[A-E]\. |letter", prompt.instructions)
    turned, words = in_words(REVERSED)
    assert words == dict(zip("ABCDE", ("Bad", "Poor", "Fair", "Good", "Excellent"), strict=True))
    assert "Bad\nPoor\nFair\nGood\nExcellent\n" in turned.instructions
    assert prompt.case == turned.case == SCORING.case


def test_other_prompts_keep_their_letters():
    for prompt in (
        comparison_prompt(),
        analysis_prompt(DEFAULT_QUERY, {"Global": ["Noise"]}),
        summarizer_prompt("Sharp?", None, scoring=False, choices=["Yes", "No"]),
    ):
        assert in_words(prompt) == (prompt, {})
