"""Model folders made to do harm: each is refused in one sentence before anything in it is run, and no pickle
is opened.

The weights of a folder are safetensors inside it and nothing else; no file of it names code or files to load
besides; no size in its configuration makes a library build what the weights do not hold.
"""

import json
import os
import pickle
import shutil
import struct
from pathlib import Path

import pytest
import torch
from attacks import in_time, opened_in
from conftest import EMBEDDED
from families import build
from safetensors.torch import load_file, save_file

from agentic_iqa_local.config import load_settings
from agentic_iqa_local.config_sections import ModelSettings
from agentic_iqa_local.files import FileError, open_regular, parse_json, read_bytes, read_json
from agentic_iqa_local.levels import LETTERS
from agentic_iqa_local.nodes.prompts import ANSWER_PREFIX, DEFAULT_QUERY, summarizer_prompt
from agentic_iqa_local.studies.run import ROLES, _model_folder
from agentic_iqa_local.vlm_client import VLMError
from agentic_iqa_local.vlm_client.rendering import Renderer
from agentic_iqa_local.vlm_client.transformers_client import TransformersClient
from agentic_iqa_local.vlm_client.weight_files import read_weights

SCORING = summarizer_prompt(DEFAULT_QUERY, None, scoring=True)
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"


class OpenedPickle(BaseException):
    """No part of the product may catch it."""


@pytest.fixture(autouse=True)
def guarded(monkeypatch):
    """A folder that makes its reader wait for ever fails its test by name instead of holding up all others;
    so does a pickle."""

    def refuse(*_, **__):
        raise OpenedPickle("a pickle was opened")

    monkeypatch.setattr(torch, "load", refuse)
    with in_time():
        yield


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    """The embedded model and a tiny LLaVA, which resizes to a square where Qwen has a range of pixels."""
    folder = tmp_path_factory.mktemp("originals")
    shutil.copytree(EMBEDDED, folder / "embedded")
    build("llava_siglip", folder / "llava")
    return folder


@pytest.fixture
def outside(tmp_path, originals):
    """Files beside the model's folder: whole weights, and a pickle that leaves a trace where it is loaded."""
    folder = tmp_path / "outside"
    folder.mkdir()
    os.link(originals / "embedded" / WEIGHTS, folder / "elsewhere.safetensors")
    (folder / "evil.bin").write_bytes(pickle.dumps(Trace(tmp_path / "touched")))
    (folder / "config.json").write_text((EMBEDDED / "config.json").read_text())
    return folder


class Trace:
    """A pickle of it makes whoever loads it create a file."""

    def __init__(self, place: Path):
        self.place = place

    def __reduce__(self):
        return Path.touch, (self.place,)


def copied(original: Path, folder: Path) -> Path:
    """A copy of a sound folder, whose weights are the original's until they are replaced."""
    shutil.copytree(original, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    os.link(original / WEIGHTS, folder / WEIGHTS)
    return folder


def changed(name, *path_and_value):
    """An attack that sets one value in a JSON file of the folder."""
    *path, value = path_and_value

    def attack(folder, _):
        file = folder / name
        content = json.loads(file.read_text()) if file.exists() else {}
        part = content
        for key in path[:-1]:
            part = part.setdefault(key, {})
        part[path[-1]] = value
        file.write_text(json.dumps(content))

    return attack


def without(name, *path):
    def attack(folder, _):
        content = json.loads((folder / name).read_text())
        part = content
        for key in path[:-1]:
            part = part[key]
        del part[path[-1]]
        (folder / name).write_text(json.dumps(content))

    return attack


def written(name, content):
    """An attack that replaces a file."""

    def attack(folder, _):
        (folder / name).unlink(missing_ok=True)
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())

    return attack


def linked(name, target):
    """An attack that makes a file a link; `{outside}` stands for the folder beside the model's."""

    def attack(folder, outside):
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(target.format(outside=outside))

    return attack


def a_pipe(name):
    def attack(folder, _):
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)

    return attack


def huge(name):
    """A file of holes: 8 GiB to whoever reads it, nothing on the disk."""

    def attack(folder, _):
        (folder / name).unlink(missing_ok=True)
        (folder / name).touch()
        os.truncate(folder / name, 2**33)

    return attack


