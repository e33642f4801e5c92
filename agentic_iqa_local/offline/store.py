"""Model files on disk: bundles, which carry them to a machine without a network, and the store that they are
unpacked into.

A bundle is a folder of files with a manifest, or the same as one uncompressed tar archive:

    manifest.json.sha256                 "HASH  manifest.json", as sha256sum writes it
    manifest.json                        every file with size, SHA-256, source and licence, and the licences
                                         that bind
    FOLDER/...                           a vision-language model
    tools/hub/{pyiqa,checkpoints,clip}/  what pyiqa's metrics load, laid out as torch's hub folder
    tools/huggingface/models--ORG--REPO/ what timm and transformers load for them: a Hugging Face cache, its
                                         blobs in place of links (refs/main, snapshots/COMMIT/...)
    wheels/                              an offline installation of the environment

Everything in an archive but the files' bytes follows from the manifest: order, headers, padding, length.
Reading compares with that and interprets nothing else, so links, devices, foreign names, doubled members and
bombs are damage like any other, and the manifest's SHA-256 stands for the whole archive. `fetch.py` collects
what they hold.

A store is a bundle in folder form, its manifest that of all bundles unpacked into it; it is written last. How
the rest of the package uses it: `models_root()` says where it is; `environment(root)` is put into os.environ
before anything imports torch or huggingface_hub; tools load files of `weights_dir(root)` for which
`verified(root, path)` holds, and no others. Neither torch nor pyiqa is imported here, and nothing here
reaches a network.

    python -m agentic_iqa_local verify BUNDLE --expect HASH
    python -m agentic_iqa_local unpack BUNDLE --expect HASH --models DIR
"""

import fcntl
import functools
import hashlib
import json
import os
import re
import shutil
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, BinaryIO, Literal, Self

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
from agentic_iqa_local.files import FileError, open_regular, read_bytes, with_each_key_once
from agentic_iqa_local.paths import ROOT
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
LOCK = ".agentic_iqa.lock"
BLOCK = 512  # of a tar archive
CHUNK = 1 << 20
# Names that every file system holds, a stick's too. They begin with no dot: nothing hidden, and none of the
# store's own.
SEGMENT = re.compile(r"(?=[^. ])[A-Za-z0-9_+=@,!~() .-]+(?<![. ])")
WINDOWS_DEVICE = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?", re.IGNORECASE)
MOST_FOLDERS = 16  # above a file

Progress = Callable[[str, int], None]  # a file's path and how many of its bytes were just done


class BundleError(UserError, RuntimeError):
    """A bundle or store that cannot be trusted, read or written; the message is one sentence that names the
    file."""


class Truncated(BundleError):
    """An archive that ends too early."""


def _printable(text: str) -> str:
    if one_line(text) != text:
        raise ValueError("expected one line of printable characters")
    return text


Line = Annotated[str, Field(max_length=1000), AfterValidator(_printable)]


class Record(BaseModel):
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
        _header(path, 0)
        return path


class Manifest(Record):
    """What a bundle or a store holds; `contents` says it in words."""

    format: Literal["agentic_iqa_local bundle 1"] = "agentic_iqa_local bundle 1"
    contents: tuple[Line, ...]
    notices: tuple[Notice, ...] = ()
    files: tuple[StoredFile, ...]

    @model_validator(mode="after")
    def _one_place_each(self) -> Self:
        """Also where capitals make no difference, as on a stick."""
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


# where things lie


def models_root(option: str | Path | None = None) -> Path:
    """The models folder: `option`, else $AGENTIC_IQA_MODELS, else models/ of the checkout, which a wheel has
    inside it."""
    return Path(os.path.abspath(option or os.environ.get("AGENTIC_IQA_MODELS") or ROOT / "models"))


def weights_dir(root: str | Path) -> Path:
    """The tools' weights in a store: a folder laid out like torch's hub folder."""
    return Path(root) / HUB


def environment(root: str | Path) -> dict[str, str]:
    """The variables with which torch, timm and transformers find a store's files and look nowhere else.

    Where `root` is a folder without a manifest, only those that keep them from the network.
    """
    offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    if not os.path.isfile(Path(root, MANIFEST)):
        return offline
    return offline | {
        "TORCH_HOME": str(weights_dir(root).parent.absolute()),
        "HF_HUB_CACHE": str((Path(root) / HUGGINGFACE).absolute()),
    }


