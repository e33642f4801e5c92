"""What is examined on disk: the models folder, and the caches of libraries and scores."""

import os
import shutil
import tempfile
from pathlib import Path

from agentic_iqa_local.iqa_tools.cache import ScoreCache
from agentic_iqa_local.iqa_tools.weights import huggingface_cache, torch_hub
from agentic_iqa_local.offline.doctor.checks import Finding, Setup, check
from agentic_iqa_local.offline.manifest import MANIFEST, Manifest
from agentic_iqa_local.offline.reading import problems_of, read_manifest, unlisted
from agentic_iqa_local.offline.store import models_root
from agentic_iqa_local.paths import EMBEDDED, ROOT, command

UNPACK = command("unpack") + " BUNDLE"
ROOM = 256 * 2**20  # bytes that a disk needs to have free

CACHES = {
    "temporary files": "TMPDIR",
    "torch": "TORCH_HOME",
    "huggingface": "HF_HUB_CACHE",
    "triton": "TRITON_CACHE_DIR",
    "matplotlib": "MPLCONFIGDIR",
    "vllm": "VLLM_CACHE_ROOT",
}


@check("models folder", f"unpack the bundle again: {UNPACK}")
def models_folder(setup: Setup) -> Finding:
    """Is every file of the models folder what its manifest says? `quick` compares sizes instead of reading
    every byte."""
    root = models_root(setup.settings.models_dir)
    if not os.path.isdir(root):
        remedy = f"say where it is with --models or $AGENTIC_IQA_MODELS, or {UNPACK}"
        return "fail", f"{root}: no such folder", remedy
    if not os.path.lexists(root / MANIFEST):
        if root == ROOT / "models":
            return "pass", f"{root}: no manifest; the embedded model is there", ""
        return "warn", f"{root}: no manifest, so nobody can tell whether its files are whole", UNPACK
    manifest, sha256 = read_manifest(root)
    problems = (
        differing_sizes(root, manifest) if setup.quick else [each.message for each in problems_of(root)]
    )
    if problems:
        more = f" and {len(problems) - 1} more" if len(problems) > 1 else ""
        return "fail", f"{problems[0]}{more}", f"{UNPACK} (what is right is kept)"
    by_size = ", by size" if setup.quick else ""
    found = f"{root}: {len(manifest.files)} files are as manifest {sha256[:12]} says{by_size}"
    folders = {setup.folder(backend).resolve() for backend in setup.backends}
    known = {(root / entry.path).parent.resolve() for entry in manifest.files} | {EMBEDDED}
    if unknown := sorted(map(str, folders - known)):
        remedy = "bring that folder in a bundle to have it verified"
        return "warn", f"{found}; it does not list {', '.join(unknown)}", remedy
    return "pass", found, ""


def differing_sizes(root: Path, manifest: Manifest) -> list[str]:
    """A sentence for each file that is missing, has another size than the manifest says, or is not in it."""
    problems = []
    for entry in manifest.files:
        place = root / entry.path
        size = place.stat().st_size if place.is_file() else "no file"
        if size != entry.size:
            problems.append(f"{place}: expected {entry.size} bytes, found {size}")
    return [*problems, *map(str, unlisted(root, manifest))]


def cache_folder(name: str) -> Path:
    """The folder of a row of CACHES on this machine."""
    defaults = {
        "temporary files": "/tmp",  # nosec B108 # named, as where libraries put theirs without $TMPDIR
        "torch": torch_hub().parent,
        "huggingface": huggingface_cache(),
        "triton": Path(os.environ.get("TRITON_HOME", "~"), ".triton", "cache"),
        "matplotlib": Path(os.environ.get("XDG_CONFIG_HOME", "~/.config"), "matplotlib"),
        "vllm": Path(os.environ.get("XDG_CACHE_HOME", "~/.cache"), "vllm"),
    }
    return Path(os.environ.get(CACHES[name]) or defaults[name]).expanduser().absolute()


def writable(folder: Path) -> str | None:
    """Why nothing can be written to `folder`, which need not exist yet; None where it can."""
    place = next(parent for parent in (folder, *folder.parents) if os.path.exists(parent))
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(b"\0")
    except OSError as error:
        return f"{place} cannot be written to ({error.strerror})"
    free = shutil.disk_usage(place).free
    return f"only {free // 2**20} MiB are free on the disk of {place}" if free < ROOM else None


@check("cache", "choose another folder")
def cache(setup: Setup, name: str) -> Finding | None:
    """Can a library write to its folder? Nothing for one inside the models folder, which is only read, or of
    an engine that is not used."""
    folder = cache_folder(name)
    if folder.is_relative_to(models_root(setup.settings.models_dir)) or (
        name == "vllm" and not setup.uses("vllm")
    ):
        return None
    # Libraries make their own folders; nobody makes $TMPDIR.
    problem = (
        "there is no such folder" if name == "temporary files" and not folder.is_dir() else writable(folder)
    )
    if problem is None:
        return "pass", str(folder), ""
    needed = name == "temporary files" or (
        name in ("triton", "vllm") and setup.uses("vllm") and not setup.cpu
    )
    return (
        "fail" if needed else "warn",
        f"{folder}: {problem}",
        f"make room there, or point ${CACHES[name]} to another folder",
    )


@check("score cache", "set tools.cache to another file, or leave it out")
def score_cache(setup: Setup) -> Finding | None:
    """Can the tools' scores be kept where the configuration says?"""
    if setup.settings.tools.cache is None:
        return None
    file = Path(setup.settings.tools.cache).absolute()
    if problem := writable(file.parent):
        return "fail", f"{file}: {problem}", "set tools.cache to another file, or leave it out"
    if file.exists():
        ScoreCache(file)
    return "pass", str(file), ""
