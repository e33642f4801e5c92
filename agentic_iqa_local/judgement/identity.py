"""What decides a row: the files, the settings and the versions that its numbers depend on, listed
here alone.

A run goes on only where all of them are as they were, and each row names them in short.
"""

import functools
import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from agentic_iqa_local import __version__
from agentic_iqa_local.config import Settings
from agentic_iqa_local.devices import versions
from agentic_iqa_local.files import CONFIGS, PACKAGE, ROOT, file_hash, folder_hash
from agentic_iqa_local.iqa_tools.eye import NUMBERS
from agentic_iqa_local.iqa_tools.runner import SHIPPED_MAPS
from agentic_iqa_local.iqa_tools.specs import DATA, LOCAL_NR, TOOLS
from agentic_iqa_local.judgement.intervals import SHIPPED as SHIPPED_INTERVALS

ANSWERS = "summarizer"  # the role whose model a row names
PROMPTS = tuple(sorted((PACKAGE / "nodes" / "templates").glob("*.txt")))
SHIPPED = (
    *PROMPTS,
    PACKAGE / "nodes" / "words.yaml",
    DATA / "tools.yaml",
    *sorted({*LOCAL_NR, *(DATA / spec.bundled for spec in TOOLS.values() if spec.bundled)}),
    CONFIGS / "detector.yaml",
    CONFIGS / "detector_measures.json",
    CONFIGS / "tool_reliability.yaml",
    CONFIGS / "comparisons.json",
    CONFIGS / "bursts.json",
)
"""The files of this package that decide a row, whatever the settings are. With them count the
settings' own: the tool maps, the calibration of intervals and the models' folders."""

SHORT = 16  # hex digits of a hash in a row


def identity(settings: Settings, roles: Iterable[str], device: str) -> dict[str, Any]:
    """What rows depend on beside their questions and the text of the settings, by the names that a
    user is told.

    Args:
        settings: The set-up, which names tool maps, a calibration and models.
        roles: Whose models are asked.
        device: "cpu" or "cuda:N"; its kind counts.
    """
    folders = {settings.folder(settings.role(role).backend) for role in roles}
    eye = settings.tools.eye
    intervals = Path(settings.decisions.calibration or SHIPPED_INTERVALS)
    return {
        "files": {_name(file): _hash(file) for file in SHIPPED},
        "tool maps": _hash(Path(settings.tools.maps or SHIPPED_MAPS)),
        "interval calibration": _hash(intervals),
        "eye": eye and _hash(Path(eye) / NUMBERS),
        "model": {folder.name: folder_hash(folder) for folder in folders if folder.is_dir()},
        "versions": _versions(),
        "device": device.partition(":")[0],
    }


def fitted_with() -> dict[str, str]:
    """The hashes of the files that a tool's score depends on, by name: what is fitted on such scores is
    outdated when one of them changes."""
    files = (DATA / "tools.yaml", *LOCAL_NR, SHIPPED_MAPS, CONFIGS / "tool_reliability.yaml")
    return {_name(file): file_hash(file) for file in files}


def named_in_row(settings: Settings, device: str) -> dict[str, Any]:
    """What a row alone says of what decided it: the model's hash, that of the prompts, that of
    everything, and the versions."""
    everything = identity(settings, [ANSWERS], device)
    prompts = {name: everything["files"][name] for name in map(_name, PROMPTS)}
    decided_by = everything | {"settings": settings.model_dump(mode="json")}
    model = next(iter(everything["model"].values()), None)  # None: a server has it
    return {
        "sha256": model and model[:SHORT],
        "prompts": digest(prompts)[:SHORT],
        "decided_by": digest(decided_by)[:SHORT],
        "versions": everything["versions"],
    }


def digest(values: Mapping[str, Any] | list[Any]) -> str:
    """SHA-256 (hex) of values that JSON can hold."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


@functools.cache
def _versions() -> dict[str, str]:
    return {"agentic_iqa_local": __version__} | versions()


def _name(file: Path) -> str:
    """A shipped file's name from the checkout or the installation on, the same in both."""
    return str(file.relative_to(PACKAGE if file.is_relative_to(PACKAGE) else ROOT))


def _hash(file: Path) -> str | None:
    return file_hash(file) if file.is_file() else None
