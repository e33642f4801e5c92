"""What a bundle or the models folder holds: every file with its size, SHA-256, source and licence, and the
licences that bind."""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping
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

from agentic_iqa_local.errors import UserError
from agentic_iqa_local.files import with_each_key_once
from agentic_iqa_local.offline.tar import tar_header
from agentic_iqa_local.text import one_line

MANIFEST = "manifest.json"
MANIFEST_HASH = "manifest.json.sha256"
HASH_LINE = len(f"{'0' * 64}  {MANIFEST}\n")
LARGEST_MANIFEST = 16 << 20
LARGEST_BUNDLE = 1 << 57  # bytes; no disk has more
HUB = "tools/hub"
HUGGINGFACE = "tools/huggingface"
WHEELS = "wheels"
PARTIAL = ".partial"
# Names that every file system holds, a memory stick's too. They begin with no dot: nothing hidden, and none
# of the models folder's own.
SEGMENT = re.compile(r"(?=[^. ])[A-Za-z0-9_+=@,!~() .-]+(?<![. ])")
WINDOWS_DEVICE = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?", re.IGNORECASE)
MOST_FOLDERS = 16  # above a file


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
    size: int = Field(ge=0, le=LARGEST_BUNDLE)
    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    source: Line
    licence: Line

    @field_validator("path")
    @classmethod
    def _inside(cls, path: str) -> str:
        parts = path.split("/")
        if not all(SEGMENT.fullmatch(part) and not WINDOWS_DEVICE.fullmatch(part) for part in parts):
            raise ValueError(f"expected a relative path of plain names, got {path[:300]!r}")
        if parts[0].lower() in (MANIFEST, MANIFEST_HASH) or any(
            part.lower().endswith(PARTIAL) for part in parts
        ):
            raise ValueError(f"expected a name that is not the bundle's own, got {path!r}")
        if len(parts) > MOST_FOLDERS + 1:
            raise ValueError(f"expected a file in at most {MOST_FOLDERS} folders, got {path[:300]!r}")
        tar_header(path, 0)
        return path


class Manifest(Record):
    """What a bundle or the models folder holds; `contents` says it in words."""

    format: Literal["agentic_iqa_local bundle 1"] = "agentic_iqa_local bundle 1"
    contents: tuple[Line, ...]
    notices: tuple[Notice, ...] = ()
    files: tuple[StoredFile, ...]

    @model_validator(mode="after")
    def _one_place_each(self) -> Self:
        """No path twice, nor one that differs in capitals alone: a memory stick takes them for the same."""
        paths = Counter(file.path.lower() for file in self.files)
        folders = {folder for file in self.files for folder in _folders(file.path)}
        spellings = Counter(folder.lower() for folder in folders)
        clashes = (name for name, count in (paths + spellings).items() if count > 1)
        if clash := next(clashes, None):
            raise ValueError(f"expected one file a path, got several for {clash!r}")
        if self.size > LARGEST_BUNDLE:
            raise ValueError(f"expected files of at most {LARGEST_BUNDLE} bytes together, got {self.size}")
        return self

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)


def _folders(path: str) -> list[str]:
    """The folders above a file, from the outermost."""
    return [path[: slash.start()] for slash in re.finditer("/", path)]


def amount(size: int) -> str:
    """Bytes for a reader: 18.8 MB."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= scale:
            return f"{size / scale:.1f} {unit}"
    return f"{size} bytes"


def model_folders(manifest: Manifest) -> set[str]:
    """The folders of models, each of which is one bundle's alone; tools' weights of several bundles lie
    together."""
    return {file.path.partition("/")[0] for file in manifest.files} - {PurePosixPath(HUB).parts[0]}


def serialised(manifest: Manifest) -> bytes:
    """The bytes of manifest.json."""
    return manifest.model_dump_json(indent=1).encode() + b"\n"


def hash_line(raw: bytes) -> bytes:
    """The bytes of manifest.json.sha256, for the bytes of manifest.json."""
    return f"{hashlib.sha256(raw).hexdigest()}  {MANIFEST}\n".encode()


def trusted_manifest(
    raw: bytes, line: bytes, where: Path, expected: Mapping[str, str | None]
) -> tuple[Manifest, str]:
    """The manifest in `raw` and its SHA-256. Raises BundleError unless that is the hash of `line`
    (manifest.json.sha256) and each one that is `expected` (who says so → hash)."""
    sha256 = hashlib.sha256(raw).hexdigest()
    if line != hash_line(raw):
        # The line is not quoted: a link may lead to a secret
        raise BundleError(
            f"{where}: {MANIFEST} or {MANIFEST_HASH} is damaged: expected {MANIFEST_HASH} to name SHA-256"
            f" {sha256}, got something else",
            "copy or unpack the bundle again (a damaged manifest of a models folder has to be removed first)",
        )
    for who, wanted in expected.items():
        if wanted not in (None, sha256):
            raise BundleError(
                f"{where}: expected {MANIFEST} with SHA-256 {wanted} ({who}), got {sha256}",
                "this is another bundle or a changed one",
            )
    try:
        manifest = Manifest.model_validate_json(raw)
        json.loads(raw, object_pairs_hook=with_each_key_once)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        key = ".".join(str(part) for part in first["loc"]) or "file"
        mistake = f"{key}: {first['msg']}"
    except ValueError as error:  # a key twice, of which another reader may take the other
        mistake = str(error)[:300]
    else:
        return manifest, sha256
    raise BundleError(f"{where}: {MANIFEST} cannot be used: {mistake}", "fetch the bundle again")
