"""Bundles carry model files to a machine without a network: a folder and the list of its files.

    SHA256SUMS              a line "HASH  PATH" for each file, which `sha256sum -c` checks, too
    about/MODEL-NUMBER.txt  where the files were taken from and under which licences
    FOLDER/...              a vision-language model
    tools/hub, tools/huggingface  what pyiqa's metrics load

The models folder has the same form; its list is that of all bundles unpacked into it, and is
written last. The list of a bundle that is not finished is empty.
"""

import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from agentic_iqa_local.config import ConfigError
from agentic_iqa_local.files import (
    file_hash,
    models_root,
    remove_temporaries,
    replacing,
    write_whole,
)
from agentic_iqa_local.iqa_tools.weights import (
    SUMS,
    BundleError,
    read_sums,
    stored_sums,
    sum_line,
    unlisted,
)

ABOUT, TOOLS = "about", "tools"  # folders that are no models
Watch = Callable[[Iterable[str]], Iterable[str]]  # shows which file is being read


def model_folders(paths: Iterable[str]) -> set[str]:
    """The folders of models, each of which one bundle brings alone; tools' weights of several lie
    together."""
    return {path.partition("/")[0] for path in paths} - {ABOUT, TOOLS}


def verify(bundle: Path, expect: str | None = None, watch: Watch = iter) -> list[BundleError]:
    """An error for each file that is missing, damaged, no regular file, or not listed although it
    lies in a model's folder; empty when all is well.

    Args:
        bundle: A bundle, or a models folder.
        expect: The SHA-256 that its list has to have.
        watch: Shows which file is being read.

    Raises:
        BundleError: The list cannot be read, or is another one.
    """
    sums = read_sums(bundle)
    found = file_hash(bundle / SUMS)
    if expect not in (None, found):
        wrong = f"{bundle}: expected {SUMS} with SHA-256 {expect} (--expect), got {found}"
        raise BundleError(wrong, "this is another bundle or a changed one")
    errors = unlisted(bundle, sums, model_folders(sums))
    real = os.path.realpath(bundle)
    for path in watch(sums):
        place = os.path.join(real, path)
        if os.path.realpath(place) != place or not os.path.isfile(place):
            wrong = f"{path}: expected a regular file, got none, a link or a device"
            errors.append(BundleError(wrong, "copy it again"))
        elif file_hash(bundle / path) != sums[path]:
            wrong = f"{path} is damaged: expected SHA-256 {sums[path]}"
            errors.append(BundleError(wrong, "copy it again"))
    return errors


def unpack(bundle: Path, root: Path, expect: str | None = None, watch: Watch = iter) -> None:
    """Puts a bundle's files into the models folder `root`.

    What lies there with the right bytes is kept, so that the same call completes an interrupted
    unpacking. What an earlier bundle brought of the same model is removed. Raises BundleError for a
    bundle that is not as its list says, and where something that no bundle brought is in the way.
    """
    for error in verify(bundle, expect, watch):
        raise error
    root = models_root(root)
    new, before = read_sums(bundle), stored_sums(root)
    missing = [path for path, sha256 in new.items() if not _has(root / path, sha256)]
    for path in missing:
        if os.path.lexists(root / path) and path not in before:
            wrong = f"{root / path}: lies there already, and no bundle brought it"
            raise BundleError(wrong, "move it away or choose another --models")
    for path in watch(missing):
        _copy(bundle / path, root / path)
    kept = _kept(root, new, before)
    write_whole(root / SUMS, "".join(sum_line(path, kept[path]) for path in sorted(kept)))


def _kept(root: Path, new: dict[str, str], before: dict[str, str]) -> dict[str, str]:
    """The new list of a models folder: that of a bundle, and what other bundles brought. Of the same
    models earlier files are removed."""
    replaced = model_folders(new)
    kept = dict(new)
    for path, sha256 in before.items():
        if path.partition("/")[0] not in replaced:
            kept.setdefault(path, sha256)
        elif path not in new:
            (root / path).unlink(missing_ok=True)
    return kept


def _has(place: Path, sha256: str) -> bool:
    return place.is_file() and file_hash(place) == sha256


def _copy(source: Path, place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    remove_temporaries(place.parent)
    with replacing(place) as file, source.open("rb") as content:
        shutil.copyfileobj(content, file)


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


def finish_bundle(folder: Path, watch: Watch = iter) -> str:
    """Writes the list of all files in a bundle's folder, and returns that list's SHA-256. Raises
    BundleError for a file whose name no bundle may hold."""
    for cache in list(folder.rglob(".cache")):  # huggingface_hub's, beside what it downloads
        shutil.rmtree(cache)
    files = filter(Path.is_file, sorted(folder.rglob("*")))
    paths = [place.relative_to(folder).as_posix() for place in files if place != folder / SUMS]
    lines = [sum_line(path, file_hash(folder / path)) for path in watch(paths)]
    write_whole(folder / SUMS, "".join(lines))
    return file_hash(folder / SUMS)
