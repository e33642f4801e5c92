"""A model folder's files, examined before any library opens them. Nothing here imports torch or transformers.

Whoever made the folder is not trusted: weights are safetensors inside the folder and nothing else, no file
names code or files to load besides, and no size in config.json makes a library build what the weights do not
hold.
"""

import functools
import itertools
import json
import math
import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentic_iqa_local.files import FileError, open_regular, parse_json, read_json, walk
from agentic_iqa_local.paths import about_missing_model
from agentic_iqa_local.vlm_client import VLMError

INDEX = "model.safetensors.index.json"
AGAIN = "copy the folder again from its maker"
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
# What transformers and vLLM read as JSON by themselves where it is there; tokenizers are parsed by libraries
# with limits of their own.
SETTINGS = (
    "config.json",
    "generation_config.json",
    "processor_config.json",
    "preprocessor_config.json",
    "video_preprocessor_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.json",
    "hf_quant_config.json",
)
TEXTS = (".json", ".txt", ".jinja", ".model", ".tiktoken")
LARGEST_TEXT = 128 * 2**20  # tokenizer.json of vocabularies of 260 thousand tokens: 35 MB
LARGEST_INDEX = 16 * 2**20  # the index of 90 thousand tensors: 9 MB
LARGEST_HEADER = 16 * 2**20
LONGEST_NAME = 500  # of a tensor
LONGEST_LIST = 4096  # in config.json: layers, grids and modules are listed there, one by one
# They make transformers or vLLM load code, weights or files that nobody has looked at; vLLM once ran what a
# nested auto_map names though it was told to trust none (CVE-2025-66448).
OTHER_SOURCES = {
    "auto_map": "names code to run",
    "custom_pipelines": "names code to run",
    "custom_generate": "names code to run",
    "kernel_config": "names code to run",
    "use_kernels": "asks for code to run",
    "transformers_weights": "names other weights",
    "checkpoint_path": "names other weights",
    "pretrained_cfg": "names other weights",
    "pretrained_cfg_overlay": "names other weights",
    "use_pretrained_backbone": "asks for other weights",
    "audio_tokenizer": "names another model",
    "base_model_name_or_path": "names another model",
    "fast_tokenizer_files": "names other files",
    "class_info_file": "names other files",
}
NAMES_ALONE = {
    "attn_implementation",
    "_attn_implementation",
    "experts_implementation",
    "architecture",
    "backbone",
}
OTHER_FILES = {
    "adapter_config.json": "an adapter, whose weights would be loaded too; merge it into the weights",
    "audio_tokenizer_config.json": "another model beside this one; use a vision-language model",
}
SHARDS_OF_TRAINING = re.compile(r"shard-\d{5}-model-\d{5}-of-\d{5}\.safetensors")
SIZES = {
    "hidden_size", "embed_dim", "intermediate_size", "out_hidden_size", "num_attention_heads", "num_heads", "num_key_value_heads",
    "head_dim", "vocab_size", "num_hidden_layers", "depth", "patch_size", "temporal_patch_size", "spatial_merge_size", "merge_size",
    "image_size", "num_channels", "in_channels", "in_chans", "max_position_embeddings", "window_size", "num_position_embeddings",
}  # fmt: skip
WIDTHS = {"hidden_size", "embed_dim"}
LAYERS = {"num_hidden_layers", "depth"}
HEADS = {"num_attention_heads", "num_heads"}
PARTS = {*HEADS, "num_key_value_heads", "head_dim", "intermediate_size"}
LARGEST_SIZE = 2**31 - 1
MOST_LAYERS = 1024
# Bits of a number of each type that the safetensors format knows.
BITS = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6} | {
    name: bits
    for bits, names in {
        8: "BOOL U8 I8 F8_E5M2 F8_E4M3 F8_E8M0 F8_E4M3FNUZ F8_E5M2FNUZ",
        16: "I16 U16 F16 BF16",
        32: "I32 U32 F32",
        64: "I64 U64 F64 C64",
    }.items()
    for name in names.split()
}


