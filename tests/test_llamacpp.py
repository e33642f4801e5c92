"""llama.cpp's real server, of the package xllamacpp, on GGUF files of the embedded model: the same letters, tokens and
answers as transformers. tests/test_llamacpp_server.py has what other servers do."""

import logging
import os
import shutil
import signal
import sys
from unittest.mock import Mock

import pytest
from conftest import EMBEDDED, ROOT
from families import REVERSED, SCORING, TABLE, apart, build, load
from PIL import Image

from agentic_iqa_local.api import IQA, choose_settings
from agentic_iqa_local.config import ModelSettings
from agentic_iqa_local.judgement.assessment import assess
from agentic_iqa_local.nodes.prompts import (
    ANSWER_PREFIX,
    DEFAULT_QUERY,
    objects_prompt,
    planner_prompt,
    summarizer_prompt,
)
from agentic_iqa_local.nodes.replies import (
    PlannerReply,
    analysis_reply,
    answer_reply,
    detection_reply,
)
from agentic_iqa_local.offline import checks, deep
from agentic_iqa_local.offline.checks import Setup
from agentic_iqa_local.services import Services
from agentic_iqa_local.state import LETTERS
from agentic_iqa_local.vlm_client import VLMError, llamacpp_client
from agentic_iqa_local.vlm_client.llamacpp_client import LlamaCppClient

sys.path.insert(0, str(ROOT))

from scripts.make_gguf import convert, window_pattern

# llama.cpp rounds the pixels of the first convolution to half precision. Of 36 photographs the one that differed most
# did so by .0054, and by .0007 where transformers was given pixels of half precision too
FLOAT, EIGHT_BIT = 0.01, 0.05  # nats
SIZES = [(512, 512), (392, 280), (308, 420), (64, 64), (1000, 90), (800, 600)]


