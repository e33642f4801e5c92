"""Reads bundles: as an archive or as a folder of files. Whatever differs from the manifest is damage."""

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from agentic_iqa_local.files import FileError, open_regular, read_bytes
from agentic_iqa_local.offline.manifest import (
    HASH_LINE,
    LARGEST_MANIFEST,
    MANIFEST,
    MANIFEST_HASH,
    BundleError,
    Manifest,
    StoredFile,
    model_folders,
    trusted_manifest,
)
from agentic_iqa_local.offline.tar import BLOCK, tar_header, tar_padding

CHUNK = 1 << 20

Progress = Callable[[str, int], None]  # a file's path and how many of its bytes were just done


class Truncated(BundleError):
    """An archive that ends too early."""


class Archive:
    """A bundle as an archive. Whatever differs from what the manifest implies is damage."""

    def __init__(self, path: Path, file: BinaryIO, expect: str | None):
        self._path, self._file = path, file
        self._length = os.fstat(file.fileno()).st_size
        if self._take(BLOCK, MANIFEST_HASH) != tar_header(MANIFEST_HASH, HASH_LINE):
            raise BundleError(
                f"{path}: expected a bundle that starts with {MANIFEST_HASH}, got something else",
                "this is no bundle, or its beginning is damaged: copy it again",
            )
        line = self._padded(HASH_LINE, MANIFEST_HASH)
        header = self._take(BLOCK, MANIFEST)
        digits = re.fullmatch(rb"[0-7]{11}", header[124:135])
        size = int(digits[0], 8) if digits else 0
        if not 0 < size <= LARGEST_MANIFEST or header != tar_header(MANIFEST, size):
            raise BundleError(f"{path}: the header of {MANIFEST} is damaged", "copy the bundle again")
        raw = self._padded(size, MANIFEST)
        self.manifest, self.sha256 = trusted_manifest(
            raw, line, path, {"--expect": expect, sidecar_of(path).name: _promised(path)}
        )
        self._starts: dict[str, int] = {}
        self._end = file.tell()
        for entry in self.manifest.files:
            self._starts[entry.path] = self._end
            self._end += BLOCK + entry.size + tar_padding(entry.size)
        if self._length > (total := self._end + 2 * BLOCK):
            raise BundleError(
                f"{path}: expected {total} bytes as its {MANIFEST} says, got {self._length}", "copy it again"
            )

    def read(self, entry: StoredFile) -> Iterator[bytes]:
        """The file's bytes. Raises BundleError, after the last of them at the latest, when anything about it
        is damaged."""
        self._go_to(self._starts[entry.path])
        if self._take(BLOCK, entry.path) != tar_header(entry.path, entry.size):
            raise BundleError(f"{self._path}: the header of {entry.path} is damaged", "copy the bundle again")
        digest, left = hashlib.sha256(), entry.size
        while left:
            chunk = self._take(min(left, CHUNK), entry.path)
            digest.update(chunk)
            left -= len(chunk)
            yield chunk
        self._zeros(tar_padding(entry.size), entry.path)
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
        self._zeros(tar_padding(count), inside)
        return data

    def _zeros(self, count: int, inside: str) -> None:
        if self._take(count, inside).strip(b"\0"):
            raise BundleError(f"{self._path}: the padding after {inside} is damaged", "copy the bundle again")


def sidecar_of(archive: Path) -> Path:
    """The file beside an archive that names its SHA-256, and its manifest's."""
    return archive.with_name(archive.name + ".sha256")


def _promised(archive: Path) -> str | None:
    """The manifest's SHA-256 that the file beside an archive names; None without such a file."""
    sidecar = sidecar_of(archive)
    if not os.path.lexists(sidecar):
        return None
    try:
        line = re.search(rb"^# manifest ([0-9a-f]{64})$", read_bytes(sidecar, 4096), re.MULTILINE)
    except FileError as error:
        raise BundleError(f"{sidecar}: {error}", "copy it again, or remove it and pass --expect") from error
    if line is None:
        raise BundleError(
            f"{sidecar}: expected a line '# manifest HASH', found none",
            "copy it again, or remove it and pass --expect",
        )
    return line[1].decode()


