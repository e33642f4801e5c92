"""One contract for every family of models and every preset of a small published one: tiny random-weight models with
the embedded model's tokenizer."""

import re

import pytest
from families import FAMILIES, PRESETS, REVERSED, SCORING, apart, build, load, plain_logprobs
from PIL import Image

from agentic_iqa_local.api import choose_settings
from agentic_iqa_local.config import Settings
from agentic_iqa_local.judgement.assessment import assess
from agentic_iqa_local.nodes.prompts import ANSWER_PREFIX, DEFAULT_QUERY, objects_prompt
from agentic_iqa_local.nodes.replies import answer_reply, detection_reply
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
def test_letters_behind_another_role_equal_a_plain_pass(client, photo, count):
    images = [photo.crop((0, 0, 192, 160)), photo.crop((200, 100, 392, 260))][:count]
    session, reply = client.open(images), detection_reply(["Global"])
    prompt = objects_prompt("detection", DEFAULT_QUERY, ["Global"])
    reply.model_validate_json(session.generate(prompt, reply))
    found = session.read_letters(SCORING, ANSWER_PREFIX, LETTERS)
    assert apart(found, plain_logprobs(client, images)) < 1e-4
    seen = sum(view.tokens for view in session.seen)
    assert len(session.seen) == count
    reused = session.usage.reused
    assert (reused == 0) if client.name in UNCUTTABLE else (reused >= seen)
    red = [Image.new("RGB", (192, 160), (200, 30, 30))] * count
    assert apart(found, read(client, red)) > 1e-3
    text = session.generate(SCORING, answer_reply(["B"]))
    assert answer_reply(LETTERS).model_validate_json(text).final_answer == "B"


def test_a_batch_gives_the_letters_that_each_picture_gives_alone(client, photo):
    pictures = [[photo.crop((32 * i, 16 * i, 32 * i + 128, 16 * i + 128))] for i in range(3)]
    many = client.read_many(pictures, SCORING, ANSWER_PREFIX, LETTERS)
    for one, images in zip(many.reads, pictures, strict=True):
        assert apart(one, read(client, images)) < 1e-3


def test_a_row_warns_where_pixels_were_changed(client, photo, services, tmp_path):
    photo.crop((0, 0, 256, 224)).save(tmp_path / "photo.png")
    backend = f"transformers.{client.name}"
    role = {"backend": backend}
    models = {client.name: client.settings}
    settings = Settings(planner=role, executor=role, summarizer=role, models=models)
    own = Services(settings, "cpu", {backend: client}, services.tools)
    row = assess(tmp_path / "photo.png", pipeline="letters", services=own)
    assert row.error is None
    assert row.seen.tokens > 0
    assert sum("resize" in line for line in row.warnings) == (client.name in RESIZING | TILING)
    if client.name in TILING:
        assert row.seen.pixels is None
        return
    # 256 = 9·28 + 4: with patches of 14 the crop is 252 wide; with patches of 16 nothing is lost
    native = (256, 224) if client.name.startswith("qwen3") else (252, 224)
    assert row.seen.views[0].pixels == ((112, 112) if client.name in RESIZING else native)


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_gives_the_letters_of_a_plain_pass_and_a_row(
    preset, photo, photo_path, services, tmp_path
):
    settings = choose_settings(config=preset, model=str(build(preset, tmp_path / "model")))
    (backend,) = settings.backends
    model = TransformersClient("model", settings.model(backend), "cpu")
    asked, words = asking_for_words(SCORING) if preset == "q_sit_mini" else (SCORING, {})
    picture = photo.crop((0, 0, 448, 384))
    plain = plain_logprobs(model, [picture], asked)
    found = read(model, [picture])
    assert apart(found, plain) < 1e-4
    (many,) = model.read_many([[picture]], SCORING, ANSWER_PREFIX, LETTERS).reads
    assert apart(many, plain) < 1e-4
    text = model.renderer.render(asked, 1, ANSWER_PREFIX).text
    start = len(model.tokenizer.encode(text))
    for letter, token in found.token_ids.items():
        assert model.tokenizer.encode(text + words.get(letter, letter))[start] == token
    own = Services(settings, "cpu", {backend: model}, services.tools)
    row = assess(photo_path, pipeline="letters", services=own)
    assert row.error is None
    # 512×512: a whole view of 27×27 tokens, and 2×2 tiles of 27×27 with a token at the end of each line
    assert row.seen.tokens == 729 + 54 * 54 + 54


@pytest.mark.parametrize(("prompt", "step"), [(SCORING, 1), (REVERSED, -1)])
def test_words_are_asked_for_and_read_in_either_order(prompt, step):
    order = [*LEVEL_WORDS.values()][::step]
    asked, words = asking_for_words(prompt)
    assert words == dict(zip("ABCDE", order, strict=True))
    assert "".join(f"{word}\n" for word in order) in asked.instructions
    assert not re.search(r"[A-E]\. |letter", asked.instructions)