def indexed(shard, kept=False, place=None):
    """An attack whose index names `shard` for every tensor; `place` makes the shard in the folder."""

    def attack(folder, outside):
        names = list(load_file(folder / WEIGHTS))
        index = {"metadata": {"total_size": 1}, "weight_map": dict.fromkeys(names, shard.format(outside=outside) if isinstance(shard, str) else shard)}  # fmt: skip
        (folder / INDEX).write_text(json.dumps(index))
        if place:
            place(folder, outside)
        if not kept:
            (folder / WEIGHTS).unlink(missing_ok=True)
            if not any(folder.glob("*.safetensors")):  # the index alone is to be judged
                os.link(outside / "elsewhere.safetensors", folder / "other.safetensors")

    return attack


def whole_pickle(name):
    """The true weights as torch saves them: a pickle that holds nothing but tensors."""

    def place(folder, _):
        torch.save(load_file(folder / WEIGHTS), folder / name)

    return place


def evil_pickle(name):
    def place(folder, outside):
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copy(outside / "evil.bin", folder / name)

    return place


def only(place):
    """An attack that leaves nothing but what `place` makes as weights."""

    def attack(folder, outside):
        place(folder, outside)
        (folder / WEIGHTS).unlink()

    return attack


def both(*attacks):
    def attack(folder, outside):
        for each in attacks:
            each(folder, outside)

    return attack


def header(content, length=None, data=b""):
    """A weight file with this header."""
    raw = content if isinstance(content, bytes) else json.dumps(content).encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw + data


def deep(levels):
    return '{"a":' * levels + "1" + "}" * levels


TENSOR = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
DEEP_LIST = '{"a":' + "[" * 100_000 + "]" * 100_000 + "}"