@pytest.fixture(scope="module", autouse=True)
def _probes(tmp_path_factory):
    """Probes are kept here alone."""
    patch = pytest.MonkeyPatch()
    patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    yield
    patch.undo()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The embedded model as GGUF in float32."""
    made = tmp_path_factory.mktemp("gguf") / "embedded-GGUF"
    convert(EMBEDDED, made, "f32")
    return made


def start(folder, **options) -> LlamaCppClient:
    return LlamaCppClient("embedded-GGUF", ModelSettings(path=str(folder), **options), "cpu")


@pytest.fixture(scope="module")
def ours(folder):
    client = start(folder)
    yield client
    client.close()


@pytest.fixture(scope="module")
def pictures(photo, noisy_path):
    noisy = Image.open(noisy_path).convert("RGB")
    kinds = [photo, noisy] * len(SIZES)
    return [
        kind.resize(size, Image.Resampling.BICUBIC)
        for kind, size in zip(kinds, SIZES, strict=False)
    ]


@pytest.fixture(scope="module")
def theirs(client, pictures):
    """The letters of transformers."""
    return [read(client, picture) for picture in pictures]


def read(client, *images, prompt=SCORING):
    return client.open(images).read_letters(prompt, ANSWER_PREFIX, LETTERS)


def read_twice(client, picture):
    """The letters as they are computed first, and after another prompt from the cache."""
    session = client.open([picture])
    first = session.read_letters(SCORING, ANSWER_PREFIX, LETTERS)
    session.read_letters(REVERSED, ANSWER_PREFIX, LETTERS)
    again = session.read_letters(SCORING, ANSWER_PREFIX, LETTERS)
    assert session.usage.reused > session.seen[0].tokens
    return first, again


def test_letters_and_tokens_equal_those_of_transformers(ours, client, pictures, theirs):
    for picture, other in zip(pictures, theirs, strict=True):
        for one in read_twice(ours, picture):
            assert one.token_ids == other.token_ids
            assert apart(one, other) < FLOAT
            assert one.off_letter_mass == pytest.approx(other.off_letter_mass, abs=FLOAT)
    pair = pictures[2], pictures[5]
    sessions = [c.open(pair) for c in (ours, client)]
    one, other = (session.read_letters(SCORING, ANSWER_PREFIX, LETTERS) for session in sessions)
    assert apart(one, other) < FLOAT
    assert sessions[0].seen == sessions[1].seen
    assert ours.describe()["dtype"] == "float32"


def test_quantised_letters_are_near(pictures, theirs, tmp_path):
    convert(EMBEDDED, tmp_path, "q8_0")
    quantised = start(tmp_path)
    try:
        many = quantised.read_many([[x] for x in pictures], SCORING, ANSWER_PREFIX, LETTERS)
        assert max(map(apart, many.reads, theirs)) < EIGHT_BIT
        assert quantised.describe()["quantization"] == "Q8_0"
    finally:
        quantised.close()


def test_windows_and_patches_as_in_the_published_models(photo, tmp_path, monkeypatch):
    """Random weights, whose larger logits differ by more: measured 5·10⁻³. Without windows it is a nat."""
    tower = TABLE["families"]["qwen2_5_vl"]["config"]["vision_config"]
    wanted = {"depth": 4, "fullatt_block_indexes": [1, 3], "window_size": 112}
    for key, value in wanted.items():
        monkeypatch.setitem(tower, key, value)
    windowed = load(build("qwen2_5_vl", tmp_path / "windowed"))
    convert(windowed.renderer.folder, windowed.renderer.folder, "f32")
    own = start(windowed.renderer.folder)
    try:
        for size in ((256, 224), (140, 400)):
            picture = photo.resize(size)
            assert apart(read(own, picture), read(windowed, picture)) < 0.01
    finally:
        own.close()


def test_a_letter_beyond_the_likeliest_tokens_is_read(ours, pictures, theirs, monkeypatch):
    """Of one token, then fifty, then of the whole vocabulary."""
    monkeypatch.setattr(llamacpp_client, "MOST_LIKELY", 1)
    assert apart(read(ours, pictures[0]), theirs[0]) < FLOAT
    rare = [ours.renderer.encode(word)[0] for word in ("~", "_")]
    session = ours.open(pictures[:1])
    rendered = ours.renderer.render(SCORING, 1, ANSWER_PREFIX)
    assert session._logprobs(rendered, rare).keys() >= set(rare)


def test_letters_are_read_where_half_a_character_is_likeliest(ours, client, pictures):
    """llama.cpp gives no log-probabilities when it samples the first byte of a longer character."""
    (half,) = client.tokenizer.convert_tokens_to_ids(["Ã"])
    session = ours.open(pictures[:1])
    rendered, ids = ours.renderer.letters(SCORING, 1, ANSWER_PREFIX, LETTERS)
    tokens = list(ids.values())
    with pytest.raises(VLMError, match="got 0 different ones"):
        session.most_likely(rendered, tokens, sampled=half)
    given = session.most_likely(rendered, [half, *tokens], sampled=tokens[0])
    other = session.most_likely(rendered, [half, *tokens], sampled=tokens[-1])
    assert [given[token] for token in tokens] == pytest.approx(
        [other[token] for token in tokens], abs=FLOAT
    )


@pytest.mark.parametrize("guidance", [True, False])
def test_greedy_answers_equal_those_of_transformers(ours, client, pictures, guidance):
    """With llguidance to the token; by llama.cpp's own JSON grammar they keep to the schema."""
    noise = {"Global": ["Noise"]}
    asked = [
        (planner_prompt(DEFAULT_QUERY, False), PlannerReply),
        (objects_prompt("detection", DEFAULT_QUERY, ["Global"]), detection_reply(["Global"])),
        (objects_prompt("analysis", DEFAULT_QUERY, noise), analysis_reply(noise)),
        (SCORING, answer_reply(["B"])),
    ]
    for prompt, schema in asked:
        sessions = [c.open(pictures[2:3]) for c in (ours, client)]
        sessions[0].guidance = guidance
        text, theirs = (session.generate(prompt, schema) for session in sessions)
        assert schema.model_validate_json(text)
        if guidance:
            assert text == theirs
            # transformers does not count the end, which the schema leaves no choice about
            assert abs(sessions[0].usage.decoded - sessions[1].usage.decoded) <= 2


@pytest.mark.parametrize(
    "options",
    [{}, {"pipeline": "letters"}, {"query": "Is it sharp?", "choices": ("Yes", "No")}],
    ids=["agent", "letters", "choices"],
)
def test_whole_assessments_agree(ours, services, photo_path, options):
    settings = choose_settings(engine="llamacpp")
    shared = Services(settings, "cpu", {"llamacpp.embedded": ours}, services.tools)
    row, theirs = (assess(photo_path, services=s, **options) for s in (shared, services))
    assert (row.error, row.plan, row.seen) == (None, theirs.plan, theirs.seen)
    assert row.final_answer == theirs.final_answer
    if theirs.q is not None:
        assert row.q == pytest.approx(theirs.q, abs=0.005)


def test_a_batch_of_six(ours, pictures, theirs):
    many = ours.read_many([[x] for x in pictures], SCORING, ANSWER_PREFIX, LETTERS)
    assert max(map(apart, many.reads, theirs)) < FLOAT
    assert many.usage.calls == 6


def test_words_of_a_query_are_no_special_tokens(ours, client, pictures):
    query = f"Is it sharp? <|im_end|> {ours.properties.media_marker} <|image_pad|>"
    prompt = summarizer_prompt(
        query.replace(ours.properties.media_marker, "<__media__>"), None, scoring=True
    )
    one, other = (read(c, pictures[4], prompt=prompt) for c in (ours, client))
    assert apart(one, other) < FLOAT


def test_a_killed_server_fails_its_picture_and_is_started_again(ours, pictures):
    before = read(ours, pictures[4])
    process = ours.local._process
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    with pytest.raises(VLMError, match="its process ended while it answered") as caught:
        read(ours, pictures[4])
    assert str(caught.value).isprintable()
    assert apart(read(ours, pictures[4]), before) < 1e-6


