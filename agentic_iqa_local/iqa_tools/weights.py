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
UNPACK = "unpack its bundle again"


class BundleError(UserError, RuntimeError):
    """A bundle or models folder that cannot be trusted, read or written; the message names the file."""


def environment(root: Path) -> dict[str, str]:
    """The variables with which torch, timm and transformers find the models folder's files and look nowhere else; for
    a folder `root` without a manifest, only those that keep them from the network."""
    variables = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    if (root / MANIFEST).is_file():
        variables["TORCH_HOME"] = str((root / HUB).parent.absolute())
        variables["HF_HUB_CACHE"] = str((root / HUGGINGFACE).absolute())
    return variables


def unchanged(place: Path, size: int, sha256: str) -> bool:
    """Whether a regular file of this size and SHA-256 lies at `place`."""
    return place.is_file() and place.stat().st_size == size and file_hash(place) == sha256


def unlisted(root: Path, known: Collection[str], folders: Collection[str]) -> list[BundleError]:
    """An error for each file in `folders` of `root` that is not among the `known`: a loader might prefer it."""
    errors = []
    for folder in sorted(folders):
        for place in sorted((root / folder).rglob("*")):
            if not place.is_dir() and str(place.relative_to(root)) not in known:
                mistake = f"{place}: expected files of {root / MANIFEST} only, got this one"
                errors.append(BundleError(mistake, "remove it"))
    return errors


class ListedFile(BaseModel):
    """What is read again of a file in the manifest, beside its source and licence."""

    path: str
    size: Annotated[int, Field(ge=0)]
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class _Manifest(BaseModel):
    files: tuple[ListedFile, ...]


class ListedFiles:
    """The files that the manifest of the models folder `root` names. Raises ToolError for a damaged manifest."""

    def __init__(self, root: Path):
        self.root, self.hub, self.huggingface = root, root / HUB, root / HUGGINGFACE
        self._files: tuple[ListedFile, ...] = ()
        manifest = root / MANIFEST
        if not os.path.lexists(manifest):
            return
        try:
            self._files = _Manifest.model_validate(read_json(manifest, LARGEST_MANIFEST)).files
        except FileError as error:
            raise ToolError(f"{manifest}: damaged ({error})", UNPACK) from error
        except ValidationError as error:
            raise ToolError(f"{manifest}: damaged ({first_mistake(error)})", UNPACK) from error

    def missing(self, spec: ToolSpec) -> str | None:
        """Why `spec` lacks its weights, by names and sizes alone; None if it has them."""
        unnamed = [self._place(weight) for weight in spec.weights if not self._below(weight)]
        if unnamed:
            names = ", ".join(place.name for place in unnamed)
            folders = " and ".join(dict.fromkeys(str(place.parent) for place in unnamed))
            remedy = f"{command('bundle')} --tools {spec.name} makes a bundle of them"
            return f"missing weights {names} (expected in {folders}; {remedy})"
        for file in self._needed(spec):
            place = self.root / file.path
            if not place.is_file() or place.stat().st_size != file.size:
                return f"missing weights {place} ({UNPACK})"
        return None

    def check(self, spec: ToolSpec) -> None:
        """Raises ToolError that names a file which `spec` loads and whose SHA-256 is not the manifest's."""
        for file in self._needed(spec):
            if file_hash(self.root / file.path) != file.sha256:
                raise ToolError(f"{spec.name} is unavailable: {self._damaged(file)}", UNPACK)

    def check_model(self, folder: Path) -> None:
        """Raises BundleError unless a model's folder is as the manifest says; silent for one that no bundle brought."""
        root, folder = self.root.resolve(), folder.resolve()
        if root not in folder.parents:
            return
        top = folder.relative_to(root).parts[0]
        brought = [file for file in self._files if file.path.startswith(f"{top}/")]
        for file in brought:
            place = root / file.path
            if place.is_relative_to(folder) and not unchanged(place, file.size, file.sha256):
                raise BundleError(self._damaged(file), UNPACK)
        if brought:
            for error in unlisted(root, {file.path for file in brought}, [top]):
                raise error

    def _damaged(self, file: ListedFile) -> str:
        expected = f"expected the SHA-256 of {MANIFEST}, {file.sha256}"
        return f"{self.root / file.path} is damaged or was changed: {expected}"

    def _place(self, weight: str) -> Path:
        """Where a weight of the table of tools lies."""
        if not weight.startswith("hf:"):
            return self.hub / weight
        repository = weight.removeprefix("hf:").replace("/", "--")
        return self.huggingface / f"models--{repository}"

    def _below(self, weight: str) -> list[ListedFile]:
        """The listed file, or files of a snapshot, of a weight of the table of tools."""
        path = self._place(weight).relative_to(self.root).as_posix()
        return [file for file in self._files if f"{file.path}/".startswith(f"{path}/")]

    def _needed(self, spec: ToolSpec) -> list[ListedFile]:
        return [file for weight in spec.weights for file in self._below(weight)]
