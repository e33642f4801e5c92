"""Writes bundles, and files of bundles: each gets its name only when it is complete."""

import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from pydantic import ValidationError

from agentic_iqa_local.offline.manifest import (
    HASH_LINE,
    MANIFEST,
    MANIFEST_HASH,
    PARTIAL,
    BundleError,
    Manifest,
    Notice,
    StoredFile,
    amount,
    hash_line,
    serialised,
)
from agentic_iqa_local.offline.reading import Archive, Folder, Progress, reported, sidecar_of, silent
from agentic_iqa_local.offline.tar import BLOCK, tar_header, tar_padding


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
    progress: Progress = silent,
) -> Manifest:
    """The manifest of a bundle of `pieces`, which are read for their hashes. Raises BundleError."""
    files = []
    try:
        for piece in sorted(pieces, key=lambda piece: piece.path):
            with piece.file.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            progress(piece.path, size)
            files.append(
                StoredFile(
                    path=piece.path, size=size, sha256=sha256, source=piece.source, licence=piece.licence
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
    progress: Progress = silent,
) -> str:
    """Writes the bundle that `manifest` describes from files at `places` (path in the bundle → file), and
    returns its manifest's SHA-256.

    An archive gets a file NAME.sha256 beside it, for `sha256sum -c`. A folder that is partly there is
    completed. Raises BundleError, also for a file that is no longer what the manifest says.
    """
    out, raw = Path(out).absolute(), serialised(manifest)
    sha256 = hashlib.sha256(raw).hexdigest()
    source = Folder(manifest, sha256, places)
    if archive:
        _write_archive(out, raw, source, progress)
    else:
        copy_files(source, out, progress, manifest.files)
        write_manifest(out, raw)
    return sha256


def _write_archive(out: Path, raw: bytes, source: Folder, progress: Progress) -> None:
    members = [(MANIFEST_HASH, HASH_LINE, [hash_line(raw)]), (MANIFEST, len(raw), [raw])]
    members += [(entry.path, entry.size, source.read(entry)) for entry in source.manifest.files]
    require_space(out.parent, sum(BLOCK + size + tar_padding(size) for _, size, _ in members) + 2 * BLOCK)
    whole = hashlib.sha256()

    def stream() -> Iterator[bytes]:
        for path, size, chunks in members:
            yield tar_header(path, size)
            yield from reported(chunks, path, progress)
            yield bytes(tar_padding(size))
        yield bytes(2 * BLOCK)

    def hashed() -> Iterator[bytes]:
        for data in stream():
            whole.update(data)
            yield data

    sidecar_of(out).unlink(missing_ok=True)
    write_file(hashed(), out)
    write_file([f"# manifest {source.sha256}\n{whole.hexdigest()}  {out.name}\n".encode()], sidecar_of(out))


def write_manifest(folder: Path, raw: bytes) -> None:
    """Writes manifest.json, whose bytes are `raw`, and its hash. Raises BundleError."""
    write_file([hash_line(raw)], folder / MANIFEST_HASH)
    write_file([raw], folder / MANIFEST)


def copy_files(source: Archive | Folder, root: Path, progress: Progress, files: Sequence[StoredFile]) -> None:
    """Writes those of `files` of `source` that do not lie in `root` already. Raises BundleError."""
    for entry in files:
        refuse_links(root, entry.path)
    missing = [entry for entry in files if not _whole(root / entry.path, entry)]
    require_space(root, sum(entry.size for entry in missing))
    for entry in missing:
        write_file(reported(source.read(entry), entry.path, progress), root / entry.path)
    source.finish()


def write_file(chunks: Iterable[bytes], target: Path) -> None:
    """Writes a file under another name and gives it its own when it is complete. Raises BundleError."""
    partial = target.with_name(target.name + PARTIAL)
    try:
        with write_errors(target):
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


def refuse_links(root: Path, path: str) -> None:
    """Raises BundleError for a link on the way to a file: it would lead out of the models folder."""
    place = root
    for part in PurePosixPath(path).parts[:-1]:
        place /= part
        if place.is_symlink():
            raise BundleError(
                f"{place}: expected a folder, got a link", "remove it or choose another folder with --models"
            )


def require_space(folder: Path, size: int) -> None:
    """Raises BundleError unless `size` bytes are free on the disk of `folder`, which may not exist yet."""
    free = shutil.disk_usage(next(place for place in (folder, *folder.parents) if place.exists())).free
    if size > free:
        raise BundleError(
            f"{folder}: expected {amount(size)} of free space, got {amount(free)}",
            "make room or choose another folder",
        )


@contextmanager
def write_errors(place: Path) -> Iterator[None]:
    """What the file system raises about `place` becomes BundleError."""
    try:
        yield
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        reason = getattr(error, "strerror", None) or error
        raise BundleError(
            f"{place}: cannot be written ({reason})", "make room there or choose another folder"
        ) from error
