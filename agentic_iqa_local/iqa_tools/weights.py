"""The files that tools load: whether they are there, and that they are those of the models folder's manifest.

Weights of pyiqa's metrics are pickles and TorchScript, which can run code when they are loaded, and another
file gives other numbers. So a tool loads what the manifest of the models folder names, with the bytes that it
names, and nothing else: not what torch or Hugging Face keep in caches of their own. `scripts/fetch_models.py`
makes a bundle of files in such caches.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agentic_iqa_local.iqa_tools.specs import ToolError, ToolSpec
from agentic_iqa_local.offline.manifest import HUB, HUGGINGFACE, MANIFEST, BundleError, StoredFile
from agentic_iqa_local.offline.store import store_manifest, verified, weights_dir
from agentic_iqa_local.paths import command

SNAPSHOT = "hf:"  # begins a weight that is a snapshot of a repository
CODE = "a pickle or TorchScript can run code when it is loaded"


def torch_hub() -> Path:
    """Torch's own hub folder, found as torch finds it but without importing torch."""
    cache = os.environ.get("XDG_CACHE_HOME", "~/.cache")
    return Path(os.environ.get("TORCH_HOME", os.path.join(cache, "torch"))).expanduser() / "hub"


def huggingface_cache() -> Path:
    """The Hugging Face cache, found as huggingface_hub finds it but without importing it."""
    home = os.environ.get(
        "HF_HOME", os.path.join(os.environ.get("XDG_CACHE_HOME", "~/.cache"), "huggingface")
    )
    return Path(os.environ.get("HF_HUB_CACHE", os.path.join(home, "hub"))).expanduser()


def _repository(weight: str) -> str:
    """A snapshot's folder in a Hugging Face cache."""
    return f"models--{weight.removeprefix(SNAPSHOT).replace('/', '--')}"


class Weights:
    """The tools' weights in the models folder `root`. Raises ToolError for a manifest that cannot be
    trusted."""

    def __init__(self, root: Path):
        self.root, self.hub, self.huggingface = root, weights_dir(root), root / HUGGINGFACE
        try:
            manifest = store_manifest(root)
        except BundleError as error:
            raise ToolError(error.message, error.remedy) from error
        self._files = {file.path: file for file in manifest.files} if manifest else {}

    def missing(self, spec: ToolSpec) -> str | None:
        """Why `spec` has not its weights, by names and sizes alone; None if it has them."""
        if unnamed := [weight for weight in spec.weights if not self._of(weight)]:
            options = (
                f" --weights {torch_hub()}"
                if any((torch_hub() / weight).is_file() for weight in unnamed)
                else ""
            )
            if any(
                (huggingface_cache() / _repository(weight)).is_dir()
                for weight in unnamed
                if weight.startswith(SNAPSHOT)
            ):
                options += f" --huggingface {huggingface_cache()}"
            return (
                f"missing weights {', '.join(unnamed)} (no bundle in the models folder has them; "
                f"{command('bundle')} --tools {spec.name}{options} makes a bundle of them)"
            )
        for file in self._needed(spec):
            place = self.root / file.path
            if not place.is_file() or place.stat().st_size != file.size:
                return (
                    f"missing weights {place} (it is in {MANIFEST}, but not there or of another size; unpack"
                    " its bundle again)"
                )
        return None

    def check(self, spec: ToolSpec) -> dict[str, str]:
        """Each file that `spec` loads with its SHA-256, read from the file itself. Raises ToolError that
        names a file which is not the manifest's."""
        hashes = {}
        for file in self._needed(spec):
            if not verified(self.root, file.path):
                raise ToolError(
                    f"{spec.name} is unavailable: {self.root / file.path} is damaged or was changed: expected"
                    f" the SHA-256 of {MANIFEST}, {file.sha256}",
                    "unpack its bundle again.",
                )
            hashes[file.path] = file.sha256
        for weight in spec.weights:
            if weight.startswith(SNAPSHOT):
                self._refuse_strangers(self.huggingface / _repository(weight) / "snapshots")
        return hashes

    def admit(self, file: Any) -> None:
        """Raises ToolError unless `file`, a path or an open file, is one of the manifest's."""
        name = file if isinstance(file, (str, os.PathLike)) else getattr(file, "name", None)
        place = Path(os.path.abspath(name)) if isinstance(name, (str, os.PathLike)) else None
        if (
            place is None
            or not place.is_relative_to(self.root)
            or not verified(self.root, str(place.relative_to(self.root)))
        ):
            raise ToolError(
                f"Refused to load {place or 'weights from memory'}: it is no file of {self.root / MANIFEST},"
                f" and {CODE}."
            )

    def load(self, original: Callable[..., Any], file: Any, *args: Any, **options: Any) -> Any:
        """What `original`, torch.load, makes of a file of the manifest that holds nothing but weights. Raises
        ToolError."""
        self.admit(file)
        try:
            return original(file, *args, **(options | {"weights_only": True}))
        except pickle.UnpicklingError as error:
            lines = [line for line in str(error).splitlines() if "WeightsUnpickler error" in line] or str(
                error
            ).splitlines()
            raise ToolError(
                f"Refused to load {file}: expected weights alone, got more ({lines[0].strip()})", f"{CODE}."
            ) from error

    def load_script(self, original: Callable[..., Any], file: Any, *args: Any, **options: Any) -> Any:
        """What `original`, torch.jit.load, makes of a file of the manifest. Raises ToolError."""
        self.admit(file)
        return original(file, *args, **options)

    def _of(self, weight: str) -> list[StoredFile]:
        if not weight.startswith(SNAPSHOT):
            return [file] if (file := self._files.get(f"{HUB}/{weight}")) else []
        folder = f"{HUGGINGFACE}/{_repository(weight)}/"
        return [file for path, file in self._files.items() if path.startswith(folder)]

    def _needed(self, spec: ToolSpec) -> list[StoredFile]:
        return [file for weight in spec.weights for file in self._of(weight)]

    def _refuse_strangers(self, folder: Path) -> None:
        """Raises ToolError for a file in a snapshot that the manifest does not name: a loader might prefer
        it."""
        for place in folder.rglob("*"):
            if place.is_file() and str(place.relative_to(self.root)) not in self._files:
                raise ToolError(
                    f"{place}: expected files of {self.root / MANIFEST} only, got this one", "remove it."
                )
