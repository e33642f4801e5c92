"""A model folder's files, examined before any library opens them: weights as safetensors, no remote
code.

The headers of the weight files say how large the model is. Nothing here imports torch or
transformers.
"""

import math
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError, safe_open

from agentic_iqa_local.files import FileError, about_missing_model, read_json, walk
from agentic_iqa_local.vlm_client import VLMError

WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
SHARD = re.compile(r"[^/\\]+\.safetensors")  # a file of the folder itself
LARGEST_INDEX = 16 * 2**20  # bytes; the index of 90 thousand tensors takes 9 MB
# Keys of the settings by which transformers or vLLM load more than the folder's own safetensors.
OTHER_SOURCES = (
    *("auto_map", "custom_pipelines", "custom_generate", "kernel_config", "use_kernels"),
    *("transformers_weights", "checkpoint_path", "pretrained_cfg", "audio_tokenizer"),
)

# Keys of the settings that say how often transformers builds a part, before it looks at the weights
COUNTS = re.compile("^depth$|^(?!max_).*(layers?|blocks|experts|heads)$")
MOST_PARTS = 10_000  # of a kind, for a folder without weights to compare with
LATER_PART = re.compile(r"-(?!0*1-of-)\d+-of-\d+\.gguf$")  # of a split model
COPY_AGAIN = "copy the folder again from its maker"


class WeightFiles(NamedTuple):
    """A folder's weight files, and each tensor's shape as their headers say."""

    files: tuple[Path, ...]
    shapes: dict[str, tuple[int, ...]]

    @property
    def numbers(self) -> int:
        """How many numbers all tensors hold together."""
        return sum(map(math.prod, self.shapes.values()))


class GgufFiles(NamedTuple):
    """A model as llama.cpp loads it: its text part (of a split one the first file) and its vision
    part."""

    text: Path
    vision: Path


def find_gguf(folder: Path) -> GgufFiles:
    """The folder's one model as GGUF. Raises VLMError where a part is missing, or there are several
    to choose from."""
    texts, visions = [], []
    for file in sorted(folder.glob("*.gguf")):
        if file.name.startswith("mmproj"):
            visions.append(file)
        elif not LATER_PART.search(file.name):
            texts.append(file)
    for files, expected in ((texts, "one model as *.gguf"), (visions, "one mmproj*.gguf")):
        if len(files) != 1:
            got = ", ".join(file.name for file in files) or "none"
            advice = "make them with scripts/make_gguf.py or fetch them (docs/models.md)"
            if files:
                advice = "move all but one of them away"
            raise _refused(folder, f"expected {expected}, got {got}", advice)
    return GgufFiles(*texts, *visions)


def check_files(folder: Path, weights: bool = True) -> WeightFiles | None:
    """Checks the settings of `folder`; with `weights`, the weight files too. Raises VLMError."""
    if not os.path.isdir(folder):  # False for a name that is too long too
        raise VLMError(*about_missing_model(folder))
    if not (folder / "config.json").exists():
        raise _refused(folder, "expected config.json, found none", "this is no transformers model")
    if (folder / "adapter_config.json").exists():
        advice = "merge the adapter into the weights"
        raise _refused(folder, "expected no adapter_config.json", advice)
    for name, section in _sections(folder):
        for key in OTHER_SOURCES:
            if section.get(key):
                mistake = f"{name}: expected no {key}, which names code or other weights"
                advice = "use an edition of the model that transformers loads by itself"
                raise _refused(folder, mistake, advice)
    found = read_weights(folder) if weights else None
    _check_counts(folder, found.shapes if found else {})
    return found


def _check_counts(folder: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    """Raises VLMError for settings by which transformers would build more layers, heads or experts
    than there are weights for: each has a tensor, or a place in one of three dimensions."""
    most = len(shapes) or MOST_PARTS
    for shape in shapes.values():
        if len(shape) == 3:
            most = max(most, shape[0])
    for name, section in _sections(folder):
        for key, count in section.items():
            if isinstance(count, int) and COUNTS.search(key) and count > most:
                expected = f"expected at most {most}, as many as it can have weights for"
                raise _refused(folder, f"{name}: {key} is {count:.6g}, {expected}")


def _sections(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each object in the folder's settings, with its file's name."""
    for file in sorted(folder.glob("*config.json")):
        for part in walk(read_object(folder, file.name)):
            if isinstance(part, dict):
                yield file.name, part


def read_object(folder: Path, name: str, **limits: int) -> dict[str, Any]:
    """The JSON object in a file of `folder`. Raises VLMError."""
    try:
        # some models' settings say Infinity
        return read_json(folder / name, finite=False, **limits)
    except FileError as error:
        raise _refused(folder, f"{name} cannot be used: {error}") from error


def read_weights(folder: Path) -> WeightFiles:
    """The headers of the files that transformers loads. Raises VLMError for weights that are no
    whole safetensors."""
    files, shapes = _weight_files(folder), {}
    for file in files:
        try:
            with safe_open(file, framework="numpy") as opened:
                for tensor in opened.keys():  # noqa: SIM118 - it is no dict
                    shapes[tensor] = tuple(opened.get_slice(tensor).get_shape())
        except (SafetensorError, OSError) as error:
            mistake = f"{file.name!r} is no whole safetensors file: {error}"
            raise _refused(folder, mistake) from error
    return WeightFiles(files, shapes)


def _weight_files(folder: Path) -> tuple[Path, ...]:
    """The one file of weights, or those that an index names. Raises VLMError for none, and for one
    that is missing."""
    names = [WHOLE] if (folder / WHOLE).exists() else []
    if not names and (folder / INDEX).exists():
        places = read_object(folder, INDEX, largest=LARGEST_INDEX).get("weight_map")
        if isinstance(places, dict):
            names = sorted(set(map(str, places.values())))
    if not names or not all(map(SHARD.fullmatch, names)):
        expected = f"expected {WHOLE}, or {INDEX} and the *.safetensors files that it names"
        advice = "get the safetensors edition from the model's maker"
        if any(folder.glob("*.gguf")):
            advice = "--engine llamacpp runs its GGUF files"
        raise _refused(folder, f"{expected}, found none", advice)
    for name in names:
        if not (folder / name).is_file():
            expected = f"expected {len(names)} weight files, {name} is missing or no file"
            raise _refused(folder, expected)
    return tuple(folder / name for name in names)


def _refused(folder: Path, mistake: str, remedy: str = COPY_AGAIN) -> VLMError:
    return VLMError(f"model folder {folder}: {mistake}", remedy)
