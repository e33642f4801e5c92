"""One contract for every family of models and every preset of a small published one: tiny random-weight models with
the embedded model's tokenizer."""

import re
from dataclasses import replace

import pytest
from conftest import ROOT
from families import FAMILIES, PRESETS, REVERSED, SCORING, apart, build, load, plain_logprobs
from PIL import Image

from agentic_iqa_local.config import Settings, load_settings
from agentic_iqa_local.judgement.assessment import assess
from agentic_iqa_local.nodes.prompts import ANSWER_PREFIX, DEFAULT_QUERY, distortion_prompt
from agentic_iqa_local.nodes.replies import answer_reply, detection_reply
from agentic_iqa_local.offline.fetch import REPOS
from agentic_iqa_local.services import Services
from agentic_iqa_local.state import LETTERS, LEVEL_WORDS
from agentic_iqa_local.vlm_client.chat import asking_for_words
from agentic_iqa_local.vlm_client.transformers_client import TransformersClient

RESIZING = {"llava_clip", "llava_siglip"}  # to one square
TILING = {"llava_onevision", "smolvlm", "idefics3", "internvl"}
UNCUTTABLE = {"qwen3_5"}  # linear attention keeps a running state: every role is computed afresh


@pytest.fixture(scope="module", params=FAMILIES)
def client(request, tmp_path_factory):
    return load(build(request.param, tmp_path_factory.mktemp("family") / request.param))


def read(client, images):
    return client.open(images).read_letters(SCORING, ANSWER_PREFIX, LETTERS)


@pytest.mark.parametrize("count", [1, 2], ids=["one-image", "two-images"])
def test_letters_behind_another_role_equal_a_plain_pass_and_depend_on_the_picture(
    client, photo, count
):
    images: list[Image.Image] = [photo.crop((0, 0, 192, 160)), photo.crop((200, 100, 392, 260))][
        :count
    ]
    session, reply = client.open(images), detection_reply(["Global"])
    reply.model_validate_json(
        session.generate(distortion_prompt("detection", DEFAULT_QUERY, ["Global"]), reply)
    )
    found = session.read_letters(SCORING, ANSWER_PREFIX, LETTERS)
    assert apart(found, plain_logprobs(client, images)) < 1e-4
    reused = session.usage.reused
    text = session.generate(SCORING, answer_reply(LETTERS), answer_prefix=ANSWER_PREFIX + "B")
    assert answer_reply(LETTERS).model_validate_json(text).final_answer == "B"
    batch = client.renderer.processor(text=[client.renderer.render(SCORING, count).text], images=images, return_tensors="pt")  # fmt: skip
    tokens = int((batch["input_ids"] == client.renderer.placeholder).sum())
    assert tokens == sum(seen.tokens for seen in session.seen)
    assert len(session.seen) == count
    assert (reused == 0) if client.name in UNCUTTABLE else (reused >= tokens)
    assert apart(found, read(client, [Image.new("RGB", (192, 160), (200, 30, 30))] * count)) > 1e-3


def test_a_batch_gives_the_letters_that_each_picture_gives_alone(client, photo):
    pictures = [[photo.crop((32 * i, 16 * i, 32 * i + 128, 16 * i + 128))] for i in range(3)]
    many = client.read_many(pictures, SCORING, ANSWER_PREFIX, LETTERS)
    assert (
        max(apart(r, read(client, images)) for r, images in zip(many.reads, pictures, strict=True))
        < 1e-3
    )


def test_a_row_says_what_was_seen_and_warns_where_pixels_were_changed(
    client, photo, services, tmp_path
):
    photo.crop((0, 0, 256, 224)).save(tmp_path / "photo.png")
    backend = f"transformers.{client.name}"
    role = {"backend": backend}
    settings = Settings(
        planner=role, executor=role, summarizer=role, models={client.name: client.settings}
    )
    own = Services(settings, "cpu", {backend: client}, services.tools)
    row = assess(tmp_path / "photo.png", pipeline="letters", services=own)
    assert row.error is None
    assert row.seen.tokens > 0
    assert sum("resize" in line for line in row.warnings) == (client.name in RESIZING | TILING)
    if client.name in TILING:
        assert row.seen.pixels is None
    elif client.name in RESIZING:
        assert row.seen.views[0].pixels == (112, 112)
    else:  # 256 = 9·28 + 4: with patches of 14 the crop is 252 wide; with patches of 16 nothing is lost
        assert row.seen.views[0].pixels == (
            (256, 224) if client.name.startswith("qwen3") else (252, 224)
        )


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_gives_the_letters_of_a_plain_pass_and_a_whole_assessment(
    preset, photo, photo_path, tmp_path
):
    (backend,) = load_settings(preset).backends
    repo = REPOS[load_settings(preset).folder(backend).name]
    row = next(
        line for line in (ROOT / "README.md").read_text().splitlines() if f"| `{preset}` |" in line
    )
    assert repo.licence in row.lower()
    settings = load_settings(preset).with_options(model=str(build(preset, tmp_path / "model")))
    (backend,) = settings.backends
    model = TransformersClient("model", settings.model(backend), "cpu")
    asked, words = asking_for_words(SCORING) if preset == "q_sit_mini" else (SCORING, {})
    picture = photo.crop((0, 0, 448, 384))
    plain = plain_logprobs(model, [picture], asked)
    found = read(model, [picture])
    assert apart(found, plain) < 1e-4
    assert (
        apart(model.read_many([[picture]], SCORING, ANSWER_PREFIX, LETTERS).reads[0], plain) < 1e-4
    )
    text = model.renderer.render(asked, 1, ANSWER_PREFIX).text
    start = len(model.tokenizer.encode(text))
    assert found.token_ids == {
        x: model.tokenizer.encode(text + words.get(x, x))[start] for x in LETTERS
    }
    row = assess(photo_path, services=Services(settings, "cpu", {backend: model}))
    assert row.error is None
    # 512×512: a whole view of 27×27 tokens, and 2×2 tiles of 27×27 with a token at the end of each line
    assert row.seen.tokens == 729 + 54 * 54 + 54


def test_words_are_asked_for_and_read_in_either_order():
    for prompt, order in (
        (SCORING, [*LEVEL_WORDS.values()]),
        (REVERSED, [*LEVEL_WORDS.values()][::-1]),
    ):
        asked, words = asking_for_words(prompt)
        assert [*words.items()] == [*zip("ABCDE", order, strict=True)]
        assert "".join(f"{word}\n" for word in order) in asked.instructions
        assert "<one word>" in asked.instructions
        assert not re.search(r"[A-E]\. |letter", asked.instructions)
        assert asked == replace(prompt, instructions=asked.instructions)
