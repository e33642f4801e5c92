"""What a bundle or the models folder holds, every file with its size, SHA-256, source and licence.

Nothing here imports torch or huggingface_hub, or reaches a network.
"""

import hashlib
import itertools
import os
import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from agentic_iqa_local.errors import one_line
from agentic_iqa_local.files import FileError, first_mistake, read_bytes
from agentic_iqa_local.iqa_tools.weights import LARGEST_MANIFEST, MANIFEST, BundleError

MANIFEST_HASH = f"{MANIFEST}.sha256"  # "HASH  manifest.json", as sha256sum writes it
TOOLS, WHEELS = (
    "tools",
    "wheels",
)  # the folders that are no models: tools' weights, an offline installation
SEGMENT = re.compile(
    r"(?=[^. ])[A-Za-z0-9_+=@,!~() .-]+(?<![. ])"
)  # a name that begins with no dot


LONGEST_NAME, LONGEST_PATH = 255, 1000  # characters that file systems take, below any models folder
LARGEST_FILE = 2**50  # bytes


def _plain(path: str) -> str:
    parts = path.split("/")
    short = len(path) <= LONGEST_PATH and max(map(len, parts)) <= LONGEST_NAME
    if not short or not all(map(SEGMENT.fullmatch, parts)):
        raise ValueError(f"expected a relative path of plain names, got {path[:300]!r}")
    return path


Line = Annotated[str, Field(max_length=1000), AfterValidator(one_line)]
PlainPath = Annotated[str, AfterValidator(_plain)]


class Record(BaseModel):
    """A part of the manifest."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Notice(Record):
    """A licence that restricts what may be done with files, shown before they are used."""

    licence: Line
    of: Line
    says: Line
    url: Line

    def __str__(self) -> str:
        return f"{self.of}: {self.licence}, {self.says} ({self.url})"


class StoredFile(Record):
    """One file; `path` is relative to the bundle, `size` in bytes, `source` where it was taken from."""

    path: PlainPath
    size: int = Field(ge=0, le=LARGEST_FILE)
    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    source: Line
    licence: Line

    @property
    def top(self) -> str:
        """The first folder of the path: a model's name, "tools" or "wheels"."""
        return self.path.partition("/")[0]


def _storable(files: tuple[StoredFile, ...]) -> tuple[StoredFile, ...]:
    """The files, if one models folder can hold them all, on a disk that ignores case too. Raises ValueError."""
    paths = set[str]()
    spelled: dict[str, str] = {}  # of each path in small letters
    kinds: dict[str, str] = {MANIFEST: "file", MANIFEST_HASH: "file"}
    for file in files:
        if file.top == file.path:
            raise ValueError(f"expected FOLDER/FILE, got {file.path}")
        if file.path in paths:
            raise ValueError(f"expected each path once, got {file.path} again")
        paths.add(file.path)
        *folders, _ = itertools.accumulate(file.path.split("/"), "{}/{}".format)
        for path in (*folders, file.path):
            kind = "file" if path is file.path else "folder"
            if spelled.setdefault(path.lower(), path) != path:
                raise ValueError(f"{spelled[path.lower()]} and {path} differ in case alone")
            if kinds.setdefault(path.lower(), kind) != kind:
                raise ValueError(f"{path} would be a file and a folder")
    return files


class Manifest(Record):
    """What a bundle or the models folder holds; `contents` says it in words."""

    format: Literal["agentic_iqa_local bundle 1"] = "agentic_iqa_local bundle 1"
    contents: tuple[Line, ...]
    notices: tuple[Notice, ...] = ()
    files: Annotated[tuple[StoredFile, ...], AfterValidator(_storable)]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    @property
    def models(self) -> set[str]:
        """The folders of models, each of which one bundle brings alone; tools' weights of several lie together."""
        return {file.top for file in self.files} - {TOOLS, WHEELS}

    def without_wheels(self) -> "Manifest":
        """What of a bundle goes into the models folder."""
        contents = tuple(line for line in self.contents if not line.startswith(WHEELS))
        files = tuple(file for file in self.files if file.top != WHEELS)
        return self.model_copy(update={"contents": contents, "files": files})

    def joined_with(self, new: "Manifest") -> "Manifest":
        """One manifest for both. Of a model, or a path of the tools, that both have the new one's is taken. Raises
        BundleError where one folder cannot hold both."""
        paths = {file.path for file in new.files}
        kept = tuple(
            file for file in self.files if file.path not in paths and file.top not in new.models
        )
        contents = tuple(dict.fromkeys((*self.contents, *new.contents)))
        notices = tuple(dict.fromkeys((*self.notices, *new.notices)))
        try:
            return Manifest(contents=contents, notices=notices, files=(*kept, *new.files))
        except ValidationError as error:
            wrong = (
                f"the models folder holds what this bundle does not go with: {first_mistake(error)}"
            )
            raise BundleError(wrong, "choose another --models") from None

    def serialised(self) -> bytes:
        """The bytes of manifest.json."""
        return self.model_dump_json(indent=1).encode() + b"\n"


def hash_line(raw: bytes) -> bytes:
    """The bytes of manifest.json.sha256, for the bytes of manifest.json."""
    return f"{hashlib.sha256(raw).hexdigest()}  {MANIFEST}\n".encode()


def trusted_manifest(
    raw: bytes, line: bytes, where: Path, expect: str | None
) -> tuple[Manifest, str]:
    """The manifest in `raw` and its SHA-256. Raises BundleError unless that is the hash in `line`, and `expect`."""
    sha256 = hashlib.sha256(raw).hexdigest()
    if line != hash_line(raw):
        remedy = "copy the bundle again; remove a damaged manifest of a models folder, then unpack its bundles again"
        raise BundleError(
            f"{where}: no bundle, or {MANIFEST} or {MANIFEST_HASH} is damaged", remedy
        )
    if expect not in (None, sha256):
        wrong = f"expected {MANIFEST} with SHA-256 {expect} (--expect), got {sha256}"
        raise BundleError(f"{where}: {wrong}", "this is another bundle or a changed one")
    try:
        return Manifest.model_validate_json(raw), sha256
    except ValidationError as error:
        raise BundleError(
            f"{where}: {MANIFEST}: {first_mistake(error)}", "make the bundle again"
        ) from None


def read_folder_manifest(folder: Path, expect: str | None = None) -> tuple[Manifest, str]:
    """The manifest of a bundle in folder form or of the models folder, and its SHA-256. Raises BundleError."""
    try:
        raw = read_bytes(folder / MANIFEST, LARGEST_MANIFEST)
        line = read_bytes(folder / MANIFEST_HASH, 100)
    except FileError as error:
        wrong = f"expected {MANIFEST} and {MANIFEST_HASH}, one cannot be read ({error})"
        remedy = (
            "name a bundle; where one was copied or unpacked, repeat that: its manifest comes last"
        )
        raise BundleError(f"{folder}: {wrong}", remedy) from None
    return trusted_manifest(raw, line, folder, expect)


def store_manifest(root: str | Path) -> Manifest | None:
    """What was unpacked into the models folder `root`; None where nothing was. Raises BundleError for a damaged
    manifest."""
    return read_folder_manifest(Path(root))[0] if os.path.lexists(Path(root, MANIFEST)) else None