def store_manifest(root: str | Path) -> Manifest | None:
    """What was unpacked into a store; None where nothing was. Raises BundleError for a damaged manifest."""
    return _Folder.at(Path(root)).manifest if os.path.lexists(Path(root, MANIFEST)) else None


def verified(root: str | Path, path: str) -> bool:
    """Whether the store's manifest has the file `path` and its bytes are those of the manifest now."""
    manifest, place = store_manifest(root), Path(root) / path
    entry = next((file for file in manifest.files if file.path == path), None) if manifest else None
    return entry is not None and _unchanged(place, entry)


def check_model(folder: str | Path) -> None:
    """Raises BundleError unless a model's folder in the store is as the manifest says; silent for one that no
    bundle brought."""
    root, folder = models_root().resolve(), Path(folder).resolve()
    manifest = store_manifest(root) if root in folder.parents else None
    entries = (
        [file for file in manifest.files if (root / file.path).is_relative_to(folder)] if manifest else []
    )
    if entries and (strange := unlisted(root, manifest, folder.relative_to(root).parts[0])):
        raise strange[0]
    for entry in entries:
        place = root / entry.path
        if not _unchanged(place, entry):
            raise BundleError(
                f"{place} is damaged or was changed: expected the SHA-256 of {MANIFEST}",
                "unpack its bundle again",
            )


def unlisted(root: Path, manifest: Manifest, *folders: str) -> list[BundleError]:
    """An error for each file in `folders` (default: all that models of the manifest have) that the
    manifest does not name: a loader might prefer it."""
    known = {file.path for file in manifest.files}
    return [
        BundleError(f"{place}: expected files of {root / MANIFEST} only, got this one", "remove it")
        for folder in folders or sorted(_own_folders(manifest))
        for place in sorted((root / folder).rglob("*"))
        if not place.is_dir() and place.relative_to(root).as_posix() not in known
    ]


def _own_folders(manifest: Manifest) -> set[str]:
    """The folders that are one bundle's alone: models'. Tools' weights of several bundles lie together."""
    return {file.path.partition("/")[0] for file in manifest.files} - {PurePosixPath(HUB).parts[0]}


def _unchanged(place: Path, entry: StoredFile) -> bool:
    return place.is_file() and place.stat().st_size == entry.size and file_hash(place) == entry.sha256


def file_hash(place: Path) -> str:
    """A file's SHA-256; a process reads a file once and again only when its size or times have changed."""
    state = place.stat()
    return _hash_of(place, (state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns))


@functools.cache
def _hash_of(place: Path, state: tuple[int, ...]) -> str:
    with place.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# reading


def _header(path: str, size: int) -> bytes:
    """The archive's header of one file: POSIX ustar without owner or time. Raises ValueError for a path that
    is too long."""
    prefix, name = "", path
    if len(path) > 100:
        cut = path.find("/", len(path) - 101)
        prefix, name = path[: max(cut, 0)], path[cut + 1 :]
    if len(name) > 100 or len(prefix) > 155:
        raise ValueError(
            "expected a path that a tar header holds (100 characters after a '/', 155 before it), got"
            f" {path!r}"
        )
    length = b"%011o\0" % size if size < 8**11 else b"\x80" + size.to_bytes(11, "big")
    fields = struct.pack(
        "100s8s8s8s12s12s8s1s100s6s2s32s32s8s8s155s12x",
        *(
            name.encode(),
            b"0000644\0",
            b"0000000\0",
            b"0000000\0",
            length,
            b"00000000000\0",
            b" " * 8,
            b"0",
            b"",
        ),
        *(b"ustar\0", b"00", b"", b"", b"0000000\0", b"0000000\0", prefix.encode()),
    )
    return fields[:148] + b"%06o\0 " % sum(fields) + fields[156:]


def _padding(size: int) -> int:
    return -size % BLOCK


def _hash_line(raw: bytes) -> bytes:
    return f"{hashlib.sha256(raw).hexdigest()}  {MANIFEST}\n".encode()


