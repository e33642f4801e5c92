"""What a bundle or the models folder holds: every file with its size, SHA-256, source and licence, and the licences
that bind."""

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from agentic_iqa_local.errors import UserError, one_line
from agentic_iqa_local.files import FileError, read_bytes

MANIFEST = "manifest.json"
MANIFEST_HASH = "manifest.json.sha256"  # "HASH  manifest.json", as sha256sum writes it
LARGEST_MANIFEST = 16 << 20  # bytes
HUB = "tools/hub"  # what pyiqa's metrics load, laid out as torch's hub folder
HUGGINGFACE = "tools/huggingface"  # what timm and transformers load for them: a Hugging Face cache without links
WHEELS = "wheels"  # an offline installation of the environment
SEGMENT = re.compile(r"(?=[^. ])[A-Za-z0-9_+=@,!~() .-]+(?<![. ])")  # a name that begins with no dot


class BundleError(UserError, RuntimeError):
    """A bundle or models folder that cannot be trusted, read or written; the message names the file."""


def _printable(text: str) -> str:
    if one_line(text) != text:
        raise ValueError("expected one line of printable characters")
    return text


Line = Annotated[str, Field(max_length=1000), AfterValidator(_printable)]


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
    """One file; `path` is relative to the bundle, `source` where it was taken from."""

    path: str
    size: int = Field(ge=0)
    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    source: Line
    licence: Line

    @field_validator("path")
    @classmethod
    def _lies_inside(cls, path: str) -> str:
        if not all(SEGMENT.fullmatch(part) for part in path.split("/")):
            raise ValueError(f"expected a relative path of plain names, got {path[:300]!r}")
        if path.startswith((MANIFEST, MANIFEST_HASH)):
            raise ValueError(f"expected a name that is not the bundle's own, got {path[:300]!r}")
        return path


class Manifest(Record):
    """What a bundle or the models folder holds; `contents` says it in words."""

    format: Literal["agentic_iqa_local bundle 1"] = "agentic_iqa_local bundle 1"
    contents: tuple[Line, ...]
    notices: tuple[Notice, ...] = ()
    files: tuple[StoredFile, ...]

    @model_validator(mode="after")
    def _has_each_path_once(self) -> Self:
        if len({file.path for file in self.files}) < len(self.files):
            raise ValueError("expected one file a path, got several for one")
        return self

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    @property
    def model_folders(self) -> set[str]:
        """The folders of models, each of which one bundle brings alone; tools' weights of several lie together."""
        return {file.path.partition("/")[0] for file in self.files} - {PurePosixPath(HUB).parts[0], WHEELS}

    def without(self, prefix: str) -> "Manifest":
        """The same without the files below `prefix` and the line of `contents` about them."""
        return Manifest(
            contents=tuple(line for line in self.contents if not line.startswith(prefix)),
            notices=self.notices,
            files=tuple(file for file in self.files if not file.path.startswith(f"{prefix}/")),
        )

    def joined_with(self, new: "Manifest") -> "Manifest":
        """One manifest for both. Of a model, or a path of the tools, that both have the new one's is taken."""
        paths, folders = {file.path for file in new.files}, new.model_folders
        kept = [f for f in self.files if f.path not in paths and f.path.partition("/")[0] not in folders]
        return Manifest(
            contents=tuple(dict.fromkeys((*self.contents, *new.contents))),
            notices=tuple(dict.fromkeys((*self.notices, *new.notices))),
            files=(*kept, *new.files),
        )

    def serialised(self) -> bytes:
        """The bytes of manifest.json."""
        return self.model_dump_json(indent=1).encode() + b"\n"


def hash_line(raw: bytes) -> bytes:
    """The bytes of manifest.json.sha256, for the bytes of manifest.json."""
    return f"{hashlib.sha256(raw).hexdigest()}  {MANIFEST}\n".encode()


def trusted_manifest(raw: bytes, line: bytes, where: Path, expect: str | None) -> tuple[Manifest, str]:
    """The manifest in `raw` and its SHA-256. Raises BundleError unless that is the hash in `line`, and `expect`."""
    sha256 = hashlib.sha256(raw).hexdigest()
    if line != hash_line(raw):
        raise BundleError(
            f"{where}: {MANIFEST} or {MANIFEST_HASH} is damaged: expected {MANIFEST_HASH} to name SHA-256"
            f" {sha256}, got something else",
            "copy or unpack the bundle again (a damaged manifest of a models folder has to be removed first)",
        )
    if expect not in (None, sha256):
        raise BundleError(
            f"{where}: expected {MANIFEST} with SHA-256 {expect} (--expect), got {sha256}",
            "this is another bundle or a changed one",
        )
    try:
        return Manifest.model_validate_json(raw), sha256
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        key = ".".join(map(str, first["loc"])) or "file"
        raise BundleError(
            f"{where}: {MANIFEST} cannot be used: {key}: {first['msg']}", "fetch the bundle again"
        ) from None


def read_folder_manifest(folder: Path, expect: str | None = None) -> tuple[Manifest, str]:
    """The manifest of a bundle in folder form or of the models folder, and its SHA-256. Raises BundleError."""
    try:
        raw = read_bytes(folder / MANIFEST, LARGEST_MANIFEST)
        line = read_bytes(folder / MANIFEST_HASH, 100)
    except FileError as error:
        raise BundleError(
            f"{folder}: expected a bundle with {MANIFEST} and {MANIFEST_HASH}: {error}",
            "the manifest is copied and unpacked last: repeat that",
        ) from None
    return trusted_manifest(raw, line, folder, expect)


def unlisted(root: Path, manifest: Manifest, folders: Iterable[str]) -> list[BundleError]:
    """An error for each file in `folders` of `root` that the manifest does not name: a loader might prefer it."""
    known = {entry.path for entry in manifest.files}
    return [
        BundleError(f"{place}: expected files of {root / MANIFEST} only, got this one", "remove it")
        for folder in sorted(folders)
        for place in sorted((root / folder).rglob("*"))
        if not place.is_dir() and place.relative_to(root).as_posix() not in known
    ]


def amount(size: int) -> str:
    """Bytes for a reader: 18.8 MB."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= scale:
            return f"{size / scale:.1f} {unit}"
    return f"{size} bytes"
