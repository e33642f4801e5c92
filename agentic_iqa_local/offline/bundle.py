"""Bundles carry model files to a machine without a network: written, verified and unpacked.

A bundle is a folder, or the same as one uncompressed tar archive that begins with the manifest:

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
import shutil
import tarfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from filelock import FileLock, Timeout
from pydantic import ValidationError

from agentic_iqa_local.files import FileError, models_root, open_regular
from agentic_iqa_local.offline.manifest import (
    LARGEST_MANIFEST,
    MANIFEST,
    MANIFEST_HASH,
    WHEELS,
    BundleError,
    Manifest,
    Notice,
    StoredFile,
    amount,
    hash_line,
    read_folder_manifest,
    trusted_manifest,
    unlisted,
)
from agentic_iqa_local.offline.store import store_manifest, unchanged

CHUNK = 1 << 20
PARTIAL = ".partial"
LOCK = ".agentic_iqa.lock"
COPY_AGAIN = "go on with 'rsync --append-verify' or copy it again, then run the same command"
Opened = tuple[StoredFile, IO[bytes] | BundleError]  # a file of a bundle with its bytes, or what is wrong with it
Progress = Callable[[str, int], None]  # a file's path and how many of its bytes were just done


class TruncatedError(BundleError):
    """An archive that ends too early."""


@dataclass(frozen=True)
class Source:
    """An opened bundle: its manifest, that one's SHA-256, and its files."""

    manifest: Manifest
    sha256: str
    files: Iterator[Opened]


def silent(path: str, size: int) -> None:
    """Shows no progress."""


@contextmanager
def opened(bundle: str | Path, expect: str | None = None) -> Iterator[Source]:
    """A bundle to read from. Raises BundleError unless its manifest can be trusted and has the SHA-256 `expect`."""
    bundle = Path(bundle)
    if bundle.is_dir():
        manifest, sha256 = read_folder_manifest(bundle, expect)
        yield Source(manifest, sha256, _files_of_folder(bundle, manifest))
        return
    try:
        with open(open_regular(bundle), "rb") as file, tarfile.open(fileobj=file, mode="r:") as tar:
            line, raw = (_leading(tar, name, bundle) for name in (MANIFEST_HASH, MANIFEST))
            manifest, sha256 = trusted_manifest(raw, line, bundle, expect)
            yield Source(manifest, sha256, _files_of_archive(tar, bundle, manifest))
    except FileError as error:
        raise BundleError(f"{bundle}: expected a bundle, {error}", "name another") from None
    except tarfile.TarError as error:
        raise _no_bundle(bundle) from error


def _no_bundle(bundle: Path) -> BundleError:
    found = f"{bundle}: expected a bundle that starts with {MANIFEST_HASH}, got something else"
    return BundleError(found, "this is no bundle, or its beginning is damaged: copy it again")


def _leading(tar: tarfile.TarFile, name: str, bundle: Path) -> bytes:
    """The bytes of the archive's next member, which has this name."""
    member = tar.next()
    if member is None or member.name != name or not member.isreg() or member.size > LARGEST_MANIFEST:
        raise _no_bundle(bundle)
    file = tar.extractfile(member)
    return file.read() if file else b""


def _files_of_folder(folder: Path, manifest: Manifest) -> Iterator[Opened]:
    for entry in manifest.files:
        place = folder / entry.path
        try:
            with open(open_regular(place), "rb") as file:
                yield entry, file
        except (FileError, OSError) as error:
            why = getattr(error, "strerror", None) or error
            yield entry, BundleError(f"{place}: expected {entry.size} bytes, found none: {why}", "copy it again")


def _files_of_archive(tar: tarfile.TarFile, bundle: Path, manifest: Manifest) -> Iterator[Opened]:
    left = {entry.path: entry for entry in manifest.files}
    try:
        while member := tar.next():
            entry, file = left.pop(member.name, None), tar.extractfile(member) if member.isreg() else None
            if entry is None or file is None or member.size != entry.size:
                named = f"{member.name[:300]!r} as a regular file of its size, once"
                raise BundleError(f"{bundle}: the manifest does not name {named}", "fetch the bundle again")
            yield entry, file
    except tarfile.TarError as error:
        raise TruncatedError(f"{bundle}: it is damaged or incomplete ({error})", COPY_AGAIN) from error
    if left:
        raise TruncatedError(f"{bundle} ends before {next(iter(left))}: the copy is incomplete", COPY_AGAIN)


