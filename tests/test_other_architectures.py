"""One contract for every family that is served: tiny random-weight models with the embedded model's tokenizer
and template."""

import pytest
import torch
from families import FAMILIES, build
from PIL import Image

from agentic_iqa_local.config import Settings
from agentic_iqa_local.config_sections import ModelSettings
from agentic_iqa_local.judgement.assessment import assess
from agentic_iqa_local.levels import LETTERS
from agentic_iqa_local.nodes.prompts import ANSWER_PREFIX, DEFAULT_QUERY, detection_prompt, summarizer_prompt
from agentic_iqa_local.nodes.replies import detection_reply, summary_reply
from agentic_iqa_local.services import Services
from agentic_iqa_local.vlm_client.transformers_client import TransformersClient

SCORING = summarizer_prompt(DEFAULT_QUERY, None, scoring=True)
RESIZING = {"llava_clip", "llava_siglip"}  # to one square
TILING = {"llava_onevision", "smolvlm", "idefics3", "internvl"}
UNCUTTABLE = {"qwen3_5"}  # linear attention keeps a running state: every role is computed afresh


@pytest.fixture(scope="module", params=FAMILIES)
def family(request):
    return request.param


@pytest.fixture(scope="module")
def family_client(family, tmp_path_factory):
    folder = tmp_path_factory.mktemp(family)
    build(family, folder)
    return TransformersClient(family, ModelSettings(path=str(folder)), "cpu")


@pytest.mark.parametrize("count", [1, 2], ids=["one-image", "two-images"])
def test_letters_after_another_role_equal_a_plain_full_forward_pass(family, family_client, photo, count):
    client = family_client
    images: list[Image.Image] = [photo.crop((0, 0, 192, 160)), photo.crop((200, 100, 392, 260))][:count]
    session = client.open(images)
    detection_reply(["Global"]).model_validate_json(
        session.generate(detection_prompt(DEFAULT_QUERY, ["Global"]), detection_reply(["Global"]))
    )
    read = session.read_letters(SCORING, ANSWER_PREFIX, LETTERS)
    assert len(session.seen) == count
    if family in UNCUTTABLE:
        assert session.usage.reused == 0
    else:
        assert session.usage.reused >= session.seen[0].tokens * count
    text = client.renderer.render(SCORING, count, ANSWER_PREFIX).text
    batch = client.processor(text=[text], images=images, return_tensors="pt")
    assert (batch["input_ids"] == client.renderer.placeholder).sum() == sum(
        seen.tokens for seen in session.seen
    )
    if hasattr(client.model.model, "rope_deltas"):
        client.model.model.rope_deltas = None
    with torch.inference_mode():
        logprobs = client.model(**batch, use_cache=False).logits[0, -1].double().log_softmax(-1)
    assert {x: logprobs[i].item() for x, i in read.token_ids.items()} == pytest.approx(
        read.logprobs, abs=1e-4
    )


def test_letters_depend_on_the_picture(family_client, photo):
    one, other = (
        family_client.open([p]).read_letters(SCORING, ANSWER_PREFIX, LETTERS)
        for p in (photo.crop((0, 0, 192, 160)), Image.new("RGB", (192, 160), (200, 30, 30)))
    )
    assert max(abs(one.logprobs[x] - other.logprobs[x]) for x in LETTERS) > 1e-3


def test_answers_are_valid_under_the_schema(family_client, photo):
    session = family_client.open([photo.crop((0, 0, 192, 160))])
    text = session.generate(SCORING, summary_reply(LETTERS), answer_prefix=ANSWER_PREFIX + "B")
    assert summary_reply(LETTERS).model_validate_json(text).final_answer == "B"


def test_a_row_says_what_was_seen_and_warns_where_pixels_were_changed(
    family, family_client, photo, services, tmp_path
):
    path = tmp_path / "photo.png"
    photo.crop((0, 0, 256, 224)).save(path)
    backend = f"transformers.{family}"
    role = {"backend": backend}
    settings = Settings(planner=role, executor=role, summarizer=role, models={family: family_client.settings})
    row = assess(
        path, pipeline="letters", services=Services(settings, "cpu", {backend: family_client}, services.tools)
    )
    assert row.error is None
    assert row.seen.tokens > 0
    resized = [line for line in row.warnings if "resize" in line]
    if family in TILING:
        assert row.seen.pixels is None
        assert len(resized) == 1
    elif family in RESIZING:
        assert row.seen.views[0].pixels == (112, 112)
        assert len(resized) == 1
    else:
        # 256 = 9·28 + 4: with patches of 14 the crop is 252 wide; with patches of 16 nothing is lost.
        assert row.seen.views[0].pixels == ((256, 224) if family.startswith("qwen3") else (252, 224))
        assert not resized
