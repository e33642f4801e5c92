"""Bundles carry model files to a machine without a network: a folder and the list of its files.

    SHA256SUMS              a line "HASH  PATH" for each file, which `sha256sum -c` checks, too
    about/MODEL-NUMBER.txt  where the files were taken from and under which licences
    FOLDER/...              a vision-language model
    tools/hub, tools/huggingface  what pyiqa's metrics load

The models folder has the same form; its list is that of all bundles unpacked into it, and is
written last. The list of a bundle that is not finished is empty.
"""

import hashlib
import os
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path, PurePosixPath

from filelock import FileLock, Timeout
from rich.filesize import decimal

from agentic_iqa_local.config import ConfigError
from agentic_iqa_local.files import file_hash, models_root, remove_temporaries, write_whole
from agentic_iqa_local.iqa_tools.weights import (
    SUMS,
    BundleError,
    read_sums,
    stored_sums,
    sum_line,
    unlisted,
)

ABOUT, TOOLS = "about", "tools"  # folders that are no models
CHUNK = 1 << 20  # bytes
LOCK = ".agentic_iqa.lock"  # lies in a models folder, never in a bundle
Watch = Callable[[Iterable[str]], Iterable[str]]  # shows which file is being read


def bundle_sums(bundle: Path, expect: str | None = None) -> dict[str, str]:
    """Path → SHA-256 of a bundle's files. Raises BundleError unless the list can be read and has
    the SHA-256 `expect`."""
    sums = read_sums(bundle)
    found = file_hash(bundle / SUMS)
    if expect not in (None, found):
        wrong = f"{bundle}: expected {SUMS} with SHA-256 {expect} (--expect), got {found}"
        raise BundleError(wrong, "this is another bundle or a changed one")
    return sums


def model_folders(paths: Iterable[str]) -> set[str]:
    """The folders of models, each of which one bundle brings alone; tools' weights of several lie
    together."""
    return {path.partition("/")[0] for path in paths} - {ABOUT, TOOLS}


def verify(bundle: Path, expect: str | None = None, watch: Watch = iter) -> list[BundleError]:
    """An error for each file that is missing, damaged, no regular file or not listed; empty when
    all is well. Reads every byte if every file is there. Raises BundleError for a list that cannot
    be trusted."""
    sums = bundle_sums(bundle, expect)
    errors = _misplaced(bundle, sums)
    if errors:
        return errors
    for path in watch(sums):
        found = file_hash(bundle / path)
        if found != sums[path]:
            errors.append(_damaged(path, sums[path], found))
    return errors


def _misplaced(bundle: Path, sums: Collection[str]) -> list[BundleError]:
    """An error for each listed file that is missing, a link or a device, and for each file that is
    not listed."""
    errors = []
    real = os.path.realpath(bundle)
    for path in sums:
        place = os.path.join(real, path)
        if os.path.realpath(place) != place or not os.path.isfile(place):
            wrong = f"{path}: expected a regular file, got none, a link or a device"
            errors.append(BundleError(wrong, "copy it again"))
    is_models_folder = (bundle / LOCK).exists()  # where other models may lie, too
    folders = model_folders(sums) if is_models_folder else {""}
    return errors + unlisted(bundle, {*sums, SUMS}, folders)


def _damaged(path: str, expected: str, found: str) -> BundleError:
    wrong = f"{path} is damaged: expected SHA-256 {expected}, got {found}"
    return BundleError(wrong, "copy it again")


def unpack(bundle: Path, root: Path, expect: str | None = None, watch: Watch = iter) -> None:
    """Puts a bundle's files into the models folder `root`.

    A file gets its name only when its bytes are those of the list; what lies there with the right
    bytes is kept, so that the same call completes an interrupted unpacking. What an earlier bundle
    brought of the same model is removed. Raises BundleError, also where there is too little space
    or another process unpacks there.
    """
    root = models_root(root)
    sums = bundle_sums(bundle, expect)
    for error in _misplaced(bundle, sums):
        raise error
    root.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(root / LOCK, timeout=0):
            _add(bundle, root, sums, watch)
    except Timeout:
        wrong = f"{root}: another process unpacks into it"
        raise BundleError(wrong, "wait until it has ended, then run this again") from None


