"""The models folder: where it is, what lies in it, and how a bundle is unpacked into it.

How the rest of the package uses it: `models_root()` says where it is; `environment(root)` is put into
os.environ before anything imports torch or huggingface_hub; tools load files of `weights_dir(root)` for which
`verified(root, path)` holds, and no others. Neither torch nor pyiqa is imported here, and nothing here
reaches a network.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pydantic import ValidationError

from agentic_iqa_local.files import file_hash, models_root
from agentic_iqa_local.offline.manifest import (
    HUB,
    HUGGINGFACE,
    MANIFEST,
    WHEELS,
    BundleError,
    Manifest,
    StoredFile,
    model_folders,
    serialised,
)
from agentic_iqa_local.offline.reading import Folder, Progress, opened, silent, unlisted
from agentic_iqa_local.offline.writing import copy_files, refuse_links, write_errors, write_manifest

LOCK = ".agentic_iqa.lock"


def weights_dir(root: str | Path) -> Path:
    """The tools' weights in the models folder: a folder laid out like torch's hub folder."""
    return Path(root) / HUB


def environment(root: str | Path) -> dict[str, str]:
    """The variables with which torch, timm and transformers find the models folder's files and look
    nowhere else.

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
    """What was unpacked into the models folder `root`; None where nothing was. Raises BundleError for a
    damaged manifest."""
    return Folder.at(Path(root)).manifest if os.path.lexists(Path(root, MANIFEST)) else None


def verified(root: str | Path, path: str) -> bool:
    """Whether the manifest of the models folder has the file `path` and its bytes are those of the manifest
    now."""
    manifest = store_manifest(root)
    entries = manifest.files if manifest else ()
    return any(entry.path == path and _unchanged(Path(root) / path, entry) for entry in entries)


def check_model(folder: str | Path, root: str | Path | None = None) -> None:
    """Raises BundleError unless a model's folder in the models folder `root` is as the manifest says; silent
    for one that no bundle brought."""
    root, folder = models_root(root).resolve(), Path(folder).resolve()
    if root not in folder.parents or (manifest := store_manifest(root)) is None:
        return
    entries = [entry for entry in manifest.files if (root / entry.path).is_relative_to(folder)]
    if not entries:
        return
    for error in unlisted(root, manifest, folder.relative_to(root).parts[0]):
        raise error
    for entry in entries:
        if not _unchanged(root / entry.path, entry):
            raise BundleError(
                f"{root / entry.path} is damaged or was changed: expected the SHA-256 of {MANIFEST}",
                "unpack its bundle again",
            )


def _unchanged(place: Path, entry: StoredFile) -> bool:
    return place.is_file() and place.stat().st_size == entry.size and file_hash(place) == entry.sha256


def unpack(
    bundle: str | Path, root: str | Path, expect: str | None = None, progress: Progress = silent
) -> Manifest:
    """Puts a bundle's files, but for wheels, into the models folder `root` and returns their manifest.

    A file gets its name only when its bytes are those of the manifest; what lies there with the right bytes
    is kept, so that the same call completes an interrupted unpacking, or one that met a truncated archive.
    What an earlier bundle brought of the same model is removed. The folder's manifest comes last. Raises
    BundleError for anything damaged or unexpected, for a link in the way, for too little space and while
    another process unpacks there.
    """
    root = models_root(root)
    with opened(Path(bundle), expect) as source, _locked(root):
        before, new = store_manifest(root), _without_wheels(source.manifest)
        joined = _joined(before, new)
        kept = {entry.path for entry in joined.files}
        outdated = [entry.path for entry in before.files if entry.path not in kept] if before else []
        for path in outdated:
            refuse_links(root, path)
        copy_files(source, root, progress, new.files)
        for path in outdated:
            with write_errors(root / path):
                (root / path).unlink(missing_ok=True)
        write_manifest(root, serialised(joined))
    return new


def _without_wheels(manifest: Manifest) -> Manifest:
    """Wheels are installed from the bundle; the models folder has no use for them."""
    return Manifest(
        contents=tuple(line for line in manifest.contents if not line.startswith(WHEELS)),
        notices=manifest.notices,
        files=tuple(entry for entry in manifest.files if not entry.path.startswith(f"{WHEELS}/")),
    )


@contextmanager
def _locked(root: Path) -> Iterator[None]:
    """Only this process unpacks into `root`, which is made, and removed again where it stays empty. Raises
    BundleError while another process does."""
    made, place = not os.path.exists(root), root / LOCK
    with write_errors(root):
        root.mkdir(parents=True, exist_ok=True)
    with write_errors(place):  # through no link, and without waiting for a pipe's other end
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


def _joined(old: Manifest | None, new: Manifest) -> Manifest:
    """One manifest for both. Of a model, or a path of the tools, that both have the new one's is taken."""
    if old is None:
        return new
    paths, folders = {file.path for file in new.files}, model_folders(new)
    kept = [
        entry
        for entry in old.files
        if entry.path not in paths and entry.path.partition("/")[0] not in folders
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