ATTACKS = {
    # what an index names
    "a pickle of tensors as shard": indexed("shard.bin", place=whole_pickle("shard.bin")),
    "a .pt as shard": indexed("shard.pt", place=whole_pickle("shard.pt")),
    "a pickle that runs code as shard": indexed("shard.bin", place=evil_pickle("shard.bin")),
    "a pickle called safetensors": indexed("shard.safetensors", place=evil_pickle("shard.safetensors")),
    "a pickle as shard beside whole weights": indexed("shard.bin", kept=True, place=whole_pickle("shard.bin")),
    "a shard above the folder": indexed("../outside/elsewhere.safetensors"),
    "a shard by an absolute path": indexed("{outside}/elsewhere.safetensors"),
    "a shard through a link": indexed("shard.safetensors", place=linked("shard.safetensors", "{outside}/elsewhere.safetensors")),
    "a shard through a relative link": indexed("shard.safetensors", place=linked("shard.safetensors", "../outside/elsewhere.safetensors")),
    "a shard behind a linked folder": indexed("sub/elsewhere.safetensors", place=linked("sub", "{outside}")),
    "a shard in the folder by a detour": indexed("../model/other.safetensors"),
    "a shard with a backslash": indexed("..\\elsewhere.safetensors"),
    "a shard with a null byte": indexed("a\0.safetensors"),
    "a shard without a name": indexed(""),
    "a shard called by its suffix alone": indexed(".safetensors"),
    "a number as shard": indexed(7),
    "null as shard": indexed(None),
    "a list as shard": indexed(["other.safetensors"]),
    "a shard that is a folder": indexed("shard.safetensors", place=lambda folder, _: (folder / "shard.safetensors").mkdir()),
    "a shard that is a pipe": indexed("shard.safetensors", place=a_pipe("shard.safetensors")),
    "a shard that is a device": indexed("shard.safetensors", place=linked("shard.safetensors", "/dev/zero")),
    "a shard that is missing": indexed("model-00001-of-00002.safetensors"),
    "an empty index": both(indexed("x"), written(INDEX, "")),
    "an index of nothing": both(indexed("x"), written(INDEX, '{"metadata": {}, "weight_map": {}}')),
    "an index that is a list": both(indexed("x"), written(INDEX, "[]")),
    "an index whose map is a list": both(indexed("x"), written(INDEX, '{"metadata": {}, "weight_map": ["other.safetensors"]}')),
    "an index that is nested": both(indexed("x"), written(INDEX, DEEP_LIST)),
    "an index that is a pipe": both(indexed("x"), a_pipe(INDEX)),
    "an index that is a device": both(indexed("x"), linked(INDEX, "/dev/zero")),
    "an index of 8 GiB": both(indexed("x"), huge(INDEX)),
    "a pickles' index alone": only(both(evil_pickle("shard.bin"), written("pytorch_model.bin.index.json", '{"metadata": {}, "weight_map": {"a": "shard.bin"}}'))),
    "a pickle alone": only(evil_pickle("pytorch_model.bin")),
    "a consolidated pickle alone": only(evil_pickle("consolidated.00.pth")),
    # the weights
    "weights that are a pickle": lambda folder, outside: written(WEIGHTS, (outside / "evil.bin").read_bytes())(folder, outside),
    "weights through a link": linked(WEIGHTS, "{outside}/elsewhere.safetensors"),
    "weights through a link to nowhere": linked(WEIGHTS, "nowhere.safetensors"),
    "weights through a link to themselves": linked(WEIGHTS, WEIGHTS),
    "weights that are a pipe": a_pipe(WEIGHTS),
    "weights that are a device": linked(WEIGHTS, "/dev/zero"),
    "weights of holes": huge(WEIGHTS),
    "no bytes of weights": written(WEIGHTS, b""),
    "a header longer than the file": written(WEIGHTS, header({"a": TENSOR}, length=10_000, data=bytes(8))),
    "a header of 2^63 bytes": written(WEIGHTS, header({"a": TENSOR}, length=2**63, data=bytes(8))),
    "a header of no bytes": written(WEIGHTS, header(b"", length=0, data=bytes(8))),
    "a header that is no JSON": written(WEIGHTS, header(b"\xff" * 20, data=bytes(8))),
    "a header that is a list": written(WEIGHTS, header([], data=bytes(8))),
    "a header that is nested": written(WEIGHTS, header(DEEP_LIST.encode(), data=bytes(8))),
    "a tensor that is a text": written(WEIGHTS, header({"a": "F32"}, data=bytes(8))),
    "a tensor of an unknown type": written(WEIGHTS, header({"a": TENSOR | {"dtype": "OBJECT"}}, data=bytes(8))),
    "a tensor whose type is a list": written(WEIGHTS, header({"a": TENSOR | {"dtype": []}}, data=bytes(8))),
    "a tensor behind the file's end": written(WEIGHTS, header({"a": TENSOR | {"data_offsets": [8, 16]}}, data=bytes(8))),
    "a tensor before the file's start": written(WEIGHTS, header({"a": TENSOR | {"data_offsets": [-8, 0]}}, data=bytes(8))),
    "a tensor that ends before it begins": written(WEIGHTS, header({"a": TENSOR | {"data_offsets": [8, 0]}}, data=bytes(8))),
    "a tensor larger than its place": written(WEIGHTS, header({"a": TENSOR | {"shape": [2**40, 2**40]}}, data=bytes(8))),
    "a tensor of a negative side": written(WEIGHTS, header({"a": TENSOR | {"shape": [-1, -2]}}, data=bytes(8))),
    "a tensor of half a side": written(WEIGHTS, header({"a": TENSOR | {"shape": [2.0]}}, data=bytes(8))),
    "a tensor of a thousand sides": written(WEIGHTS, header({"a": TENSOR | {"shape": [1] * 999 + [2]}}, data=bytes(8))),
    "a tensor whose name is a book": written(WEIGHTS, header({"a.1" * 100_000: TENSOR}, data=bytes(8))),
    "bytes that no tensor has": written(WEIGHTS, header({"a": TENSOR}, data=bytes(4096))),
    "a second weight file that is a pickle": evil_pickle("more.safetensors"),
    "a second weight file that leads out": linked("more.safetensors", "{outside}/elsewhere.safetensors"),
    "a piece of a training, which transformers prefers": lambda folder, _: os.link(folder / WEIGHTS, folder / "shard-00001-model-00001-of-00001.safetensors"),
    "weights of another name": lambda folder, _: (folder / WEIGHTS).rename(folder / "other.safetensors"),
    # what settings name
    "other weights by name": both(evil_pickle("adapter_model.bin"), changed("config.json", "transformers_weights", "adapter_model.bin")),
    "other weights inside": both(lambda folder, _: os.link(folder / WEIGHTS, folder / "b.safetensors"), changed("config.json", "transformers_weights", "b.safetensors")),
    "an adapter": both(evil_pickle("adapter_model.bin"), written("adapter_config.json", '{"peft_type": "LORA", "base_model_name_or_path": "/etc"}')),
    "code for the model": both(written("evil.py", "open('touched', 'w')"), changed("config.json", "auto_map", {"AutoConfig": "evil.Config", "AutoModelForImageTextToText": "evil.Model"})),
    "code for a part of the model": changed("config.json", "vision_config", "auto_map", {"AutoModel": "evil.Model"}),
    "code for the processor": changed("processor_config.json", "auto_map", {"AutoProcessor": "evil.Processor"}),
    "code for the image processor": changed("processor_config.json", "image_processor", "auto_map", {"AutoImageProcessor": "evil.Images"}),
    "code for the tokenizer": changed("tokenizer_config.json", "auto_map", {"AutoTokenizer": ["evil.Tokenizer", None]}),
    "code from another repository": changed("config.json", "auto_map", {"AutoConfig": "someone/else--evil.Config"}),
    "another model for sounds": both(evil_pickle("sound/pytorch_model.bin"), changed("processor_config.json", "audio_tokenizer", {"audio_tokenizer_class": "DacModel", "audio_tokenizer_name_or_path": "sound"})),
    "another model for sounds in a file": written("audio_tokenizer_config.json", '{"audio_tokenizer_class": "DacModel", "audio_tokenizer_name_or_path": "/tmp"}'),
    "a backbone from a pickle": both(evil_pickle("evil.bin"), changed("config.json", "vision_config", {"model_type": "timm_wrapper", "architecture": "resnet18", "model_args": {"checkpoint_path": "evil.bin"}})),
    "a backbone from a folder": changed("config.json", "vision_config", {"model_type": "timm_wrapper", "architecture": "local-dir:/tmp/evil"}),
    "attention from a repository": changed("config.json", "attn_implementation", "someone/kernel"),
    "attention of a part from a repository": changed("config.json", "_attn_implementation", {"vision_config": "someone/kernel:run"}),
    "a tokenizer elsewhere": changed("tokenizer_config.json", "fast_tokenizer_files", ["tokenizer./../../outside/x.4.0.0.json"]),
    "a quantisation that is a text": changed("config.json", "quantization_config", "evil"),
    "a quantisation whose method is a list": changed("config.json", "quantization_config", {"quant_method": []}),
    "a class of transformers that is no processor": changed("processor_config.json", "processor_class", "Trainer"),
    "a class that there is not": changed("processor_config.json", "image_processor", "image_processor_type", "os.system"),
    "a class that is a number": changed("processor_config.json", "image_processor", "image_processor_type", 7),
    # links out of the folder
    **{f"{name} outside": linked(name, "{outside}/config.json") for name in ("config.json", "tokenizer_config.json", "generation_config.json", "tokenizer.json", "chat_template.jinja")},
    "a chat template outside": both(lambda folder, _: (folder / "additional_chat_templates").mkdir(), linked("additional_chat_templates/x.jinja", "/etc/passwd")),
    "chat templates in a folder outside": linked("additional_chat_templates", "{outside}"),
    "a chat template that is a pipe": both(lambda folder, _: (folder / "additional_chat_templates").mkdir(), a_pipe("additional_chat_templates/x.jinja")),
    # odd files
    **{f"a pipe as {name}": a_pipe(name) for name in ("config.json", "generation_config.json", "processor_config.json", "preprocessor_config.json", "tokenizer_config.json", "tokenizer.json", "special_tokens_map.json", "chat_template.jinja", "vocab.json", "merges.txt")},
    **{f"a device as {name}": linked(name, "/dev/zero") for name in ("config.json", "tokenizer_config.json", "tokenizer.json", "added_tokens.json")},
    **{f"8 GiB as {name}": huge(name) for name in ("config.json", "generation_config.json", "tokenizer_config.json", "tokenizer.json", "chat_template.jinja", "merges.txt")},
    **{f"{name} nested": written(name, DEEP_LIST) for name in ("config.json", "generation_config.json", "processor_config.json", "tokenizer_config.json", "tokenizer.json", "special_tokens_map.json", "chat_template.json")},
    **{f"{name} a list": written(name, "[1]") for name in ("config.json", "generation_config.json", "processor_config.json", "tokenizer_config.json", "tokenizer.json")},
    **{f"{name} no text": written(name, b"\xff\xfe{}") for name in ("config.json", "processor_config.json", "tokenizer_config.json", "tokenizer.json", "chat_template.jinja")},
    **{f"{name} of no bytes": written(name, "") for name in ("config.json", "generation_config.json", "tokenizer_config.json", "tokenizer.json")},
    "config.json a folder": both(lambda folder, _: (folder / "config.json").unlink(), lambda folder, _: (folder / "config.json").mkdir()),
    "a number of a million digits": written("config.json", '{"model_type": "qwen2_5_vl", "x": ' + "9" * 1_000_000 + "}"),
    "a level of 65 in config.json": written("config.json", deep(65)),
    # sizes
    **{f"{value!r:.20} as the text's {key}": changed("config.json", "text_config", key, value) for key, value in [
        ("num_hidden_layers", 1_000_000), ("num_hidden_layers", 10**18), ("num_hidden_layers", 7), ("num_hidden_layers", 0), ("num_hidden_layers", -6), ("num_hidden_layers", "6"),
        ("num_hidden_layers", 6.5), ("num_hidden_layers", True), ("num_hidden_layers", [6]), ("num_hidden_layers", {}),
        ("num_attention_heads", 0), ("num_attention_heads", -4), ("num_attention_heads", "4"), ("num_attention_heads", 3), ("num_key_value_heads", 0), ("num_key_value_heads", 3),
        ("hidden_size", 0), ("hidden_size", -256), ("hidden_size", "256"), ("hidden_size", 2**31 - 1), ("hidden_size", 10**6), ("hidden_size", 257),
        ("intermediate_size", 0), ("intermediate_size", 10**9), ("intermediate_size", "768"), ("vocab_size", 0), ("vocab_size", 10**9), ("vocab_size", -1), ("head_dim", 0), ("head_dim", 10**8),
        ("hidden_act", "system"), ("rms_norm_eps", "tiny"), ("layer_types", ["full_attention"] * 100_000), ("layer_types", ["evil"] * 6), ("rope_parameters", "none"), ("rope_parameters", {"rope_type": "evil"}),
    ]},
    **{f"{value!r:.20} as the tower's {key}": changed("config.json", "vision_config", key, value) for key, value in [
        ("depth", 1_000_000), ("depth", 7), ("depth", 0), ("depth", -1), ("depth", "6"), ("num_heads", 0), ("num_heads", 7), ("hidden_size", 10**9), ("hidden_size", 0), ("hidden_size", "256"),
        ("patch_size", 0), ("patch_size", 10**6), ("patch_size", "16"), ("spatial_merge_size", 0), ("temporal_patch_size", 0), ("window_size", 0), ("out_hidden_size", 10**6), ("in_channels", 10**7),
        ("intermediate_size", -512), ("fullatt_block_indexes", [0] * 100_000),
    ]},
    **{f"a {key} that is {value!r}": changed("config.json", key, value) for key, value in [("text_config", []), ("text_config", "x"), ("vision_config", 7), ("vision_config", [[]]), ("model_type", 7), ("model_type", ["qwen2_5_vl"]), ("model_type", "evil"), ("model_type", "llama"), ("dtype", "evil"), ("dtype", 7), ("architectures", 7)]},
    "config.json with nothing": written("config.json", "{}"),
    "config.json with a type alone": written("config.json", '{"model_type": "qwen2_5_vl"}'),
    "no model_type": without("config.json", "model_type"),
    "no depth of the tower": without("config.json", "vision_config", "depth"),
    "no layers of the text": without("config.json", "text_config", "num_hidden_layers"),
    "no width of the text": without("config.json", "text_config", "hidden_size"),
    "no tower": without("config.json", "vision_config"),
    "no text": without("config.json", "text_config"),
    # the image processor
    **{f"{value!r} as the images' {key}": changed("processor_config.json", "image_processor", key, value) for key, value in [
        ("patch_size", 0), ("patch_size", "16"), ("patch_size", 10**9), ("merge_size", 0), ("merge_size", -2), ("temporal_patch_size", 0),
        ("size", {"shortest_edge": 10**12, "longest_edge": 10**13}), ("size", {"shortest_edge": "9216", "longest_edge": "262144"}), ("size", {"shortest_edge": -1, "longest_edge": -1}), ("size", [1]), ("size", "large"),
    ]},
}  # fmt: skip
ON_LLAVA = {
    "a square of a million": changed(
        "processor_config.json", "image_processor", "size", {"height": 10**6, "width": 10**6}
    ),
    "a square without sides": changed(
        "processor_config.json", "image_processor", "size", {"height": 0, "width": 0}
    ),
    "a million layers of the tower": changed("config.json", "vision_config", "num_hidden_layers", 10**6),
    "a million layers of the text": changed("config.json", "text_config", "num_hidden_layers", 10**6),
    "no heads of the tower": changed("config.json", "vision_config", "num_attention_heads", 0),
    "a tower as wide as a house": changed("config.json", "vision_config", "hidden_size", 10**8),
    "a picture of a million places": changed("config.json", "vision_config", "image_size", 10**8),
    "a tower of another family": changed("config.json", "vision_config", "model_type", "evil"),
    "a text model that reads a pickle": both(
        evil_pickle("evil.bin"), changed("config.json", "text_config", "transformers_weights", "evil.bin")
    ),
}


