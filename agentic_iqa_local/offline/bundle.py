"""Bundles carry model files to a machine without a network: written, verified and unpacked.

A bundle is an uncompressed tar archive that begins with the manifest, or the folder that it unpacks to:

    manifest.json.sha256, manifest.json  every file with size, SHA-256, source and licence
    FOLDER/...                           a vision-language model
    tools/hub, tools/huggingface         what pyiqa's metrics load
    wheels/                              an offline installation of the environment

Only regular files that the manifest names are taken from an archive, under the manifest's names. The models folder is a
bundle in folder form; its manifest is that of all bundles unpacked into it, and is written last.
"""

import hashlib
import io
import os
import re
import shutil
import tarfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from filelock import FileLock, Timeout
from pydantic import ValidationError
from rich.filesize import decimal

from agentic_iqa_local.files import (
    FileError,
    WriteError,
    file_hash,
    first_mistake,
    models_root,
    open_regular,
    read_bytes,
    remove_temporaries,
    replacing,
    write_whole,
)
from agentic_iqa_local.iqa_tools.weights import (
    LARGEST_MANIFEST,
    MANIFEST,
    BundleError,
    unchanged,
    unlisted,
)
from agentic_iqa_local.offline.manifest import (
    MANIFEST_HASH,
    Manifest,
    Notice,
    StoredFile,
    hash_line,
    read_folder_manifest,
    store_manifest,
    trusted_manifest,
)

OWN = (MANIFEST, MANIFEST_HASH)
BEGIN = re.compile(rf"\A{re.escape(MANIFEST_HASH)}\0".encode())  # of an archive
CHUNK = 1 << 20  # bytes
LOCK = ".agentic_iqa.lock"
MAKE_ROOM = "make room or choose another folder"
COPY_AGAIN = "go on with 'rsync --append-verify' or copy it again, then run the same command"
Progress = Callable[[str, int], None]  # a file's path and how many of its bytes were just done


def silent(path: str, size: int) -> None:
    """Shows no progress."""


@dataclass(frozen=True)
class Bundle:
    """An opened bundle: its manifest, that one's SHA-256, and what opens a file by its path (raises FileError)."""

    manifest: Manifest
    sha256: str
    open: Callable[[str], IO[bytes]]

    def chunks(self, entry: StoredFile, progress: Progress) -> Iterator[bytes]:
        """A file's bytes. Raises BundleError, after the last of them at the latest, unless they are the manifest's."""
        digest, size = hashlib.sha256(), 0
        try:
            with self.open(entry.path) as file:
                while chunk := file.read(CHUNK):
                    digest.update(chunk)
                    size += len(chunk)
                    progress(entry.path, len(chunk))
                    yield chunk
        except (OSError, FileError, tarfile.TarError) as error:
            raise BundleError(f"{entry.path} cannot be read: {error}", "copy it again") from error
        if size != entry.size or digest.hexdigest() != entry.sha256:
            wanted, got = (
                f"{entry.size} bytes with SHA-256 {entry.sha256}",
                f"{size} with {digest.hexdigest()}",
            )
            raise BundleError(
                f"{entry.path} is damaged: expected {wanted}, got {got}", "copy it again"
            )