def _add(bundle: Path, root: Path, new: dict[str, str], watch: Watch) -> None:
    before = stored_sums(root)
    missing = [path for path, sha256 in new.items() if not _has(root / path, sha256)]
    for path in missing:
        _check_place(root, path, before)
    _require_space(root, sum((bundle / path).stat().st_size for path in missing))
    for path in watch(missing):
        place = root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        remove_temporaries(place.parent)
        write_whole(place, _checked_bytes(bundle, path, new[path]))
    replaced = model_folders(new)
    kept = dict(new)
    for path, sha256 in before.items():
        if path in new:
            continue
        if path.partition("/")[0] in replaced:
            (root / path).unlink(missing_ok=True)
        else:
            kept[path] = sha256
    write_whole(root / SUMS, "".join(sum_line(path, kept[path]) for path in sorted(kept)))


def _has(place: Path, sha256: str) -> bool:
    return place.is_file() and file_hash(place) == sha256


def _checked_bytes(bundle: Path, path: str, sha256: str) -> Iterator[bytes]:
    """A file's bytes. Raises BundleError after the last of them unless their SHA-256 is that of the
    list."""
    digest = hashlib.sha256()
    with (bundle / path).open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
            yield chunk
    if digest.hexdigest() != sha256:
        raise _damaged(path, sha256, digest.hexdigest())


def _check_place(root: Path, path: str, known: Collection[str]) -> None:
    """Raises BundleError if something that no bundle brought (`known`) lies where a file is to be
    written."""
    place = root / path
    in_the_way = os.path.lexists(place) and (path not in known or place.is_dir())
    for parent in PurePosixPath(path).parents:
        folder = root / parent
        if os.path.lexists(folder) and not folder.is_dir():
            place, in_the_way = folder, True
    if in_the_way:
        wrong = f"{place}: lies there already, and no bundle brought it"
        raise BundleError(wrong, "move it away or choose another --models")


def _require_space(folder: Path, size: int) -> None:
    free = shutil.disk_usage(folder).free
    if size > free:
        wrong = f"{folder}: expected {decimal(size)} of free space, got {decimal(free)}"
        raise BundleError(wrong, "make room or choose another folder")


def begin_bundle(folder: Path) -> None:
    """Makes the folder of a new bundle, or goes on with an unfinished one, whose list is empty.
    Raises ConfigError for anything else that lies there."""
    sums = folder / SUMS
    unfinished = sums.is_file() and sums.stat().st_size == 0
    if os.path.lexists(folder) and not unfinished:
        wrong = f"--out {folder}: expected a new name or an unfinished bundle, something lies there"
        raise ConfigError(wrong, "choose another --out, or move it away")
    folder.mkdir(exist_ok=True)
    sums.touch()


def finish_bundle(folder: Path, parts: Collection[str], watch: Watch = iter) -> str:
    """Writes the list of a bundle's files, and returns that list's SHA-256.

    Args:
        folder: The bundle.
        parts: The paths of the files and folders that belong to it. What a download left beside
            them is removed.
        watch: Shows which file is being read.

    Raises:
        BundleError: A file lies there that belongs to no part, or whose name no bundle may hold.
    """
    for cache in list(folder.rglob(".cache")):  # huggingface_hub's, beside what it downloads
        shutil.rmtree(cache)
    paths = []
    for place in sorted(folder.rglob("*")):
        path = place.relative_to(folder).as_posix()
        if place.is_dir() or path == SUMS:
            continue
        if not any(f"{path}/".startswith(f"{part}/") for part in parts):
            wrong = f"{place}: belongs to nothing that was asked for"
            raise BundleError(wrong, "remove it, or choose another --out")
        paths.append(path)
    lines = [sum_line(path, file_hash(folder / path)) for path in watch(paths)]
    write_whole(folder / SUMS, "".join(lines))
    return file_hash(folder / SUMS)