@dataclass(frozen=True)
class Weights:
    """What the headers of a folder's weight files say: each tensor's shape."""

    files: tuple[Path, ...]
    shapes: Mapping[str, tuple[int, ...]]

    @functools.cached_property
    def layers(self) -> int:
        """How many layers the longest row has: tensors of one are named by their place in it
        (`model.layers.27.…`)."""
        rows = defaultdict(set)
        for name in self.shapes:
            # a layer, and an expert in it
            for place in itertools.islice(re.finditer(r"\.([0-9]+)\.", name), 4):
                rows[name[: place.start()]].add(place[1])
        return max(map(len, rows.values()), default=0)

    @functools.cached_property
    def widths(self) -> frozenset[int]:
        """Every length of a side of a tensor."""
        return frozenset(side for shape in self.shapes.values() for side in shape)

    @functools.cached_property
    def numbers(self) -> int:
        """How many numbers all tensors hold together."""
        return sum(map(math.prod, self.shapes.values()))


def examine(folder: Path, weights: bool = True) -> Weights | None:
    """Raises VLMError unless everything that a library would open in `folder` is what it should be; with
    `weights` what their headers say. Links are followed to files inside the folder only."""
    if not os.path.isdir(folder):
        raise VLMError(*about_missing_model(folder))
    names = _files(folder)
    if "config.json" not in names:
        raise VLMError(
            f"model folder {folder}: expected config.json, found none; this is no transformers model"
        )
    for name, kind in OTHER_FILES.items():
        if name in names:
            raise VLMError(f"model folder {folder}: expected no {name}, which makes it {kind}")
    for name in names:
        if name in SETTINGS:
            _check_sources(folder, name, _read(folder, name))
        elif name.endswith(TEXTS) and (size := (folder / name).stat().st_size) > LARGEST_TEXT:
            raise VLMError(
                f"model folder {folder}: {name!r}: expected at most {LARGEST_TEXT} bytes, got {size}",
                AGAIN,
            )
    _check_sizes(folder, _read(folder, "config.json"))
    return read_weights(folder) if weights else None


def _files(folder: Path) -> list[str]:
    """The names of the files in `folder` and of its chat templates. Raises VLMError for what is neither file
    nor folder, and for links that lead out."""
    names = []
    try:
        inside, templates = folder.resolve(), folder / "additional_chat_templates"
        places = [*folder.iterdir(), *(templates.iterdir() if templates.is_dir() else ())]
    except OSError as error:
        raise VLMError(
            f"model folder {folder}: expected a folder that can be read, got {error.strerror}", AGAIN
        ) from error
    for place in places:
        name = str(place.relative_to(folder))
        try:
            if not place.resolve(strict=True).is_relative_to(inside):
                raise FileError(
                    "expected a file of the folder, got a link that leads out of it (cp -rL copies what it"
                    " leads to)"
                )
            if not place.is_dir():
                os.close(open_regular(place))
                names.append(name)
        except FileError as error:
            raise VLMError(f"model folder {folder}: {name!r}: {error}", AGAIN) from error
        except (OSError, RuntimeError) as error:  # RuntimeError: a link that leads to itself
            raise VLMError(
                f"model folder {folder}: {name!r}: expected a file, got a link that leads nowhere", AGAIN
            ) from error
    return sorted(names)


def _read(folder: Path, name: str, largest: int | None = None) -> dict[str, Any]:
    try:
        return read_json(folder / name) if largest is None else read_json(folder / name, largest)
    except FileError as error:
        raise VLMError(f"model folder {folder}: {name} cannot be used: {error}", AGAIN) from error


def _check_sources(folder: Path, name: str, settings: dict[str, Any]) -> None:
    """Raises VLMError for settings that name code, weights or files besides those of the folder."""
    for part, _ in walk(settings):
        for key, value in part.items() if isinstance(part, dict) else ():
            if key in OTHER_SOURCES and value not in (None, False, {}, []):
                raise VLMError(
                    f"model folder {folder}: {name}: expected no {key}, which {OTHER_SOURCES[key]}",
                    "use an edition of the model that transformers loads by itself",
                )
            if key in NAMES_ALONE and value is not None and not _is_name(value):
                raise VLMError(
                    f"model folder {folder}: {name}: expected a plain name as {key}, got {_short(value)}",
                    AGAIN,
                )