@contextmanager
def opened(bundle: str | Path, expect: str | None = None) -> Iterator[Bundle]:
    """A bundle to read from. Raises BundleError unless its manifest can be trusted and has the SHA-256 `expect`, and
    unless an archive is whole and holds the manifest's files alone."""
    bundle = Path(bundle)
    if bundle.is_dir():
        manifest, sha256 = read_folder_manifest(bundle, expect)
        yield Bundle(manifest, sha256, lambda path: open(open_regular(bundle / path), "rb"))  # noqa: SIM115
        return
    try:
        file = open(open_regular(bundle), "rb")  # noqa: SIM115 # closed below
    except FileError as error:
        raise BundleError(
            f"{bundle}: {error}", "name a bundle: an archive, or a folder with manifest.json"
        ) from None
    with file:
        try:
            tar = tarfile.open(fileobj=file, mode="r:")  # noqa: SIM115 # nothing but the file is to be closed
            entries = list(_members(tar))
            members = {member.name: member for member in entries if _is_plain(member)}
            raw, line = (_content(tar, members.get(name)) for name in OWN)
        except Exception as error:  # tarfile raises nearly any type for a header that is damaged
            raise BundleError(
                f"{bundle}: no bundle, or an incomplete copy ({error})", COPY_AGAIN
            ) from error
        manifest, sha256 = trusted_manifest(raw, line, bundle, expect)
        named = {entry.path for entry in manifest.files}
        if named - members.keys() or len(entries) != len(named) + len(OWN):
            wrong = "expected each file of its manifest once, plain, and nothing else"
            raise BundleError(f"{bundle}: {wrong}", COPY_AGAIN)
        yield Bundle(manifest, sha256, lambda path: cast(IO[bytes], tar.extractfile(members[path])))


def _members(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """The members of an archive. Raises ReadError where one does not lie behind the one before: with a negative
    size Python's tarfile would read the same ones for ever (CVE-2025-8194)."""
    end = -1
    for member in tar:
        if member.offset <= end or member.size < 0:
            raise tarfile.ReadError(f"the size of {member.name[:100]} cannot be")
        end = member.offset
        yield member


def _is_plain(member: tarfile.TarInfo) -> bool:
    """Whether a member's bytes lie in the archive as they are: no link, device or folder, and without holes."""
    return member.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and not member.issparse()


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo | None) -> bytes:
    """The beginning of a plain member, as long as a manifest may be; nothing where there is none."""
    if member is None:
        return b""
    return cast(IO[bytes], tar.extractfile(member)).read(LARGEST_MANIFEST)


def verify(
    bundle: str | Path, expect: str | None = None, progress: Progress = silent
) -> list[BundleError]:
    """An error for each file that is missing or damaged; empty when all is well. Reads every byte.

    Raises BundleError when the manifest itself cannot be trusted or is not `expect`, and for an incomplete archive.
    """
    problems: list[BundleError] = []
    with opened(bundle, expect) as source:
        for entry in source.manifest.files:
            try:
                for _ in source.chunks(entry, progress):
                    pass
            except BundleError as error:
                problems.append(error)
        if os.path.isdir(bundle):
            known = {entry.path for entry in source.manifest.files}
            problems += unlisted(Path(bundle), known, source.manifest.models)
    return problems


def unpack(
    bundle: str | Path, root: str | Path, expect: str | None = None, progress: Progress = silent
) -> Manifest:
    """Puts a bundle's files, but for wheels, into the models folder `root` and returns their manifest.

    A file gets its name only when its bytes are those of the manifest; what lies there with the right bytes is kept, so
    that the same call completes an interrupted unpacking. What an earlier bundle brought of the same model is removed.
    Raises BundleError, also where there is too little space or another process unpacks there.
    """
    root = models_root(root)
    with opened(bundle, expect) as source, _write_errors(root):
        root.mkdir(parents=True, exist_ok=True)
        with FileLock(root / LOCK, timeout=0):
            before = store_manifest(root)
            new = source.manifest.without_wheels()
            joined = before.joined_with(new) if before else new
            known = {entry.path for entry in before.files} if before else set()
            missing = [
                entry
                for entry in new.files
                if not unchanged(root / entry.path, entry.size, entry.sha256)
            ]
            _check_places(root, missing, known)
            require_space(root, sum(entry.size for entry in missing))
            for entry in missing:
                place = root / entry.path
                place.parent.mkdir(parents=True, exist_ok=True)
                remove_temporaries(place.parent)
                write_whole(place, source.chunks(entry, progress))
            for path in known - {entry.path for entry in joined.files}:
                (root / path).unlink(missing_ok=True)
            raw = joined.serialised()
            write_whole(root / MANIFEST_HASH, hash_line(raw))
            write_whole(root / MANIFEST, raw)
    return new


