"""The files that models and tools load: whether the models folder has them, with the bytes that its
list names.

Weights of pyiqa's metrics are pickles, and another file gives other numbers. So a tool loads what
SHA256SUMS, the list of the models folder, names, and not what torch or Hugging Face keep in caches
of their own.
"""

import os
import re
from collections.abc import Collection
from pathlib import Path

from agentic_iqa_local.errors import UserError
from agentic_iqa_local.files import PROGRAM, FileError, file_hash, read_bytes
from agentic_iqa_local.iqa_tools.specs import ToolError, ToolSpec

SUMS = "SHA256SUMS"  # a bundle's or the models folder's list, as sha256sum writes and checks it
LARGEST_SUMS = 16 << 20  # bytes
HUB = "tools/hub"  # what pyiqa's metrics load, laid out as torch's hub folder
HUGGINGFACE = "tools/huggingface"  # snapshots, laid out as huggingface_hub's cache
UNPACK = "unpack its bundle again"

# begins with no dot, so it leads nowhere else
_NAME = r"(?=[^. ])[A-Za-z0-9_+=@,!~() .-]+(?<![. ])"
_LINE = re.compile(rf"([0-9a-f]{{64}})  ({_NAME}(?:/{_NAME})+)")


class BundleError(UserError, RuntimeError):
    """A bundle or models folder that cannot be trusted, read or written; the message names the
    file."""


def environment(root: Path) -> dict[str, str]:
    """The variables with which torch, timm and transformers find the models folder's files and look
    nowhere else; for a folder `root` without a list, only those that keep them from the network."""
    variables = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    if (root / SUMS).is_file():
        variables["TORCH_HOME"] = str((root / HUB).parent.absolute())
        variables["HF_HUB_CACHE"] = str((root / HUGGINGFACE).absolute())
    return variables


def sum_line(path: str, sha256: str) -> str:
    """A file's line in SHA256SUMS. Raises BundleError for a path that no bundle may hold."""
    line = f"{sha256}  {path}"
    if not _LINE.fullmatch(line):
        wrong = f"expected FOLDER/FILE of plain names, got {path[:300]!r}"
        raise BundleError(wrong, "rename or leave out that file")
    return f"{line}\n"


def read_sums(root: Path) -> dict[str, str]:
    """Path → SHA-256 of each file that the list of a bundle or of the models folder names. Raises
    BundleError."""
    place = root / SUMS
    try:
        lines = read_bytes(place, LARGEST_SUMS).decode(errors="replace").splitlines()
    except FileError as error:
        wrong = f"{root}: expected a folder with the list {SUMS} ({error})"
        remedy = (
            "name a bundle, whole; archives and folders with manifest.json, the bundles of earlier"
            " versions, are not read: make the bundle again"
        )
        raise BundleError(wrong, remedy) from None
    sums: dict[str, str] = {}
    for line in lines:
        match = _LINE.fullmatch(line)
        if match is None or match[2] in sums:
            expected = (
                "expected a SHA-256 and a relative path of plain names in each line, each path once"
            )
            raise BundleError(f"{place}: damaged: {expected}, got {line[:300]!r}", UNPACK)
        sums[match[2]] = match[1]
    if not sums:
        raise BundleError(f"{place}: lists no file: an unfinished bundle", "make it again")
    return sums


def stored_sums(root: Path) -> dict[str, str]:
    """As `read_sums`; nothing for a models folder that no bundle was unpacked into."""
    return read_sums(root) if os.path.lexists(root / SUMS) else {}


def unlisted(root: Path, known: Collection[str], folders: Collection[str]) -> list[BundleError]:
    """An error for each file in `folders` of `root` that is not among the `known`: a loader might
    prefer it."""
    errors = []
    for folder in sorted(folders):
        for place in sorted((root / folder).rglob("*")):
            is_folder = place.is_dir() and not place.is_symlink()
            if not is_folder and str(place.relative_to(root)) not in known:
                mistake = f"{place}: expected files of {root / SUMS} only, got this one"
                errors.append(BundleError(mistake, "remove it"))
    return errors


class ListedFiles:
    """The files that the list of the models folder `root` names. Raises BundleError for a damaged
    list."""

    def __init__(self, root: Path):
        self.root, self.hub, self.huggingface = root, root / HUB, root / HUGGINGFACE
        self._sums = stored_sums(root)

    def missing(self, spec: ToolSpec) -> str | None:
        """Why `spec` lacks its weights, by names alone; None if it has them."""
        lacking: list[str] = []
        for weight in spec.weights:
            listed = [self.root / path for path in self._below(weight)]
            expected = listed or [self._place(weight)]
            lacking += [str(place) for place in expected if not listed or not place.is_file()]
        if not lacking:
            return None
        remedy = f"{PROGRAM} bundle --tools {spec.name} makes a bundle of them"
        return f"missing weights {' and '.join(lacking)} ({remedy})"

    def check(self, spec: ToolSpec) -> None:
        """Raises ToolError that names a file which `spec` loads and whose SHA-256 is not that of
        the list."""
        for path in self._needed(spec):
            if not self._is_whole(path):
                raise ToolError(f"{spec.name} is unavailable: {self._damaged(path)}", UNPACK)

    def check_model(self, folder: Path) -> None:
        """Raises BundleError unless a model's folder is as the list says; silent for one that no
        bundle brought."""
        root, folder = self.root.resolve(), folder.resolve()
        if root not in folder.parents:
            return
        top = folder.relative_to(root).parts[0]
        brought = [path for path in self._sums if path.startswith(f"{top}/")]
        for path in brought:
            if (root / path).is_relative_to(folder) and not self._is_whole(path):
                raise BundleError(self._damaged(path), UNPACK)
        if brought:
            for error in unlisted(root, brought, [top]):
                raise error

    def _is_whole(self, path: str) -> bool:
        place = self.root / path
        return place.is_file() and file_hash(place) == self._sums[path]

    def _damaged(self, path: str) -> str:
        expected = f"expected the SHA-256 of {SUMS}, {self._sums[path]}"
        return f"{self.root / path} is damaged or was changed: {expected}"

    def _place(self, weight: str) -> Path:
        """Where a weight of the table of tools lies."""
        if not weight.startswith("hf:"):
            return self.hub / weight
        repository = weight.removeprefix("hf:").replace("/", "--")
        return self.huggingface / f"models--{repository}"

    def _below(self, weight: str) -> list[str]:
        """The listed file, or files of a snapshot, of a weight of the table of tools."""
        path = self._place(weight).relative_to(self.root).as_posix()
        return [listed for listed in self._sums if f"{listed}/".startswith(f"{path}/")]

    def _needed(self, spec: ToolSpec) -> list[str]:
        return [path for weight in spec.weights for path in self._below(weight)]