def _trusted(
    raw: bytes, line: bytes, where: Path, expected: Mapping[str, str | None]
) -> tuple[Manifest, str]:
    """The manifest and its SHA-256, which must be that of `line` and whatever else is `expected` (who says so
    → hash)."""
    found = hashlib.sha256(raw).hexdigest()
    if line != _hash_line(raw):
        # The line is not quoted: a link may lead to a secret
        raise BundleError(
            f"{where}: {MANIFEST} or {MANIFEST_HASH} is damaged: expected {MANIFEST_HASH} to name SHA-256"
            f" {found}, got something else",
            "copy or unpack the bundle again (a damaged manifest of a models folder has to be removed first)",
        )
    for who, wanted in expected.items():
        if wanted is not None and wanted != found:
            raise BundleError(
                f"{where}: expected {MANIFEST} with SHA-256 {wanted} ({who}), got {found}; this is another"
                " bundle or a changed one",
            )
    try:
        manifest = Manifest.model_validate_json(raw)
        json.loads(raw, object_pairs_hook=with_each_key_once)
        return manifest, found
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        key = ".".join(str(part) for part in first["loc"]) or "file"
        raise BundleError(
            f"{where}: {MANIFEST} cannot be used: {key}: {first['msg']}", "fetch the bundle again"
        ) from error
    except ValueError as error:  # a key twice, of which another reader may take the other
        raise BundleError(
            f"{where}: {MANIFEST} cannot be used: {str(error)[:300]}", "fetch the bundle again"
        ) from error


class _Archive:
    """The archive form: whatever differs from what the manifest implies is damage."""

    def __init__(self, path: Path, file: BinaryIO, expect: str | None):
        self._path, self._file = path, file
        self._length = os.fstat(file.fileno()).st_size
        if self._take(BLOCK, MANIFEST_HASH) != _header(MANIFEST_HASH, HASH_LINE):
            raise BundleError(
                f"{path}: expected a bundle that starts with {MANIFEST_HASH}, got something else",
                "this is no bundle, or its beginning is damaged: copy it again",
            )
        line = self._padded(HASH_LINE, MANIFEST_HASH)
        header = self._take(BLOCK, MANIFEST)
        digits = re.fullmatch(rb"[0-7]{11}", header[124:135])
        size = int(digits[0], 8) if digits else 0
        if not 0 < size <= LARGEST_MANIFEST or header != _header(MANIFEST, size):
            raise BundleError(f"{path}: the header of {MANIFEST} is damaged", "copy the bundle again")
        raw = self._padded(size, MANIFEST)
        self.manifest, self.sha256 = _trusted(
            raw, line, path, {"--expect": expect, _sidecar(path).name: _promised(path)}
        )
        self._starts: dict[str, int] = {}
        self._end = file.tell()
        for entry in self.manifest.files:
            self._starts[entry.path] = self._end
            self._end += BLOCK + entry.size + _padding(entry.size)
        if self._length > (total := self._end + 2 * BLOCK):
            raise BundleError(
                f"{path}: expected {total} bytes as its {MANIFEST} says, got {self._length}", "copy it again"
            )

    def read(self, entry: StoredFile) -> Iterator[bytes]:
        """The file's bytes. Raises BundleError, after the last of them at the latest, when anything about it
        is damaged."""
        self._go_to(self._starts[entry.path])
        if self._take(BLOCK, entry.path) != _header(entry.path, entry.size):
            raise BundleError(f"{self._path}: the header of {entry.path} is damaged", "copy the bundle again")
        digest, left = hashlib.sha256(), entry.size
        while left:
            chunk = self._take(min(left, CHUNK), entry.path)
            digest.update(chunk)
            left -= len(chunk)
            yield chunk
        self._zeros(_padding(entry.size), entry.path)
        if digest.hexdigest() != entry.sha256:
            raise BundleError(
                f"{self._path}: {entry.path} is damaged: expected SHA-256 {entry.sha256}, got"
                f" {digest.hexdigest()}",
                "copy the bundle again",
            )

    def finish(self) -> None:
        """Raises BundleError unless the archive ends as it should."""
        self._go_to(self._end)
        self._zeros(2 * BLOCK, "the last file")

    def _go_to(self, position: int) -> None:
        self._file.seek(min(position, self._length))  # file systems refuse positions that no file can have

    def _take(self, count: int, inside: str) -> bytes:
        try:
            data = self._file.read(count) or b""  # None from a file in /proc that would have to be waited for
        except OSError as error:
            raise BundleError(
                f"{self._path}: {inside} cannot be read ({error.strerror})", "copy the bundle again"
            ) from error
        if len(data) < count:
            raise Truncated(
                f"{self._path} ends at byte {self._length}, inside {inside}: the copy is incomplete",
                "go on with 'rsync --append-verify' or copy it again, then run the same command",
            )
        return data

    def _padded(self, count: int, inside: str) -> bytes:
        data = self._take(count, inside)
        self._zeros(_padding(count), inside)
        return data

    def _zeros(self, count: int, inside: str) -> None:
        if self._take(count, inside).strip(b"\0"):
            raise BundleError(f"{self._path}: the padding after {inside} is damaged", "copy the bundle again")