def refused(folder: Path, trace: Path) -> str:
    """The sentence with which `folder` is refused."""
    with pytest.raises(VLMError) as caught:
        TransformersClient("stranger", ModelSettings(path=str(folder)), "cpu")
    message = str(caught.value)
    assert message.startswith(f"model folder {folder}: ")
    assert message.isprintable()
    assert len(message.replace(str(folder), "")) < 500
    assert not trace.exists()
    return message


@pytest.mark.parametrize("name", ATTACKS)
def test_a_hostile_folder_is_refused_in_one_sentence(name, originals, outside, tmp_path):
    folder = copied(originals / "embedded", tmp_path / "model")
    ATTACKS[name](folder, outside)
    refused(folder, tmp_path / "touched")


@pytest.mark.parametrize("name", ON_LLAVA)
def test_a_hostile_folder_of_another_family_is_refused_in_one_sentence(name, originals, outside, tmp_path):
    folder = copied(originals / "llava", tmp_path / "model")
    ON_LLAVA[name](folder, outside)
    refused(folder, tmp_path / "touched")


# --- sound folders, those of tests/families.py apart: test_other_architectures.py loads them


def published(original: Path, folder: Path) -> Path:
    """A tiny model laid out as Qwen2.5-VL-7B-Instruct is published: five shards with an index, the text's
    sizes at the top of config.json, the tokenizer as vocab.json and merges.txt too, the chat template in a
    JSON file, no processor_config.json.
    """
    folder.mkdir()
    config = json.loads((original / "config.json").read_text())
    text = config.pop("text_config")
    rope = text.pop("rope_parameters")
    text |= {
        "rope_theta": rope["rope_theta"],
        "rope_scaling": {"type": "mrope", "mrope_section": rope["mrope_section"]},
    }
    del text["layer_types"]
    (folder / "config.json").write_text(
        json.dumps(text | config | {"torch_dtype": "float32", "transformers_version": "4.41.2"})
    )
    processor = json.loads((original / "processor_config.json").read_text())
    (folder / "preprocessor_config.json").write_text(
        json.dumps(
            processor["image_processor"]
            | {
                "processor_class": "Qwen2_5_VLProcessor",
                "min_pixels": 4096,
                "max_pixels": 65536,
            }
        )
    )
    tokenizer = json.loads((original / "tokenizer.json").read_text())["model"]
    (folder / "vocab.json").write_text(json.dumps(tokenizer["vocab"]))
    merges = "\n".join(" ".join(pair) for pair in tokenizer["merges"])
    (folder / "merges.txt").write_text(f"#version: 0.2\n{merges}\n")
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(original / name, folder)
    (folder / "chat_template.json").write_text(
        json.dumps({"chat_template": (original / "chat_template.jinja").read_text()})
    )
    weights = {
        name.replace("model.visual.", "visual.").replace("model.language_model.", "model."): value
        for name, value in load_file(original / WEIGHTS).items()
    }
    places = {name: f"model-{i % 5 + 1:05}-of-00005.safetensors" for i, name in enumerate(sorted(weights))}
    for shard in sorted(set(places.values())):
        save_file(
            {name: weights[name] for name in weights if places[name] == shard},
            folder / shard,
            metadata={"format": "pt"},
        )
    (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": places}))
    return folder


@pytest.fixture(scope="module")
def qwen(tmp_path_factory):
    folder = tmp_path_factory.mktemp("qwen") / "tiny"
    build("qwen2_5_vl", folder)
    return folder


def letters(folder, photo):
    client = TransformersClient("tiny", ModelSettings(path=str(folder)), "cpu")
    return client.open([photo.crop((0, 0, 192, 160))]).read_letters(SCORING, ANSWER_PREFIX, LETTERS).logprobs


def test_the_published_layout_of_qwen_loads_and_answers_as_the_plain_one(qwen, tmp_path, photo):
    folder = published(qwen, tmp_path / "published")
    assert len(list(folder.glob("*.safetensors"))) == 5
    assert letters(folder, photo) == pytest.approx(letters(qwen, photo), abs=1e-5)


def test_a_shard_of_the_published_layout_that_is_no_safetensors_is_refused(qwen, outside, tmp_path):
    folder = published(qwen, tmp_path / "published")
    shutil.copy(outside / "evil.bin", folder / "model-00003-of-00005.safetensors")
    assert "'model-00003-of-00005.safetensors' is no whole safetensors file" in refused(
        folder, tmp_path / "touched"
    )


def test_links_inside_a_folder_are_followed(qwen, tmp_path):
    """A folder laid out with links to a store of its own, as some tools write them: nothing outside is
    reached."""
    folder = copied(qwen, tmp_path / "model")
    (folder / "blobs").mkdir()
    for name in (WEIGHTS, "config.json"):
        (folder / name).rename(folder / "blobs" / f"0{name}")
        (folder / name).symlink_to(f"blobs/0{name}")
    (tmp_path / "alias").symlink_to(folder)  # the user's own link to the whole folder
    assert Renderer("tiny", ModelSettings(path=str(tmp_path / "alias"))).weights.numbers > 0


def test_pickles_beside_whole_weights_are_left_alone(qwen, outside, tmp_path):
    """Many makers publish both. `guarded` fails the test if one is opened."""
    folder = copied(qwen, tmp_path / "model")
    for name in ("pytorch_model.bin", "consolidated.00.pth", "training_args.bin"):
        evil_pickle(name)(folder, outside)
    written(
        "pytorch_model.bin.index.json", json.dumps({"metadata": {}, "weight_map": {"a": "pytorch_model.bin"}})
    )(folder, outside)
    TransformersClient("tiny", ModelSettings(path=str(folder)), "cpu")
    assert not (tmp_path / "touched").exists()


def test_what_the_headers_say(tmp_path):
    """Two rows of layers, of three and two; 3·2·4 + 2·5 numbers."""
    tensors = {f"model.layers.{i}.weight": torch.zeros(2, 4) for i in range(3)}
    tensors |= {f"visual.blocks.{i}.norm": torch.zeros(5) for i in (0, 900)}
    save_file(tensors, tmp_path / WEIGHTS)
    weights = read_weights(tmp_path)
    assert weights.files == (tmp_path / WEIGHTS,)
    assert weights.layers == 3
    assert weights.widths == {2, 4, 5}
    assert weights.numbers == 34


def test_a_processor_without_weights_is_examined_too(originals, outside, tmp_path):
    """As the server engine reads it: the weights are the server's."""
    folder = copied(originals / "embedded", tmp_path / "model")
    (folder / WEIGHTS).unlink()
    assert Renderer("tiny", ModelSettings(path=str(folder)), weights=False).weights is None
    for name in ("a pipe as config.json", "1000000 as the tower's depth", "code for the model"):
        (folder / "config.json").unlink()
        shutil.copy(EMBEDDED / "config.json", folder)
        ATTACKS[name](folder, outside)
        with pytest.raises(VLMError, match=r"^model folder "):
            Renderer("tiny", ModelSettings(path=str(folder)), weights=False)


@pytest.mark.parametrize("name", ["config.json", WEIGHTS, "other.txt"])
def test_a_study_does_not_wait_for_the_folder_that_it_is_to_describe(name, originals, outside, tmp_path):
    folder = copied(originals / "embedded", tmp_path / "model")
    a_pipe(name)(folder, outside)
    with pytest.raises(VLMError, match="expected a regular file, got a pipe"):
        _model_folder(load_settings().with_options(model=str(folder)), ROLES["agent"][0])


TEMPLATES = {
    "an error of its own": "{{ raise_exception('no') }}",
    "arithmetic": "{{ 1 // 0 }}",
    "endless recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "a class's subclasses": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "a large number": "{{ 10 ** 10 ** 4 }}",
    "no template": "{% for %}",
    "a file": "{% include '/etc/passwd' %}",
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_chat_template_that_fails_is_one_sentence(name, qwen, tmp_path):
    folder = copied(qwen, tmp_path / "model")
    (folder / "chat_template.jinja").write_text(TEMPLATES[name])
    renderer = Renderer("tiny", ModelSettings(path=str(folder)))
    with pytest.raises(VLMError, match=r"^chat template of tiny") as caught:
        renderer.render(SCORING, 1)
    assert "\n" not in str(caught.value)


# --- the reader of small files


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "expected JSON, got something else"),
        (b"[1]", "expected a JSON object, got a list"),
        (b"null", "expected a JSON object, got null"),
        (b"true", "expected a JSON object, got true or false"),
        (b"1e5", "expected a JSON object, got a number"),
        (b'"x"', "expected a JSON object, got a text"),
        (b"\xff", "expected JSON, got something else"),
        (b"\xef\xbb\xbf{}", "expected JSON, got something else"),
        (deep(65).encode(), "expected JSON nested at most 64 deep"),
        (deep(100_000).encode(), "expected JSON nested at most 64 deep"),
        (b'{"a": ' + b"9" * 10_000 + b"}", "expected JSON, got something else"),
    ],
)
def test_what_is_no_small_json_object_is_refused(content, said):
    with pytest.raises(FileError, match=said):
        parse_json(content)