def _chunks(entry: StoredFile, file: IO[bytes] | BundleError, where: Path, progress: Progress) -> Iterator[bytes]:
    """The file's bytes. Raises BundleError, after the last of them at the latest, unless they are the manifest's."""
    if isinstance(file, BundleError):
        raise file
    digest, size = hashlib.sha256(), 0
    try:
        while chunk := file.read(min(CHUNK, entry.size + 1 - size)):
            digest.update(chunk)
            size += len(chunk)
            progress(entry.path, len(chunk))
            yield chunk
    except (OSError, tarfile.TarError) as error:
        raise TruncatedError(f"{where}: {entry.path} cannot be read to its end ({error})", "copy it again") from error
    if size != entry.size or digest.hexdigest() != entry.sha256:
        wanted, got = f"{entry.size} bytes with SHA-256 {entry.sha256}", f"{size} with {digest.hexdigest()}"
        raise BundleError(f"{where}: {entry.path} is damaged: expected {wanted}, got {got}", "copy it again")


def read_manifest(bundle: str | Path, expect: str | None = None) -> tuple[Manifest, str]:
    """The manifest of a bundle or of the models folder, and its SHA-256. Raises BundleError when it cannot be trusted
    or is not `expect`."""
    with opened(bundle, expect) as source:
        return source.manifest, source.sha256


def verify(bundle: str | Path, expect: str | None = None, progress: Progress = silent) -> list[BundleError]:
    """An error for each file that is missing or damaged; empty when all is well. Reads every byte.

    Raises BundleError when the manifest itself cannot be trusted or is not `expect`.
    """
    problems: list[BundleError] = []
    bundle = Path(bundle)
    with opened(bundle, expect) as source:
        try:
            for entry, file in source.files:
                try:
                    for _ in _chunks(entry, file, bundle, progress):
                        pass
                except TruncatedError:
                    raise
                except BundleError as error:
                    problems.append(error)
        except BundleError as error:
            problems.append(error)
        if bundle.is_dir():
            problems += unlisted(bundle, source.manifest, source.manifest.model_folders)
    return problems


def unpack(bundle: str | Path, root: str | Path, expect: str | None = None, progress: Progress = silent) -> Manifest:
    """Puts a bundle's files, but for wheels, into the models folder `root` and returns their manifest.

    A file gets its name only when its bytes are those of the manifest; what lies there with the right bytes is kept, so
    that the same call completes an interrupted unpacking. What an earlier bundle brought of the same model is removed.

    Raises:
        BundleError: something is damaged or unexpected, there is too little space, or another process unpacks there.
    """
    root = models_root(root)
    with opened(bundle, expect) as source, _locked(root):
        before, new = store_manifest(root), source.manifest.without(WHEELS)
        joined = before.joined_with(new) if before else new
        wanted = {entry.path for entry in new.files if not unchanged(root / entry.path, entry)}
        require_space(root, sum(entry.size for entry in new.files if entry.path in wanted))
        for entry, file in source.files:
            if entry.path in wanted:
                write_file(_chunks(entry, file, Path(bundle), progress), root / entry.path)
        kept = {entry.path for entry in joined.files}
        for path in [entry.path for entry in before.files if entry.path not in kept] if before else ():
            (root / path).unlink(missing_ok=True)
        write_manifest(root, joined)
    return new


@contextmanager
def _locked(root: Path) -> Iterator[None]:
    """Only this process unpacks into `root`, which is made."""
    with _write_errors(root):
        root.mkdir(parents=True, exist_ok=True)
        lock = FileLock(root / LOCK, timeout=0)
        try:
            lock.acquire()
        except Timeout:
            why = f"{root}: another process unpacks into it"
            raise BundleError(why, "wait until it has ended, then run this again") from None
    try:
        yield
    finally:
        lock.release()
        with suppress(OSError):
            (root / LOCK).unlink()
            root.rmdir()  # where nothing was unpacked