def _sidecar(archive: Path) -> Path:
    return archive.with_name(archive.name + ".sha256")


def _promised(archive: Path) -> str | None:
    """The manifest's SHA-256 that the file beside an archive names; None without such a file."""
    sidecar = _sidecar(archive)
    if not os.path.lexists(sidecar):
        return None
    try:
        found = re.search(rb"^# manifest ([0-9a-f]{64})$", read_bytes(sidecar, 4096), re.MULTILINE)
    except FileError as error:
        raise BundleError(f"{sidecar}: {error}", "copy it again, or remove it and pass --expect") from error
    if found is None:
        raise BundleError(
            f"{sidecar}: expected a line '# manifest HASH', found none",
            "copy it again, or remove it and pass --expect",
        )
    return found[1].decode()


class _Folder:
    """The folder form: each file of the manifest at its place."""

    def __init__(self, manifest: Manifest, sha256: str, places: Mapping[str, Path]):
        self.manifest, self.sha256, self._places = manifest, sha256, places

    @classmethod
    def at(cls, folder: Path, expect: str | None = None) -> "_Folder":
        found = {}
        for name, largest in ((MANIFEST, LARGEST_MANIFEST), (MANIFEST_HASH, HASH_LINE)):
            try:
                found[name] = read_bytes(folder / name, largest)
            except FileError as error:
                raise BundleError(
                    f"{folder}: expected a bundle with {MANIFEST} and {MANIFEST_HASH}, cannot read {name}"
                    f" ({error})",
                    "the manifest is copied and unpacked last: repeat that",
                ) from error
        manifest, sha256 = _trusted(found[MANIFEST], found[MANIFEST_HASH], folder, {"--expect": expect})
        return cls(manifest, sha256, {entry.path: folder / entry.path for entry in manifest.files})

    def read(self, entry: StoredFile) -> Iterator[bytes]:
        """The file's bytes. Raises BundleError, after the last of them at the latest, for a file that is not
        as it should be."""
        place, digest = self._places[entry.path], hashlib.sha256()
        try:
            with open(open_regular(place), "rb") as file:
                if (size := os.fstat(file.fileno()).st_size) != entry.size:
                    raise BundleError(
                        f"{place}: expected {entry.size} bytes, got {size}; it was not copied whole or was"
                        " changed",
                    )
                while chunk := file.read(CHUNK):
                    digest.update(chunk)
                    yield chunk
        except FileError as error:
            raise BundleError(
                f"{place}: expected {entry.size} bytes, found no file to read ({error})", "copy it again"
            ) from error
        except OSError as error:
            raise BundleError(f"{place}: cannot be read ({error.strerror})", "copy it again") from error
        if digest.hexdigest() != entry.sha256:
            raise BundleError(
                f"{place} is damaged: expected SHA-256 {entry.sha256}, got {digest.hexdigest()}",
                "copy it again",
            )

    def finish(self) -> None:
        """Nothing but its files makes up a folder that is copied from."""


@contextmanager
def _opened(bundle: Path, expect: str | None) -> Iterator[_Archive | _Folder]:
    if os.path.isdir(bundle):
        yield _Folder.at(bundle, expect)
        return
    try:
        descriptor = open_regular(bundle)
    except FileError as error:
        raise BundleError(
            f"{bundle}: expected a bundle (an archive, or a folder with {MANIFEST}): {error}", "name another"
        ) from error
    with open(descriptor, "rb") as file:
        yield _Archive(bundle, file, expect)


def _silent(path: str, size: int) -> None:
    pass


def read_manifest(bundle: str | Path, expect: str | None = None) -> tuple[Manifest, str]:
    """A bundle's or store's manifest and its SHA-256. Raises BundleError when it cannot be trusted or is not
    `expect`."""
    with _opened(Path(bundle), expect) as source:
        return source.manifest, source.sha256


def verify(bundle: str | Path, expect: str | None = None, progress: Progress = _silent) -> list[str]:
    """One sentence for each file of a bundle or store that is missing or damaged; see `problems_of`."""
    return list(map(str, problems_of(bundle, expect, progress)))


