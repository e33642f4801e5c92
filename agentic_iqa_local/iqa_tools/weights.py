"""The files that models and tools load: whether the models folder has them, with the bytes that its manifest names.

Weights of pyiqa's metrics are pickles, and another file gives other numbers. So a tool loads what the manifest
of the models folder names, and not what torch or Hugging Face keep in caches of their own.
`scripts/fetch_models.py` makes a bundle of files in such caches.
"""

import os
from collections.abc import Collection
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field, ValidationError

from agentic_iqa_local.errors import UserError
from agentic_iqa_local.files import FileError, command, file_hash, first_mistake, read_json
from agentic_iqa_local.iqa_tools.specs import ToolError, ToolSpec

MANIFEST, LARGEST_MANIFEST = "manifest.json", 16 << 20  # its name, and its bytes at most
HUB = "tools/hub"  # what pyiqa's metrics load, laid out as torch's hub folder
HUGGINGFACE = "tools/huggingface"  # snapshots, laid out as huggingface_hub's cache


class BundleError(UserError, RuntimeError):
    """A bundle or models folder that cannot be trusted, read or written; the message names the file."""


def environment(root: Path) -> dict[str, str]:
    """The variables with which torch, timm and transformers find the models folder's files and look nowhere else; where
    `root` is a folder without a manifest, only those that keep them from the network."""
    offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    if not (root / MANIFEST).is_file():
        return offline
    places = {"TORCH_HOME": (root / HUB).parent, "HF_HUB_CACHE": root / HUGGINGFACE}
    return offline | {name: str(place.absolute()) for name, place in places.items()}


def unchanged(place: Path, size: int, sha256: str) -> bool:
    """Whether a regular file of this size and SHA-256 lies at `place`."""
    return place.is_file() and place.stat().st_size == size and file_hash(place) == sha256


def unlisted(root: Path, known: Collection[str], folders: Collection[str]) -> list[BundleError]:
    """An error for each file in `folders` of `root` that is not among the `known`: a loader might prefer it."""
    places = [place for folder in sorted(folders) for place in sorted((root / folder).rglob("*"))]
    return [
        BundleError(f"{place}: expected files of {root / MANIFEST} only, got this one", "remove it")
        for place in places
        if not place.is_dir() and str(place.relative_to(root)) not in known
    ]


class Listed(BaseModel):
    """What is read again of a file in the manifest, beside its source and licence."""

    path: str
    size: Annotated[int, Field(ge=0)]
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class _Manifest(BaseModel):
    files: tuple[Listed, ...]


class Weights:
    """The files that the manifest of the models folder `root` names. Raises ToolError for a damaged manifest."""

    def __init__(self, root: Path):
        self.root, self.hub, self.huggingface = root, root / HUB, root / HUGGINGFACE
        self._files: dict[str, Listed] = {}
        if not os.path.lexists(root / MANIFEST):
            return
        try:
            found = _Manifest.model_validate(read_json(root / MANIFEST, LARGEST_MANIFEST))
        except (FileError, ValidationError) as error:
            why = first_mistake(error) if isinstance(error, ValidationError) else error
            damaged = f"{root / MANIFEST}: damaged ({why})"
            raise ToolError(damaged, "unpack its bundle again.") from error
        self._files = {file.path: file for file in found.files}

    def missing(self, spec: ToolSpec) -> str | None:
        """Why `spec` has not its weights, by names and sizes alone; None if it has them."""
        if unnamed := [weight for weight in spec.weights if not self._of(weight)]:
            places = [self._place(weight) for weight in unnamed]
            names = ", ".join(place.name for place in places)
            folders = " and ".join(dict.fromkeys(str(place.parent) for place in places))
            remedy = f"{command('bundle')} --tools {spec.name} makes a bundle of them"
            return f"missing weights {names} (expected in {folders}; {remedy})"
        for path, file in self._needed(spec).items():
            place = self.root / path
            if not place.is_file() or place.stat().st_size != file.size:
                return f"missing weights {place} (unpack its bundle again)"
        return None

    def check(self, spec: ToolSpec) -> None:
        """Raises ToolError that names a file which `spec` loads and whose SHA-256 is not the manifest's."""
        for path, file in self._needed(spec).items():
            if file_hash(self.root / path) != file.sha256:
                raise ToolError(
                    f"{spec.name} is unavailable: {self.root / path} is damaged or was changed: expected the"
                    f" SHA-256 of {MANIFEST}, {file.sha256}",
                    "unpack its bundle again.",
                )

    def check_model(self, folder: Path) -> None:
        """Raises BundleError unless a model's folder is as the manifest says; silent for one that no bundle brought."""
        root, folder = self.root.resolve(), folder.resolve()
        if root not in folder.parents:
            return
        top = folder.relative_to(root).parts[0]
        brought = [path for path in self._files if path.startswith(f"{top}/")]
        for path in brought:
            file, place = self._files[path], root / path
            if place.is_relative_to(folder) and not unchanged(place, file.size, file.sha256):
                why = f"{root / path} is damaged or was changed: expected the SHA-256 of {MANIFEST}"
                raise BundleError(why, "unpack its bundle again")
        for error in unlisted(root, self._files, {top} if brought else ()):
            raise error

    def _place(self, weight: str) -> Path:
        """Where a weight of the table of tools lies."""
        if not weight.startswith("hf:"):
            return self.hub / weight
        repository = weight.removeprefix("hf:").replace("/", "--")
        return self.huggingface / f"models--{repository}"

    def _of(self, weight: str) -> dict[str, Listed]:
        begin = self._place(weight).relative_to(self.root).as_posix()
        begin += "/" * weight.startswith("hf:")
        return {path: file for path, file in self._files.items() if path.startswith(begin)}

    def _needed(self, spec: ToolSpec) -> dict[str, Listed]:
        return {path: file for weight in spec.weights for path, file in self._of(weight).items()}
