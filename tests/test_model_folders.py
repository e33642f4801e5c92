"""Model folders that are damaged, made by a stranger, or laid out otherwise: each bad one is refused in one sentence
that names it, before a pickle is opened or code is run."""

import json
import os
import pickle
import shutil
from pathlib import Path

import pytest
import torch
from attacks import Touch
from conftest import EMBEDDED
from families import SCORING, apart, load, plain_logprobs
from safetensors.torch import load_file, save_file

from agentic_iqa_local.config import ModelSettings
from agentic_iqa_local.nodes.prompts import ANSWER_PREFIX
from agentic_iqa_local.state import LETTERS
from agentic_iqa_local.vlm_client import VLMError
from agentic_iqa_local.vlm_client.rendering import Renderer

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


PICKLE = pickle.dumps(Touch())


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(EMBEDDED, tmp_path / "model"))


def write(folder, name, content):
    (folder / name).write_bytes(
        content if isinstance(content, bytes) else json.dumps(content).encode()
    )


def put(folder, name, *path_and_value):
    """Sets one value in a JSON file of the folder."""
    *path, value = path_and_value
    content = part = json.loads((folder / name).read_text())
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    write(folder, name, content)


def in_pickles(folder):
    (folder / WEIGHTS).unlink()
    write(folder, "pytorch_model.bin", PICKLE)


def with_index(folder, shard):
    (folder / WEIGHTS).unlink()
    write(folder, "shard.bin", PICKLE)
    write(folder, "shard.safetensors", PICKLE)
    write(folder, INDEX, {"weight_map": {"model.norm.weight": shard}})


def without_a_block(folder):
    weights = {k: v for k, v in load_file(folder / WEIGHTS).items() if "visual.blocks.3" not in k}
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})


def as_a_pipe(folder, name):
    (folder / name).unlink()
    os.mkfifo(folder / name)


def with_code(folder):
    write(folder, "evil.py", b"raise SystemExit('remote code ran')")
    put(folder, "config.json", "auto_map", {"AutoConfig": "evil.Config"})


def add(name, content):
    return lambda folder: write(folder, name, content)


def setting(section, key, value):
    return lambda folder: put(folder, "config.json", section, key, value)


SAFETENSORS = "found none; get the safetensors edition"
BAD = {
    "no folder": (shutil.rmtree, "there is none"),
    "no config.json": (lambda f: (f / "config.json").unlink(), "expected config.json, found none"),
    "config.json is a pipe": (lambda f: as_a_pipe(f, "config.json"), "expected a regular file, got a pipe"),
    "config.json is empty": (add("config.json", {}), "cannot load it"),
    "a text model": (lambda f: put(f, "config.json", "model_type", "llama"), "reads text only"),
    "weights are a pipe": (lambda f: as_a_pipe(f, WEIGHTS), "is missing or no file"),
    "only pickles": (in_pickles, SAFETENSORS),
    "cut weights": (lambda f: os.truncate(f / WEIGHTS, 10_000), "no whole safetensors file"),
    "weights are a pickle": (lambda f: with_index(f, "shard.safetensors"), "no whole safetensors file"),
    "a pickle as shard": (lambda f: with_index(f, "shard.bin"), SAFETENSORS),
    "a shard elsewhere": (lambda f: with_index(f, "../x.safetensors"), SAFETENSORS),
    "a missing shard": (lambda f: with_index(f, "a.safetensors"), "1 weight files, a.safetensors is missing"),
    "missing tensors": (without_a_block, r"\d+ weights are missing or of another shape"),
    "code": (with_code, "no auto_map, which names code"),
    "other weights": (setting("text_config", "transformers_weights", "x.bin"), "names code or other weights"),
    "an adapter": (add("adapter_config.json", {}), "merge the adapter"),
    "other sizes": (setting("vision_config", "spatial_merge_size", 0), "sizes in its config.json are not those"),
    "no heads": (setting("vision_config", "num_heads", 0), "cannot load it"),
    "endless depth": (setting("vision_config", "depth", 10**6), r"config\.json: depth is 1e\+06, expected at most"),
    "endless layers": (setting("text_config", "num_hidden_layers", 10**12), "num_hidden_layers is 1e\\+12"),
    "no chat template": (lambda f: (f / "chat_template.jinja").unlink(), "copy chat_template.jinja too"),
}  # fmt: skip


@pytest.mark.parametrize(("damage", "said"), BAD.values(), ids=BAD)
def test_a_bad_folder_is_refused_in_one_sentence(damage, said, folder, monkeypatch):
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("a pickle was opened"))
    damage(folder)
    with pytest.raises(VLMError, match=said) as caught:
        load(folder)
    assert str(folder) in str(caught.value)
    assert str(caught.value).isprintable()
    assert not Path("touched").exists()


def test_pixel_limits_that_allow_no_view_are_refused():
    with pytest.raises(VLMError, match="expected max_pixels of at least 9216"):
        load(EMBEDDED, max_pixels=500)


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "failed"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "failed"),
        ("Rate.", "expected 1 image places, got 0"),
        ("<|image_pad|><|image_pad|>", "expected 1 image places, got 2"),
    ],
)
def test_a_chat_template_that_fails_is_one_sentence(template, said, folder):
    (folder / "chat_template.jinja").write_text(template)
    with pytest.raises(VLMError, match=f"^chat template of model.*{said}") as caught:
        Renderer("model", ModelSettings(path=str(folder)), weights=False).render(SCORING, 1)
    assert "\n" not in str(caught.value)


def test_a_folder_as_qwen_published_it_answers_as_ours(folder, photo):
    """Five shards with an index, tensors named as of old, the chat template in a JSON file, a pickle beside it all."""
    crop, weights = [photo.crop((0, 0, 192, 160))], load_file(folder / WEIGHTS)
    for new, published in ("model.visual.", "visual."), ("model.language_model.", "model."):
        weights = {name.replace(new, published): value for name, value in weights.items()}
    places = {name: f"model-{i % 5 + 1:05}-of-00005.safetensors" for i, name in enumerate(weights)}
    for shard in set(places.values()):
        save_file(
            {n: weights[n] for n in weights if places[n] == shard}, folder / shard, {"format": "pt"}
        )
    write(folder, INDEX, {"metadata": {"total_size": 1}, "weight_map": places})
    (folder / WEIGHTS).unlink()
    write(folder, "pytorch_model.bin", PICKLE)
    template = folder / "chat_template.jinja"
    write(folder, "chat_template.json", {"chat_template": template.read_text()})
    template.unlink()
    read = load(folder).open(crop).read_letters(SCORING, ANSWER_PREFIX, LETTERS)
    assert apart(read, plain_logprobs(load(EMBEDDED), crop)) < 1e-4
    assert not Path("touched").exists()


def test_a_processor_without_weights_serves_the_server_engine(folder):
    (folder / WEIGHTS).unlink()
    assert Renderer("model", ModelSettings(path=str(folder)), weights=False).limits.factor > 1
    setting("text_config", "num_hidden_layers", 10**12)(folder)
    with pytest.raises(VLMError, match="expected at most 10000"):
        Renderer("model", ModelSettings(path=str(folder)), weights=False)