def problems_of(
    bundle: str | Path, expect: str | None = None, progress: Progress = _silent
) -> list[BundleError]:
    """An error for each file of a bundle or store that is missing or damaged; empty when all is well.

    Reads every byte. Raises BundleError when the manifest itself cannot be trusted or is not `expect`.
    """
    problems = []
    with _opened(Path(bundle), expect) as source:
        try:
            for entry in source.manifest.files:
                try:
                    for chunk in source.read(entry):
                        progress(entry.path, len(chunk))
                except Truncated:
                    raise
                except BundleError as error:
                    problems.append(error)
            source.finish()
        except BundleError as error:
            problems.append(error)
        if isinstance(source, _Folder):
            problems += unlisted(Path(bundle), source.manifest)
    return problems


# writing


def unpack(
    bundle: str | Path, root: str | Path, expect: str | None = None, progress: Progress = _silent
) -> Manifest:
    """Puts a bundle's files, but for wheels, into the store `root` and returns their manifest.

    A file gets its name only when its bytes are those of the manifest; what lies there with the right bytes
    is kept, so an interrupted run, or one that met a truncated archive, is gone on with by the same call.
    What an earlier bundle brought of the same model is removed. The store's manifest comes last. Raises
    BundleError for anything damaged or unexpected, for a link in the way, for too little space and while
    another process unpacks there.
    """
    root = models_root(root)
    with _opened(Path(bundle), expect) as source, _alone(root):
        before, new = store_manifest(root), _without_wheels(source.manifest)
        joined = _joined(before, new)
        kept = {file.path for file in joined.files}
        left = [file.path for file in before.files if file.path not in kept] if before else []
        for path in left:
            _refuse_links(root, path)
        _copy(source, root, progress, new.files)
        for path in left:
            with _written(root / path):
                (root / path).unlink(missing_ok=True)
        _write_manifest(root, _serialised(joined))
    return new


def _without_wheels(manifest: Manifest) -> Manifest:
    """They are installed from the bundle; a store has no use for them."""
    files = tuple(file for file in manifest.files if not file.path.startswith(f"{WHEELS}/"))
    contents = tuple(line for line in manifest.contents if not line.startswith(WHEELS))
    return manifest.model_copy(update={"files": files, "contents": contents})


