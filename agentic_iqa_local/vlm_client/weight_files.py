"""What the headers of a model folder's weight files say, read without loading any.

Weights are safetensors inside the folder and nothing else; whoever made the folder is not trusted. Nothing
here imports torch.
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
from typing import Any, TypeGuard

from agentic_iqa_local.files import LARGEST, FileError, open_regular, parse_json, read_json
from agentic_iqa_local.vlm_client import VLMError

WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
AGAIN = "copy the folder again from its maker"
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
SHARDS_OF_TRAINING = re.compile(r"shard-\d{5}-model-\d{5}-of-\d{5}\.safetensors")
LARGEST_INDEX = 16 * 2**20  # the index of 90 thousand tensors: 9 MB
LARGEST_HEADER = 16 * 2**20
LONGEST_NAME = 500  # of a tensor
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


def read_weights(folder: Path) -> Weights:
    """The headers of the files that transformers would load. Those of other *.safetensors, which vLLM would
    load, are checked too. Raises VLMError for weights that are no safetensors inside `folder`."""
    files = _weight_files(folder)
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
    if WHOLE in headers:
        loaded = [WHOLE]
    elif (folder / INDEX).is_file():
        loaded = _shards(folder, INDEX)
    else:
        raise VLMError(
            f"model folder {folder}: expected {WHOLE}, or {INDEX} and its files, found neither",
            "copy the folder again",
        )
    shapes = {name: shape for file in loaded for name, shape in headers[file].items()}
    return Weights(tuple(folder / file for file in loaded), shapes)


def read_object(folder: Path, name: str, largest: int = LARGEST) -> dict[str, Any]:
    """The JSON object in a file of `folder`, of at most `largest` bytes. Raises VLMError."""
    try:
        return read_json(folder / name, largest)
    except FileError as error:
        raise VLMError(f"model folder {folder}: {name} cannot be used: {error}", AGAIN) from error


def _weight_files(folder: Path) -> list[Path]:
    """The *.safetensors of `folder`. Raises VLMError where there are none, or those of a training."""
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
    if pieces := [file.name for file in files if SHARDS_OF_TRAINING.fullmatch(file.name)]:
        raise VLMError(
            f"model folder {folder}: expected weights as model*.safetensors, found {pieces[0]}, a piece of"
            " an interrupted training",
            "save the model whole",
        )
    return files


def _shards(folder: Path, index: str) -> list[str]:
    """The weight files that an index names, in order. Raises VLMError."""
    content = read_object(folder, index, LARGEST_INDEX)
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
    for name, entry in header.items():
        if name != "__metadata__":
            shape, size = _tensor(name, entry if isinstance(entry, dict) else {}, room)
            filled += size
            yield name, shape
    if filled != room:
        raise FileError(f"expected tensors that fill the file's {room} bytes, got {filled} bytes of them")


def _tensor(name: str, entry: dict[str, Any], room: int) -> tuple[tuple[int, ...], int]:
    """(shape, bytes) of one tensor. Raises FileError."""
    kind, shape, place = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not (
        isinstance(kind, str)
        and kind in BITS
        and _are_counts(shape)
        and _are_counts(place)
        and len(place) == 2
    ):
        raise FileError(f"expected dtype, shape and place of the tensor {name[:200]!r}, got others")
    if len(name) > LONGEST_NAME:
        raise FileError(f"expected names of tensors of at most {LONGEST_NAME} characters, got {len(name)}")
    begin, end = place
    if not begin <= end <= room or math.prod(shape) * BITS[kind] != (end - begin) * 8:
        raise FileError(
            f"expected the tensor {name[:200]!r} of {shape[:8]} in the file's {room} bytes, got {place}"
            " as its place"
        )
    return tuple(shape), end - begin


def _are_counts(value: Any) -> TypeGuard[list[int]]:
    return (
        isinstance(value, list) and len(value) <= 16 and all(type(x) is int and 0 <= x < 2**63 for x in value)
    )
