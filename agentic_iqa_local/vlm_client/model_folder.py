"""A model folder's files, examined before any library opens them: weights as safetensors, no remote code.

The headers of the weight files say how large the model is. Nothing here imports torch or transformers.
"""

import functools
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from agentic_iqa_local.files import FileError, about_missing_model, open_regular, read_json, walk
from agentic_iqa_local.vlm_client import VLMError

WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
LARGEST_INDEX = 16 * 2**20  # bytes; the index of 90 thousand tensors takes 9 MB
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
# Keys of the settings by which transformers or vLLM load more than the folder's own safetensors.
CODE = {"auto_map", "custom_pipelines", "custom_generate", "kernel_config", "use_kernels"}
OTHER_WEIGHTS = {"transformers_weights", "checkpoint_path", "pretrained_cfg", "audio_tokenizer"}


@dataclass(frozen=True)
class Weights:
    """What the headers of a folder's weight files say: each tensor's shape."""

    files: tuple[Path, ...]
    shapes: Mapping[str, tuple[int, ...]]

    @functools.cached_property
    def numbers(self) -> int:
        """How many numbers all tensors hold together."""
        return sum(map(math.prod, self.shapes.values()))


def examine(folder: Path, weights: bool = True) -> Weights | None:
    """Checks the settings of `folder`; with `weights`, what the headers of its weight files say. Raises
    VLMError."""
    if not os.path.isdir(folder):
        raise VLMError(*about_missing_model(folder))
    names = _regular_files(folder)
    if "config.json" not in names:
        raise VLMError(
            f"model folder {folder}: expected config.json, found none", "this is no transformers model"
        )
    if "adapter_config.json" in names:
        raise VLMError(
            f"model folder {folder}: expected no adapter_config.json, which names other weights",
            "merge the adapter into the weights",
        )
    for name in names:
        if name.endswith("config.json"):
            _refuse_other_sources(folder, name)
    held = read_weights(folder) if weights else None
    if held:
        _check_layers(folder, read_object(folder, "config.json"), len(held.shapes))
    return held


def read_object(folder: Path, name: str, **limits: int) -> dict[str, Any]:
    """The JSON object in a file of `folder`. Raises VLMError."""
    try:
        return read_json(folder / name, **limits)
    except FileError as error:
        raise VLMError(
            f"model folder {folder}: {name} cannot be used: {error}", "copy the folder again from its maker"
        ) from error


def read_weights(folder: Path) -> Weights:
    """The headers of the files that transformers loads. Raises VLMError for weights that are no whole
    safetensors."""
    if (folder / WHOLE).is_file():
        names = [WHOLE]
    elif (folder / INDEX).is_file():
        names = _shards(folder)
    else:
        raise VLMError(
            f"model folder {folder}: expected {WHOLE}, or {INDEX} and its files, found {_found(folder)}",
            "get the safetensors edition",
        )
    shapes: dict[str, tuple[int, ...]] = {}
    for name in names:
        shapes |= _header(folder, name)
    return Weights(tuple(folder / name for name in names), shapes)


def _regular_files(folder: Path) -> list[str]:
    """The names of the files in `folder`. Raises VLMError for a pipe or a device, which would be waited for."""
    names = []
    for path in sorted(folder.iterdir()):
        try:
            if not path.is_dir():
                os.close(open_regular(path))
                names.append(path.name)
        except FileError as error:
            raise VLMError(
                f"model folder {folder}: {path.name!r}: {error}", "copy the folder again from its maker"
            ) from error
    return names


def _refuse_other_sources(folder: Path, name: str) -> None:
    """Raises VLMError for settings that name code or weights besides those of the folder."""
    for part, _ in walk(read_object(folder, name)):
        for key in part if isinstance(part, dict) else ():
            if part[key] and key in CODE | OTHER_WEIGHTS:
                what = "code to run" if key in CODE else "other weights"
                raise VLMError(
                    f"model folder {folder}: {name}: expected no {key}, which names {what}",
                    "use an edition of the model that transformers loads by itself",
                )


def _check_layers(folder: Path, config: dict[str, Any], tensors: int) -> None:
    """Raises VLMError where config.json counts more layers than there are tensors: a library would build
    each of them before it misses one."""
    for part, _ in walk(config):
        for key, value in part.items() if isinstance(part, dict) else ():
            if key in ("num_hidden_layers", "depth") and isinstance(value, int) and value > tensors:
                raise VLMError(
                    f"model folder {folder}: expected config.json to describe its {tensors} tensors, got"
                    f" {value} as {key}",
                    "copy the folder again from its maker",
                )


def _found(folder: Path) -> str:
    """What there is in place of weights."""
    if pickles := sorted(path.name for path in folder.iterdir() if path.suffix in PICKLES):
        return f"only pickles ({', '.join(pickles[:3])}), which can run code when loaded"
    return "no weights"


def _shards(folder: Path) -> list[str]:
    """The weight files that the index names, in order. Raises VLMError."""
    places = read_object(folder, INDEX, largest=LARGEST_INDEX).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise VLMError(
            f"model folder {folder}: {INDEX} cannot be read (expected an object weight_map)",
            "copy the folder again",
        )
    shards = sorted(set(map(str, places.values())))
    for shard in shards:
        if not shard.endswith(".safetensors") or "/" in shard:
            raise VLMError(
                f"model folder {folder}: {INDEX}: expected names of *.safetensors files of the folder, got"
                f" {shard[:200]!r}",
                "get the safetensors edition from the model's maker",
            )
    if missing := [shard for shard in shards if not (folder / shard).is_file()]:
        raise VLMError(
            f"model folder {folder}: expected {len(shards)} weight files, {missing[0]} is missing",
            "copy the folder again",
        )
    return shards


def _header(folder: Path, name: str) -> dict[str, tuple[int, ...]]:
    """Tensor → shape. Raises VLMError for a file that is cut off or no safetensors."""
    try:
        with safe_open(folder / name, framework="numpy") as file:
            return {tensor: tuple(file.get_slice(tensor).get_shape()) for tensor in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise VLMError(
            f"model folder {folder}: {name!r} is no whole safetensors file: {error}", "copy the folder again"
        ) from error
