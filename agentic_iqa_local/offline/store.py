"""The models folder: what a bundle brought into it, and whether that is still as its manifest says.

`environment(root)` is put into os.environ before anything imports torch or huggingface_hub; tools load files of
`weights_dir(root)` for which `verified(root, path)` holds, and no others. Nothing here imports torch or reaches a
network.
"""

import os
from pathlib import Path

from agentic_iqa_local.files import file_hash, models_root
from agentic_iqa_local.offline.manifest import (
    HUB,
    HUGGINGFACE,
    MANIFEST,
    BundleError,
    Manifest,
    StoredFile,
    read_folder_manifest,
    unlisted,
)


def weights_dir(root: str | Path) -> Path:
    """The tools' weights in the models folder: a folder laid out like torch's hub folder."""
    return Path(root) / HUB


def environment(root: str | Path) -> dict[str, str]:
    """The variables with which torch, timm and transformers find the models folder's files and look nowhere else.

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
    """What was unpacked into the models folder `root`; None where nothing was. Raises BundleError for a damaged
    manifest."""
    return read_folder_manifest(Path(root))[0] if os.path.lexists(Path(root, MANIFEST)) else None


def verified(root: str | Path, path: str) -> bool:
    """Whether the manifest of the models folder has the file `path`, and its bytes are those of the manifest."""
    manifest = store_manifest(root)
    files = manifest.files if manifest else ()
    return any(file.path == path and unchanged(Path(root) / path, file) for file in files)


def check_model(folder: str | Path, root: str | Path | None = None) -> None:
    """Raises BundleError unless a model's folder in the models folder `root` is as the manifest says; silent for one
    that no bundle brought."""
    root, folder = models_root(root).resolve(), Path(folder).resolve()
    if root not in folder.parents or (manifest := store_manifest(root)) is None:
        return
    entries = [entry for entry in manifest.files if (root / entry.path).is_relative_to(folder)]
    if not entries:
        return
    for error in unlisted(root, manifest, folder.relative_to(root).parts[:1]):
        raise error
    for entry in entries:
        if not unchanged(root / entry.path, entry):
            raise BundleError(
                f"{root / entry.path} is damaged or was changed: expected the SHA-256 of {MANIFEST}",
                "unpack its bundle again",
            )


def unchanged(place: Path, entry: StoredFile) -> bool:
    """Whether a regular file of the entry's size and SHA-256 lies at `place`."""
    return place.is_file() and place.stat().st_size == entry.size and file_hash(place) == entry.sha256