def test_json_at_the_limits_is_read(tmp_path):
    """64 objects in each other, in a file of exactly as many bytes as are allowed."""
    file = tmp_path / "a.json"
    file.write_text(deep(64))
    assert read_json(file, largest=len(deep(64))) == json.loads(deep(64))
    with pytest.raises(FileError, match="expected at most"):
        read_json(file, largest=len(deep(64)) - 1)


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/dev/zero", "expected a regular file, got a device"),
        ("/dev/null", "expected a regular file, got a device"),
        ("/", "expected a regular file, got a folder"),
        ("/nowhere/at/all", "expected a file that can be read, got No such file"),
        ("a\0b", "expected a file that can be read"),
        ("x" * 5000, "expected a file that can be read, got File name too long"),
    ],
)
def test_what_is_no_regular_file_is_not_waited_for(path, said):
    with pytest.raises(FileError, match=said):
        read_bytes(path)


def test_a_pipe_is_neither_waited_for_nor_kept_open(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileError, match="expected a regular file, got a pipe"):
        open_regular(tmp_path / "pipe")
    assert opened_in(tmp_path) == []


def test_a_file_of_the_kernels_that_says_it_is_empty_is_limited():
    """/proc/self/maps has size 0 and thousands of bytes."""
    assert os.stat("/proc/self/maps").st_size == 0
    with pytest.raises(FileError, match="expected at most 100 bytes, got more"):
        read_bytes("/proc/self/maps", largest=100)