def _is_name(value: Any) -> bool:
    if isinstance(value, dict):  # one for each part of the model
        return all(x is None or _is_name(x) for x in value.values())
    return isinstance(value, str) and re.fullmatch(r"[A-Za-z0-9_.]+", value) is not None


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:80]}…"


def _check_sizes(folder: Path, config: dict[str, Any]) -> None:
    """Raises VLMError for sizes in config.json that are no sizes, before transformers calculates with
    them."""

    def refuse(what: str, value: Any) -> None:
        raise VLMError(f"model folder {folder}: config.json: expected {what}, got {_short(value)}", AGAIN)

    for key in ("text_config", "vision_config"):
        if not isinstance(config.get(key) or {}, dict):
            refuse(f"an object as {key}", config[key])
    for part, _ in walk(config):
        if len(part) > LONGEST_LIST:
            refuse(f"lists and objects of at most {LONGEST_LIST} entries", f"one of {len(part)}")
        for key, value in part.items() if isinstance(part, dict) else ():
            if key in ("model_type", "quant_method") and not isinstance(value, str):
                refuse(f"a text as {key}", value)
            if key == "quantization_config" and value is not None and not isinstance(value, dict):
                refuse(f"an object as {key}", value)
            if key == "architectures" and not (
                value is None or (isinstance(value, list) and all(isinstance(x, str) for x in value))
            ):
                refuse(f"a list of texts as {key}", value)
            for number in value if isinstance(value, list) else [value]:
                if (
                    key in SIZES
                    and number is not None
                    and (type(number) is not int or not 1 <= number <= LARGEST_SIZE)
                ):
                    refuse(f"a whole number from 1 to {LARGEST_SIZE} as {key}", value)
                if _counts_layers(key) and type(number) is int and number > MOST_LAYERS:
                    refuse(f"at most {MOST_LAYERS} as {key}", value)
                if type(number) is int and abs(number) >= 2**63:
                    refuse(f"a number of 64 bits as {key}", value)


def _counts_layers(key: str) -> bool:
    return key.endswith(("layers", "depth", "depths")) and not key.startswith("max_")


def check_against_weights(folder: Path, config: Mapping[str, Any], weights: Weights) -> None:
    """Raises VLMError where `config`, with all that transformers fills in, has more layers or other widths
    than the weights.

    Heads of another number that divides the width cannot be told: no header names them.
    """

    def refuse(key: str, value: int, what: str) -> None:
        raise VLMError(
            f"model folder {folder}: expected config.json to describe its weights, got {value} as {key},"
            f" {what}",
            AGAIN,
        )

    widest = max(weights.widths, default=0)
    for part, _ in walk(config):
        sizes = (
            {key: value for key, value in part.items() if type(value) is int}
            if isinstance(part, dict)
            else {}
        )
        for key in sizes.keys() & LAYERS:
            if sizes[key] > weights.layers:
                refuse(key, sizes[key], f"where the longest row of layers has {weights.layers}")
        for key in sizes.keys() & WIDTHS if sizes.keys() & LAYERS else ():
            if sizes[key] not in weights.widths:
                refuse(key, sizes[key], "which no tensor has as a side")
        for key in sizes.keys() & PARTS:
            if sizes[key] > widest:
                refuse(key, sizes[key], f"where no side of a tensor is longer than {widest}")
        width = sizes.get("embed_dim") or sizes.get("hidden_size")
        for key in sizes.keys() & HEADS if width and "head_dim" not in sizes else ():
            if width % sizes[key]:
                refuse(key, sizes[key], f"which does not divide the width {width}")