@contextmanager
def _alone(root: Path) -> Iterator[None]:
    """While this process alone unpacks into `root`, which is made and, where nothing came to lie in it,
    removed."""
    made, place = not os.path.exists(root), root / LOCK
    with _written(root):
        root.mkdir(parents=True, exist_ok=True)
    with _written(place):  # through no link, and without waiting for a pipe's other end
        descriptor = os.open(
            place, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666
        )
    with open(descriptor, "wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BundleError(f"{root}: another process unpacks into it", "wait for it") from error
        except OSError:
            pass  # a file system without locks
        try:
            yield
        finally:
            place.unlink(missing_ok=True)
            if made:
                with suppress(OSError):
                    root.rmdir()


@contextmanager
def _written(place: Path) -> Iterator[None]:
    """What the file system raises about `place` becomes BundleError."""
    try:
        yield
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        reason = getattr(error, "strerror", None) or error
        raise BundleError(
            f"{place}: cannot be written ({reason})", "make room there or choose another folder"
        ) from error


@dataclass(frozen=True)
class Piece:
    """A file for a bundle: its path there, where it lies now, where it came from and under which licence."""

    path: str
    file: Path
    source: str
    licence: str


def describe(
    pieces: Iterable[Piece],
    contents: Iterable[str],
    notices: Iterable[Notice] = (),
    progress: Progress = _silent,
) -> Manifest:
    """The manifest of a bundle of `pieces`, which are read for their hashes. Raises BundleError."""
    files = []
    try:
        for piece in sorted(pieces, key=lambda piece: piece.path):
            with piece.file.open("rb") as file:
                size, digest = (
                    os.fstat(file.fileno()).st_size,
                    hashlib.file_digest(file, "sha256").hexdigest(),
                )
            progress(piece.path, size)
            files.append(
                StoredFile(
                    path=piece.path, size=size, sha256=digest, source=piece.source, licence=piece.licence
                )
            )
        return Manifest(contents=tuple(contents), notices=tuple(notices), files=tuple(files))
    except OSError as error:
        raise BundleError(f"{error.filename}: cannot be read ({error.strerror})") from error
    except ValidationError as error:
        raise BundleError(f"bundle: {error.errors()[0]['msg']}", "rename or leave out that file") from error


def write_bundle(
    out: str | Path,
    manifest: Manifest,
    places: Mapping[str, Path],
    archive: bool = True,
    progress: Progress = _silent,
) -> str:
    """Writes the bundle that `manifest` describes from files at `places` (path in the bundle → file); its
    manifest's SHA-256.

    An archive gets a file NAME.sha256 beside it, for `sha256sum -c`. A folder that is partly there is gone on
    with. Raises BundleError, also for a file that is no longer what the manifest says.
    """
    out, raw = Path(out).absolute(), _serialised(manifest)
    sha256 = hashlib.sha256(raw).hexdigest()
    source = _Folder(manifest, sha256, places)
    if archive:
        _write_archive(out, raw, source, progress)
    else:
        _copy(source, out, progress, manifest.files)
        _write_manifest(out, raw)
    return sha256


def _serialised(manifest: Manifest) -> bytes:
    return manifest.model_dump_json(indent=1).encode() + b"\n"


def _joined(old: Manifest | None, new: Manifest) -> Manifest:
    """One manifest for both; a model, and a path of the tools, that both have is the new one's."""
    if old is None:
        return new
    paths, folders = {file.path for file in new.files}, _own_folders(new)
    kept = [
        file for file in old.files if file.path not in paths and file.path.partition("/")[0] not in folders
    ]
    try:
        return Manifest(
            contents=tuple(dict.fromkeys((*old.contents, *new.contents))),
            notices=tuple(dict.fromkeys((*old.notices, *new.notices))),
            files=(*kept, *new.files),
        )
    except ValidationError as error:
        raise BundleError(
            f"the models folder: {error.errors()[0]['msg']}", "unpack this bundle into another"
        ) from error


def _write_archive(out: Path, raw: bytes, source: _Folder, progress: Progress) -> None:
    members = [(MANIFEST_HASH, HASH_LINE, [_hash_line(raw)]), (MANIFEST, len(raw), [raw])]
    members += [(entry.path, entry.size, source.read(entry)) for entry in source.manifest.files]
    _require_space(out.parent, sum(BLOCK + size + _padding(size) for _, size, _ in members) + 2 * BLOCK)
    whole = hashlib.sha256()

    def stream() -> Iterator[bytes]:
        for path, size, chunks in members:
            yield _header(path, size)
            for chunk in chunks:
                progress(path, len(chunk))
                yield chunk
            yield bytes(_padding(size))
        yield bytes(2 * BLOCK)

    def hashed() -> Iterator[bytes]:
        for data in stream():
            whole.update(data)
            yield data

    _sidecar(out).unlink(missing_ok=True)
    _place(hashed(), out)
    _place([f"# manifest {source.sha256}\n{whole.hexdigest()}  {out.name}\n".encode()], _sidecar(out))


def _write_manifest(folder: Path, raw: bytes) -> None:
    _place([_hash_line(raw)], folder / MANIFEST_HASH)
    _place([raw], folder / MANIFEST)


def _copy(source: _Archive | _Folder, root: Path, progress: Progress, files: Sequence[StoredFile]) -> None:
    """Writes those of `files` of `source` that do not lie in `root` already."""
    for entry in files:
        _refuse_links(root, entry.path)
    missing = [entry for entry in files if not _whole(root / entry.path, entry)]
    _require_space(root, sum(entry.size for entry in missing))
    for entry in missing:
        _place(_reported(source.read(entry), entry.path, progress), root / entry.path)
    source.finish()


def _reported(chunks: Iterable[bytes], path: str, progress: Progress) -> Iterator[bytes]:
    for chunk in chunks:
        progress(path, len(chunk))
        yield chunk


def _place(chunks: Iterable[bytes], target: Path) -> None:
    """Writes a file under another name and gives it its own when it is complete."""
    partial = target.with_name(target.name + PARTIAL)
    try:
        with _written(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            partial.unlink(missing_ok=True)
            with partial.open("xb") as file:
                for chunk in chunks:
                    file.write(chunk)
            os.replace(partial, target)
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def _whole(place: Path, entry: StoredFile) -> bool:
    if not place.is_file() or place.stat().st_size != entry.size:
        return False
    with place.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == entry.sha256


def _refuse_links(root: Path, path: str) -> None:
    """Raises BundleError for a link on the way to a file: writing through it would leave the store."""
    place = root
    for part in PurePosixPath(path).parts[:-1]:
        place /= part
        if place.is_symlink():
            raise BundleError(
                f"{place}: expected a folder, got a link", "remove it or choose another folder with --models"
            )


def _require_space(folder: Path, size: int) -> None:
    free = shutil.disk_usage(next(place for place in (folder, *folder.parents) if place.exists())).free
    if size > free:
        raise BundleError(
            f"{folder}: expected {amount(size)} of free space, got {amount(free)}",
            "make room or choose another folder",
        )
