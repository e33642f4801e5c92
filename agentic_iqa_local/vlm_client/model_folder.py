"""A model folder's files, examined before any library opens them: weights as safetensors, no remote code.

The headers of the weight files say how large the model is. Nothing here imports torch or transformers.
"""

import functools
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from agentic_iqa_local.files import FileError, about_missing_model, read_json, walk
from agentic_iqa_local.vlm_client import VLMError

WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
LARGEST_INDEX = 16 * 2**20  # bytes; the index of 90 thousand tensors takes 9 MB
# Keys of the settings by which transformers or vLLM load more than the folder's own safetensors.
OTHER_SOURCES = {"auto_map", "custom_pipelines", "custom_generate", "kernel_config", "use_kernels",
                 "transformers_weights", "checkpoint_path", "pretrained_cfg", "audio_tokenizer"}  # fmt: skip

# Keys of the settings that say how often transformers builds a part, before it looks at the weights
COUNTS = re.compile("^depth$|^(?!max_).*(layers?|blocks|experts|heads)$")
MOST_PARTS = 10_000  # of a kind, where no weights are at hand to compare with


@dataclass(frozen=True)
class Weights:
    """What the headers of a folder's weight files say: each tensor's shape."""

    files: tuple[Path, ...]
    shapes: Mapping[str, tuple[int, ...]]

    @functools.cached_property
    def numbers(self) -> int:
        """How many numbers all tensors hold together."""
        return sum(map(math.prod, self.shapes.values()))

    @functools.cached_property
    def most_parts(self) -> int:
        """How many layers, heads or experts there can be: each has a tensor, or a place in one of three dimensions."""
        stacked = (shape[0] for shape in self.shapes.values() if len(shape) == 3)
        return max(len(self.shapes), *stacked, 0)


def examine(folder: Path, weights: bool = True) -> Weights | None:
    """Checks the settings of `folder`; with `weights`, what the headers of its weight files say. Raises VLMError."""
    if not os.path.isdir(folder):  # False for a name that is too long too
        raise VLMError(*about_missing_model(folder))
    if not (folder / "config.json").exists():
        raise _refused(folder, "expected config.json, found none", "this is no transformers model")
    if (folder / "adapter_config.json").exists():
        raise _refused(
            folder, "expected no adapter_config.json", "merge the adapter into the weights"
        )
    parts = [
        (file.name, part)
        for file in sorted(folder.glob("*config.json"))
        for part in walk(read_object(folder, file.name))
        if isinstance(part, dict)
    ]
    for name, part in parts:
        if named := sorted(key for key in OTHER_SOURCES if part.get(key)):
            what = f"{name}: expected no {named[0]}, which names code or other weights"
            raise _refused(
                folder, what, "use an edition of the model that transformers loads by itself"
            )
    found = read_weights(folder) if weights else None
    most = found.most_parts if found else MOST_PARTS
    for name, part in parts:
        for key, count in part.items():
            if isinstance(count, int) and COUNTS.search(key) and count > most:
                has = f"its weights have {most} at most" if found else "more than any model has"
                raise _refused(folder, f"{name}: {key} is {count:.6g}, {has}")
    return found


def read_object(folder: Path, name: str, **limits: int) -> dict[str, Any]:
    """The JSON object in a file of `folder`. Raises VLMError."""
    try:
        return read_json(
            folder / name, finite=False, **limits
        )  # some models' settings say Infinity
    except FileError as error:
        raise _refused(folder, f"{name} cannot be used: {error}") from error


def read_weights(folder: Path) -> Weights:
    """The headers of the files that transformers loads. Raises VLMError for weights that are no whole safetensors."""
    if (folder / WHOLE).exists():
        names = [WHOLE]
    elif (folder / INDEX).exists():
        places = read_object(folder, INDEX, largest=LARGEST_INDEX).get("weight_map")
        names = sorted(set(map(str, places.values()))) if isinstance(places, dict) else []
    else:
        names = []
    if not names or any(
        Path(name).name != name or Path(name).suffix != ".safetensors" for name in names
    ):
        what = f"expected {WHOLE}, or {INDEX} and the *.safetensors files that it names, found none"
        raise _refused(folder, what, "get the safetensors edition from the model's maker")
    if missing := [name for name in names if not (folder / name).is_file()]:
        raise _refused(
            folder, f"expected {len(names)} weight files, {missing[0]} is missing or no file"
        )
    shapes: dict[str, tuple[int, ...]] = {}
    for name in names:
        try:
            with safe_open(folder / name, framework="numpy") as file:
                tensors = file.keys()
                shapes |= {tensor: tuple(file.get_slice(tensor).get_shape()) for tensor in tensors}
        except (SafetensorError, OSError) as error:
            raise _refused(folder, f"{name!r} is no whole safetensors file: {error}") from error
    return Weights(tuple(folder / name for name in names), shapes)


def _refused(
    folder: Path, what: str, remedy: str = "copy the folder again from its maker"
) -> VLMError:
    return VLMError(f"model folder {folder}: {what}", remedy)