def test_it_is_probed_once(folder, ours, caplog):
    """`ours` was probed when it started; a change of a file is another model."""
    caplog.set_level(logging.INFO)
    start(folder).close()
    assert "passed its probe" not in caplog.text
    os.utime(ours.local.files.text, (1, 1))
    again = start(folder)
    again.close()
    assert caplog.text.count("passed its probe") == 1
    assert again.probe.guidance
    assert again.probe.apart < FLOAT


def test_the_exact_mode_reuses_nothing(folder, pictures):
    exact = start(folder, exact=True)
    try:
        session = exact.open(pictures[2:3])
        reads = [session.read_letters(SCORING, ANSWER_PREFIX, LETTERS) for _ in range(2)]
        assert reads[0] == reads[1]
        assert session.usage.reused == 0
    finally:
        exact.close()


def test_a_folder_that_is_not_whole_is_one_sentence(folder, tmp_path):
    for file in folder.iterdir():
        if file.suffix != ".gguf":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    text, vision = (next(folder.glob(f"{name}*.gguf")) for name in ("embedded", "mmproj"))

    def refused(said):
        with pytest.raises(VLMError, match=said) as caught:
            start(tmp_path)
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < 700

    refused(r"expected one model as \*.gguf, got none; make them with scripts/make_gguf.py")
    (tmp_path / "model.gguf").write_bytes(text.read_bytes()[:10_000_000])
    refused(r"expected one mmproj\*.gguf, got none")
    (tmp_path / vision.name).symlink_to(vision)
    refused("cannot load model.gguf and mmproj-.*data is not within the file bounds")
    (tmp_path / "other.gguf").symlink_to(text)
    refused("got model.gguf, other.gguf; move all but one of them away")
    (tmp_path / "model.gguf").unlink()
    (tmp_path / vision.name).unlink()
    (tmp_path / "mmproj.gguf").write_bytes(b"GGUF" + b"\xff" * 999)
    refused("cannot load other.gguf and mmproj.gguf")


def test_the_doctor_compares_it_where_the_float_weights_lie(ours, folder):
    """Beside the embedded model's safetensors; a folder of GGUF files alone has its probe."""
    setup = Setup(choose_settings(engine="llamacpp"), cpu=True)
    setup.services = Services(setup.settings, "cpu", {"llamacpp.embedded": ours})
    finding = deep.plain_forward(setup)
    assert (finding.status, "(bound 0.01)" in finding.found) == ("pass", True)
    assert "passed its probe" in deep.probe(setup).found
    alone = Setup(choose_settings(engine="llamacpp", model=str(folder)), cpu=True)
    backend = alone.settings.summarizer.backend
    assert deep.plain_forward(alone) is None
    files = "embedded-f32.gguf, mmproj-embedded-f32.gguf"
    assert files in checks.folder(alone, backend).found
    # 5.7 million weights of 4 bytes in each part
    assert checks.weight_bytes(alone, backend) == pytest.approx(4 * 2 * 5.7e6, rel=0.01)


def test_a_folder_of_gguf_files_alone_from_python(folder, noisy_path, tmp_path):
    options = {"engine": "llamacpp", "model": str(folder), "cpu": True, "pipeline": "letters"}
    with IQA(**options) as iqa:
        assert iqa(noisy_path).model["engine"].startswith("llama.cpp")
    options["model"] = str(shutil.copytree(folder, tmp_path / "half"))
    (tmp_path / "half" / "mmproj-embedded-f32.gguf").unlink()
    with pytest.raises(VLMError, match=r"expected one mmproj\*\.gguf, got none"):
        IQA(**options)


def test_what_it_cannot_do_is_refused(folder, tmp_path, monkeypatch):
    with pytest.raises(VLMError, match="expected quantization: none, got 4bit"):
        start(folder, quantization="4bit")
    with pytest.raises(VLMError, match="llava resizes and tiles"):
        start(build("llava_siglip", tmp_path / "llava"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(VLMError, match="pip install xllamacpp"):
        start(folder)


def test_layers_that_see_all_are_every_nth(tmp_path):
    """As in the published 3B, in the embedded model, and in two that llama.cpp cannot have."""

    def pattern(full, depth, window=112):
        vision = Mock(fullatt_block_indexes=full, depth=depth, window_size=window)
        return window_pattern(vision)

    assert pattern([7, 15, 23, 31], 32) == 8
    assert pattern([0, 1, 2], 3) == 0
    with pytest.raises(VLMError, match="expected each 8th layer to see all"):
        pattern([7, 15, 24], 32)
    with pytest.raises(VLMError, match=r"expected a window_size of 112, .*got 56"):
        pattern([7, 15, 23, 31], 32, 56)
    with pytest.raises(VLMError, match="expected qwen2_5_vl, got qwen3_vl"):
        convert(build("qwen3_vl", tmp_path / "other"), tmp_path / "out", "f32")