def read_weights(folder: Path) -> Weights:
    """The headers of the files that transformers would load; those of other *.safetensors, which vLLM would
    load, are read too.

    Raises VLMError for weights that are no safetensors inside `folder`.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        pickles = sorted(p.name for p in folder.iterdir() if p.suffix in PICKLES)
        got = (
            f"only pickles ({', '.join(pickles[:3])}), which can run code when loaded"
            if pickles
            else "no weights"
        )
        raise VLMError(
            f"model folder {folder}: expected weights as *.safetensors, found {got}",
            "get the safetensors edition",
        )
    if strange := [file.name for file in files if SHARDS_OF_TRAINING.fullmatch(file.name)]:
        raise VLMError(
            f"model folder {folder}: expected weights as model*.safetensors, found {strange[0]}, a piece of"
            " an interrupted training",
            "save the model whole",
        )
    indexed = {
        shard
        for index in sorted(folder.glob("*.safetensors.index.json"))
        for shard in _shards(folder, index.name)
    }
    if missing := sorted(indexed - {file.name for file in files}):
        raise VLMError(
            f"model folder {folder}: expected {len(indexed)} weight files, {missing[0]} is missing",
            "copy the folder again",
        )
    headers = {file.name: _header(folder, file) for file in files}
    loaded = [folder / "model.safetensors"]
    if loaded[0].name not in headers:
        if not (folder / INDEX).is_file():
            raise VLMError(
                f"model folder {folder}: expected model.safetensors, or {INDEX} and its files, found neither",
                "copy the folder again",
            )
        loaded = [folder / shard for shard in _shards(folder, INDEX)]
    return Weights(
        tuple(loaded), {name: shape for file in loaded for name, shape in headers[file.name].items()}
    )


def _shards(folder: Path, index: str) -> list[str]:
    """The weight files that an index names, in order. Raises VLMError."""
    content = _read(folder, index, LARGEST_INDEX)
    places = content.get("weight_map")
    if not isinstance(places, dict) or not places or not isinstance(content.get("metadata"), dict | None):
        raise VLMError(
            f"model folder {folder}: {index} cannot be read (expected an object weight_map)",
            "copy the folder again",
        )
    shards = list(dict.fromkeys(json.dumps(x) if not isinstance(x, str) else x for x in places.values()))
    for shard in shards:
        if not shard.endswith(".safetensors") or {"/", "\\", "\0"} & set(shard):
            raise VLMError(
                f"model folder {folder}: {index}: expected names of *.safetensors files of the folder, got"
                f" {shard[:200]!r}",
                "get the safetensors edition from the model's maker",
            )
    return sorted(shards)


def _header(folder: Path, file: Path) -> dict[str, tuple[int, ...]]:
    """Tensor → shape, from the header of a safetensors file: its length in 8 bytes, little-endian, and a JSON
    object that says where in the rest each tensor lies. Raises VLMError."""
    try:
        with open(open_regular(file), "rb") as opened:
            size = os.fstat(opened.fileno()).st_size
            length = int.from_bytes(opened.read(8), "little")
            if size < 10 or not 2 <= length <= min(LARGEST_HEADER, size - 8):
                raise FileError(f"expected a safetensors header inside of its {size} bytes, got none")
            return dict(_tensors(parse_json(opened.read(length)), size - 8 - length))
    except (FileError, OSError) as error:
        raise VLMError(
            f"model folder {folder}: {file.name!r} is no whole safetensors file: {error}",
            "copy the folder again",
        ) from error


def _tensors(header: dict[str, Any], room: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """(name, shape) of each tensor that a header places in `room` bytes, which all together fill. Raises
    FileError."""
    filled = 0
    for name, about in header.items():
        if name == "__metadata__":
            continue
        about = about if isinstance(about, dict) else {}
        kind, shape, place = about.get("dtype"), about.get("shape"), about.get("data_offsets")
        if not (
            isinstance(kind, str)
            and kind in BITS
            and _are_counts(shape)
            and _are_counts(place)
            and len(place) == 2
        ):
            raise FileError(f"expected dtype, shape and place of the tensor {name[:200]!r}, got others")
        if len(name) > LONGEST_NAME:
            raise FileError(
                f"expected names of tensors of at most {LONGEST_NAME} characters, got {len(name)}"
            )
        if not place[0] <= place[1] <= room or math.prod(shape) * BITS[kind] != (place[1] - place[0]) * 8:
            raise FileError(
                f"expected the tensor {name[:200]!r} of {shape[:8]} in the file's {room} bytes, got {place}"
                " as its place"
            )
        filled += place[1] - place[0]
        yield name, tuple(shape)
    if filled != room:
        raise FileError(f"expected tensors that fill the file's {room} bytes, got {filled} bytes of them")


def _are_counts(value: Any) -> bool:
    return (
        isinstance(value, list) and len(value) <= 16 and all(type(x) is int and 0 <= x < 2**63 for x in value)
    )