def describe(
    files: Mapping[str, tuple[Path, str, str]],
    contents: tuple[str, ...],
    notices: tuple[Notice, ...] = (),
    progress: Progress = silent,
) -> Manifest:
    """The manifest of a bundle of `files`: path → (where it lies, source, licence). Raises BundleError."""
    entries = []
    try:
        for path, (place, source, licence) in sorted(files.items()):
            with place.open("rb") as file:
                size, sha256 = os.fstat(file.fileno()).st_size, hashlib.file_digest(file, "sha256").hexdigest()
            progress(path, size)
            entries.append(StoredFile(path=path, size=size, sha256=sha256, source=source, licence=licence))
        return Manifest(contents=contents, notices=notices, files=tuple(entries))
    except OSError as error:
        raise BundleError(f"{error.filename}: cannot be read ({error.strerror})") from error
    except ValidationError as error:
        raise BundleError(f"bundle: {error.errors()[0]['msg']}", "rename or leave out that file") from error


def write_bundle(
    out: str | Path, manifest: Manifest, places: Mapping[str, Path], archive: bool = True, progress: Progress = silent
) -> str:
    """Writes the bundle that `manifest` describes from files at `places`, and returns its manifest's SHA-256.

    An archive gets a file NAME.sha256 beside it, for `sha256sum -c`. A folder that is partly there is completed. Raises
    BundleError, also for a file that is no longer what the manifest says.
    """
    out = Path(out).absolute()
    if archive:
        _write_archive(out, manifest, places, progress)
    else:
        missing = [entry for entry in manifest.files if not unchanged(out / entry.path, entry)]
        require_space(out, sum(entry.size for entry in missing))
        for entry in missing:
            with places[entry.path].open("rb") as file:
                write_file(_chunks(entry, file, places[entry.path], progress), out / entry.path)
        write_manifest(out, manifest)
    return hashlib.sha256(manifest.serialised()).hexdigest()


def _write_archive(out: Path, manifest: Manifest, places: Mapping[str, Path], progress: Progress) -> None:
    raw = manifest.serialised()
    require_space(out.parent, manifest.size + len(raw) + 1024 * (len(manifest.files) + 24))
    with _complete(out) as partial:
        with tarfile.open(partial, "w", format=tarfile.GNU_FORMAT) as tar:
            for name, content in ((MANIFEST_HASH, hash_line(raw)), (MANIFEST, raw)):
                tar.addfile(_member(name, len(content)), io.BytesIO(content))
            for entry in manifest.files:
                with places[entry.path].open("rb") as file:
                    tar.addfile(_member(entry.path, entry.size), file)
                progress(entry.path, entry.size)
        with partial.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        out.with_name(f"{out.name}.sha256").write_text(f"{digest}  {out.name}\n")


def _member(name: str, size: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size = size
    return member


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Writes manifest.json and its hash. Raises BundleError."""
    raw = manifest.serialised()
    write_file(iter([hash_line(raw)]), folder / MANIFEST_HASH)
    write_file(iter([raw]), folder / MANIFEST)


def write_file(chunks: Iterator[bytes], target: Path) -> None:
    """Writes a file, which gets its name when it is complete. Raises BundleError."""
    with _complete(target) as partial, partial.open("xb") as file:
        for chunk in chunks:
            file.write(chunk)


@contextmanager
def _complete(target: Path) -> Iterator[Path]:
    """Another name to write under; the file is `target` when the block ends well, and gone otherwise."""
    partial = target.with_name(target.name + PARTIAL)
    try:
        with _write_errors(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            partial.unlink(missing_ok=True)
            yield partial
            os.replace(partial, target)
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def require_space(folder: Path, size: int) -> None:
    """Raises BundleError unless `size` bytes are free on the disk of `folder`, which may not exist yet."""
    free = shutil.disk_usage(next(place for place in (folder, *folder.parents) if place.exists())).free
    if size > free:
        found = f"{folder}: expected {amount(size)} of free space, got {amount(free)}"
        raise BundleError(found, "make room or choose another folder")


@contextmanager
def _write_errors(place: Path) -> Iterator[None]:
    """What the file system raises about `place` becomes BundleError."""
    try:
        yield
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        reason = getattr(error, "strerror", None) or error
        raise BundleError(f"{place}: cannot be written ({reason})", "make room or choose another folder") from error
