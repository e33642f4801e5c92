"""A model folder's files, examined before any library opens them. Nothing here imports torch or transformers.

Whoever made the folder is not trusted: weights are safetensors inside the folder and nothing else (see
`weight_files`), no file names other code or files to load, and no size in config.json makes a library build
what the weights do not hold.
"""

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from agentic_iqa_local.files import FileError, open_regular, walk
from agentic_iqa_local.paths import about_missing_model
from agentic_iqa_local.vlm_client import VLMError
from agentic_iqa_local.vlm_client.weight_files import AGAIN, Weights, read_object, read_weights

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


def examine(folder: Path, weights: bool = True) -> Weights | None:
    """Checks everything that a library would open in `folder`; with `weights`, what the headers of its weight
    files say. Links are followed to files inside the folder only. Raises VLMError."""
    if not os.path.isdir(folder):
        raise VLMError(*about_missing_model(folder))
    names = _files(folder)
    if "config.json" not in names:
        raise VLMError(
            f"model folder {folder}: expected config.json, found none", "this is no transformers model"
        )
    for name, kind in OTHER_FILES.items():
        if name in names:
            raise VLMError(f"model folder {folder}: expected no {name}, which makes it {kind}")
    for name in names:
        if name in SETTINGS:
            _check_sources(folder, name, read_object(folder, name))
        elif name.endswith(TEXTS) and (size := (folder / name).stat().st_size) > LARGEST_TEXT:
            raise VLMError(
                f"model folder {folder}: {name!r}: expected at most {LARGEST_TEXT} bytes, got {size}", AGAIN
            )
    _check_sizes(folder, read_object(folder, "config.json"))
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
    """Raises VLMError for values in config.json of another type or beyond any model, before transformers
    calculates with them."""

    def refuse(expected: str, value: Any) -> None:
        raise VLMError(f"model folder {folder}: config.json: expected {expected}, got {_short(value)}", AGAIN)

    for key in ("text_config", "vision_config"):
        if not isinstance(config.get(key) or {}, dict):
            refuse(f"an object as {key}", config[key])
    for part, _ in walk(config):
        if len(part) > LONGEST_LIST:
            refuse(f"lists and objects of at most {LONGEST_LIST} entries", f"one of {len(part)}")
        for key, value in part.items() if isinstance(part, dict) else ():
            if expected := _expected(key, value):
                refuse(f"{expected} as {key}", value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


KINDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "model_type": ("a text", _is_text),
    "quant_method": ("a text", _is_text),
    "quantization_config": ("an object", lambda value: value is None or isinstance(value, dict)),
    "architectures": (
        "a list of texts",
        lambda value: value is None or (isinstance(value, list) and all(map(_is_text, value))),
    ),
}


def _expected(key: str, value: Any) -> str | None:
    """What config.json should have as `key`, where `value` is something else; None where it will do."""
    kind, fits = KINDS.get(key, ("", None))
    if fits and not fits(value):
        return kind
    for number in value if isinstance(value, list) else [value]:
        if key in SIZES and number is not None and not _is_size(number):
            return f"a whole number from 1 to {LARGEST_SIZE}"
        if type(number) is int and number > MOST_LAYERS and _counts_layers(key):
            return f"at most {MOST_LAYERS}"
        if type(number) is int and abs(number) >= 2**63:
            return "a number of 64 bits"
    return None


def _is_size(number: Any) -> bool:
    return type(number) is int and 1 <= number <= LARGEST_SIZE


def _counts_layers(key: str) -> bool:
    return key.endswith(("layers", "depth", "depths")) and not key.startswith("max_")


def check_against_weights(folder: Path, config: Mapping[str, Any], weights: Weights) -> None:
    """Raises VLMError where `config`, with all that transformers fills in, has more layers or other widths
    than the weights.

    A wrong number of heads that divides the width goes unnoticed: no header names the heads.
    """
    for part, _ in walk(config):
        if isinstance(part, dict):
            sizes = {key: value for key, value in part.items() if type(value) is int}
            for key, reason in _contradictions(sizes, weights):
                raise VLMError(
                    f"model folder {folder}: expected config.json to describe its weights, got {sizes[key]} as"
                    f" {key}, {reason}",
                    AGAIN,
                )


def _contradictions(sizes: Mapping[str, int], weights: Weights) -> Iterator[tuple[str, str]]:
    """(key, why the weights contradict it) of the sizes of one part of a model."""
    layers = sizes.keys() & LAYERS
    for key in layers:
        if sizes[key] > weights.layers:
            yield key, f"where the longest row of layers has {weights.layers}"
    for key in sizes.keys() & WIDTHS if layers else ():
        if sizes[key] not in weights.widths:
            yield key, "which no tensor has as a side"
    widest = max(weights.widths, default=0)
    for key in sizes.keys() & PARTS:
        if sizes[key] > widest:
            yield key, f"where no side of a tensor is longer than {widest}"
    width = sizes.get("embed_dim") or sizes.get("hidden_size")
    if width and "head_dim" not in sizes:
        for key in sizes.keys() & HEADS:
            if width % sizes[key]:
                yield key, f"which does not divide the width {width}"