class Folder:
    """A bundle as a folder: each file of the manifest at its place."""

    def __init__(self, manifest: Manifest, sha256: str, places: Mapping[str, Path]):
        self.manifest, self.sha256, self._places = manifest, sha256, places

    @classmethod
    def at(cls, folder: Path, expect: str | None = None) -> "Folder":
        contents = {}
        for name, largest in ((MANIFEST, LARGEST_MANIFEST), (MANIFEST_HASH, HASH_LINE)):
            try:
                contents[name] = read_bytes(folder / name, largest)
            except FileError as error:
                raise BundleError(
                    f"{folder}: expected a bundle with {MANIFEST} and {MANIFEST_HASH}, cannot read {name}"
                    f" ({error})",
                    "the manifest is copied and unpacked last: repeat that",
                ) from error
        manifest, sha256 = trusted_manifest(
            contents[MANIFEST], contents[MANIFEST_HASH], folder, {"--expect": expect}
        )
        return cls(manifest, sha256, {entry.path: folder / entry.path for entry in manifest.files})

    def read(self, entry: StoredFile) -> Iterator[bytes]:
        """The file's bytes. Raises BundleError, after the last of them at the latest, for a file that is not
        as it should be."""
        place, digest = self._places[entry.path], hashlib.sha256()
        try:
            with open(open_regular(place), "rb") as file:
                if (size := os.fstat(file.fileno()).st_size) != entry.size:
                    raise BundleError(
                        f"{place}: expected {entry.size} bytes, got {size}",
                        "it was not copied whole or was changed",
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
        """A folder has no end that could be damaged."""


@contextmanager
def opened(bundle: Path, expect: str | None) -> Iterator[Archive | Folder]:
    """A bundle to read from. Raises BundleError unless its manifest can be trusted and is `expect`."""
    if os.path.isdir(bundle):
        yield Folder.at(bundle, expect)
        return
    try:
        descriptor = open_regular(bundle)
    except FileError as error:
        raise BundleError(
            f"{bundle}: expected a bundle (an archive, or a folder with {MANIFEST}): {error}", "name another"
        ) from error
    with open(descriptor, "rb") as file:
        yield Archive(bundle, file, expect)


def silent(path: str, size: int) -> None:
    """Shows no progress."""


def reported(chunks: Iterable[bytes], path: str, progress: Progress) -> Iterator[bytes]:
    """The chunks of the file `path`, each told to `progress` as it passes."""
    for chunk in chunks:
        progress(path, len(chunk))
        yield chunk


def read_manifest(bundle: str | Path, expect: str | None = None) -> tuple[Manifest, str]:
    """The manifest of a bundle or of the models folder, and its SHA-256. Raises BundleError when it cannot be
    trusted or is not `expect`."""
    with opened(Path(bundle), expect) as source:
        return source.manifest, source.sha256


def verify(bundle: str | Path, expect: str | None = None, progress: Progress = silent) -> list[str]:
    """One sentence for each file that is missing or damaged; see `problems_of`."""
    return list(map(str, problems_of(bundle, expect, progress)))


def problems_of(
    bundle: str | Path, expect: str | None = None, progress: Progress = silent
) -> list[BundleError]:
    """An error for each file of a bundle or models folder that is missing or damaged; empty when all is well.

    Reads every byte. Raises BundleError when the manifest itself cannot be trusted or is not `expect`.
    """
    problems = []
    with opened(Path(bundle), expect) as source:
        try:
            for entry in source.manifest.files:
                try:
                    for _ in reported(source.read(entry), entry.path, progress):
                        pass
                except Truncated:
                    raise
                except BundleError as error:
                    problems.append(error)
            source.finish()
        except BundleError as error:
            problems.append(error)
        if isinstance(source, Folder):
            problems += unlisted(Path(bundle), source.manifest)
    return problems


def unlisted(root: Path, manifest: Manifest, *folders: str) -> list[BundleError]:
    """An error for each file in `folders` (default: all that models of the manifest have) that the
    manifest does not name: a loader might prefer it."""
    known = {entry.path for entry in manifest.files}
    return [
        BundleError(f"{place}: expected files of {root / MANIFEST} only, got this one", "remove it")
        for folder in folders or sorted(model_folders(manifest))
        for place in sorted((root / folder).rglob("*"))
        if not place.is_dir() and place.relative_to(root).as_posix() not in known
    ]