def write_bundle(
    out: Path,
    files: Mapping[str, tuple[Path, str, str]],
    contents: tuple[str, ...],
    notices: tuple[Notice, ...] = (),
    progress: Progress = silent,
) -> tuple[Manifest, str]:
    """Writes an archive of `files` (path → where it lies, source, licence), and returns its manifest and that one's
    SHA-256. `contents` says in words what it holds. Raises BundleError."""
    try:
        entries = []
        for path, (place, source, licence) in sorted(files.items()):
            size, sha256 = place.stat().st_size, file_hash(place)
            entries.append(
                StoredFile(path=path, size=size, sha256=sha256, source=source, licence=licence)
            )
            progress(path, size)
        manifest = Manifest(contents=contents, notices=notices, files=tuple(entries))
    except OSError as error:
        raise BundleError(
            f"{error.filename}: cannot be read ({error.strerror})", "make it readable"
        ) from error
    except ValidationError as error:
        raise BundleError(
            f"bundle: {first_mistake(error)}", "rename or leave out that file"
        ) from error
    raw = manifest.serialised()
    require_space(out.parent, manifest.size + len(raw))
    own = {MANIFEST_HASH: hash_line(raw), MANIFEST: raw}
    with (
        _write_errors(out),
        replacing(out) as archive,
        tarfile.open(fileobj=archive, mode="w", format=tarfile.GNU_FORMAT) as tar,
    ):
        for name in (*own, *(entry.path for entry in entries)):
            with io.BytesIO(own[name]) if name in own else files[name][0].open("rb") as file:
                member = tarfile.TarInfo(name)
                member.size = file.seek(0, os.SEEK_END)
                file.seek(0)
                tar.addfile(member, file)
            progress(name, member.size)
    return manifest, hashlib.sha256(raw).hexdigest()


def _check_places(root: Path, missing: Sequence[StoredFile], known: Collection[str]) -> None:
    """Raises BundleError where something in the models folder lies in the way of a file that is to be written.

    Args:
        root: The models folder.
        missing: The files that are to be written.
        known: The paths that earlier bundles brought, which may be replaced.
    """
    if os.path.lexists(root / MANIFEST_HASH) and not os.path.lexists(root / MANIFEST):
        _check_interrupted(root / MANIFEST_HASH)
    for entry in missing:
        place = root / entry.path
        in_the_way = place if entry.path not in known or place.is_dir() else None
        for parent in place.parents[: len(Path(entry.path).parts) - 1]:
            if os.path.lexists(parent) and not parent.is_dir():
                in_the_way = parent
        if in_the_way and os.path.lexists(in_the_way):
            wrong = f"{in_the_way}: lies there already, and no bundle brought it"
            raise BundleError(wrong, f"move {root / entry.top} away or choose another --models")


def _check_interrupted(place: Path) -> None:
    """Raises BundleError unless the file is what an interrupted unpacking leaves: the hash of a manifest alone."""
    with suppress(FileError):
        line = read_bytes(place, 1000).decode("latin-1")
        if re.fullmatch(rf"[0-9a-f]{{64}}  {MANIFEST}\n", line):
            return
    raise BundleError(f"{place}: lies there already, and no bundle brought it", "move it away")


def require_space(folder: Path, size: int) -> None:
    """Raises BundleError unless `size` bytes are free on the disk of `folder`, which may not exist yet."""
    free = shutil.disk_usage(
        next(place for place in (folder, *folder.parents) if place.exists())
    ).free
    if size > free:
        raise BundleError(
            f"{folder}: expected {decimal(size)} of free space, got {decimal(free)}", MAKE_ROOM
        )


@contextmanager
def _write_errors(place: Path) -> Iterator[None]:
    """What the file system raises about `place` becomes BundleError."""
    try:
        yield
    except Timeout:
        wait = "wait until it has ended, then run this again"
        raise BundleError(f"{place}: another process unpacks into it", wait) from None
    except WriteError as error:
        raise BundleError(error.message, MAKE_ROOM) from error
    except OSError as error:
        raise BundleError(
            f"{place}: cannot be written ({error.strerror or error})", MAKE_ROOM
        ) from error
