"""Which files a configuration needs, and where they are: in a folder of this machine, on the Hub, or on a web
server."""

import os
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

from agentic_iqa_local.files import FileError, read_bytes, read_json
from agentic_iqa_local.offline.fetch import (
    FetchError,
    Repo,
    Wanted,
    download,
    from_hub,
    listing,
    retried,
    snapshot_folder,
)
from agentic_iqa_local.offline.licences import EMBEDDED_LICENCE
from agentic_iqa_local.offline.manifest import HUB, HUGGINGFACE, SEGMENT, Manifest
from agentic_iqa_local.paths import EMBEDDED, about_missing_model

if TYPE_CHECKING:
    from agentic_iqa_local.config import Settings

# The model folders that the shipped configurations name.
REPOS = {
    "llava-onevision-qwen2-0.5b-ov-hf": Repo(
        "llava-hf/llava-onevision-qwen2-0.5b-ov-hf", licence="apache-2.0"
    ),
    "q-sit-mini": Repo("zhangzicheng/q-sit-mini", licence="mit"),
    "Qwen3-VL-2B-Instruct": Repo(
        "Qwen/Qwen3-VL-2B-Instruct", "89644892e4d85e24eaac8bacfd4f463576704203", "apache-2.0"
    ),
    "Qwen2.5-VL-3B-Instruct": Repo(
        "Qwen/Qwen2.5-VL-3B-Instruct", "66285546d2b821cf421d4f5eb2576359d3770cd3", "qwen-research"
    ),
    "Qwen2.5-VL-7B-Instruct": Repo(
        "Qwen/Qwen2.5-VL-7B-Instruct", "cc594898137f460bfe9f0759e9844b3ce807cfb5", "apache-2.0"
    ),
    "Qwen3-VL-8B-Instruct": Repo(
        "Qwen/Qwen3-VL-8B-Instruct", "0c351dd01ed87e9c1b53cbc748cba10e6187ff3b", "apache-2.0"
    ),
    "llava-onevision-qwen2-7b-ov-hf": Repo(
        "llava-hf/llava-onevision-qwen2-7b-ov-hf", "0d50680527681998e456c7b78950205bedd8a068", "apache-2.0"
    ),
}
# Where pyiqa's get_url_from_name leads; the commit is that of pyiqa 0.1.16's time.
PYIQA_WEIGHTS = Repo(
    "chaofengc/IQA-PyTorch-Weights", "0df2df423c65f6a64209309695f3845727431027", "cc-by-nc-sa-4.0"
)
# pyiqa loads this one through torch.hub, which keeps it elsewhere.
PYIQA_CHECKPOINTS = ("checkpoints/ARNIQA.pth",)
TORCHVISION = "https://download.pytorch.org/models/"
CLIP = {
    "clip/RN50.pt": (
        "https://openaipublic.azureedge.net/clip/models/afeb0e10f9e5a86da6080e35cf09123aca3b358a0c3e3b6c78a7b63bc04b6762/RN50.pt"
    ),
    "clip/ViT-B-32.pt": (
        "https://openaipublic.azureedge.net/clip/models/40d365715913c9da98579312b702a82c18be219cc2a73407c4526f58eba950af/ViT-B-32.pt"
    ),
}
CARRIED = {".safetensors", ".json", ".jinja", ".txt", ".model", ".tiktoken", ".md"}
PICKLED = {".bin"}


def model_folder(folder: str, local: Path, repos: dict[str, Repo], downloads: Path) -> list[Wanted]:
    """A vision-language model's files: from the folder `local` if there is one, else from its repository.
    Raises FetchError."""
    if folder not in repos and local.is_dir():
        licence = REPOS[folder].licence if folder in REPOS else "unknown"
        if folder == "embedded":
            licence = EMBEDDED_LICENCE
        names = chosen((place.name for place in local.iterdir() if place.is_file()), str(local))
        require_whole(local, names)
        return [Wanted(f"{folder}/{name}", local / name, f"local folder {folder}", licence) for name in names]
    repo = repos.get(folder) or REPOS.get(folder)
    if repo is None and local == EMBEDDED:
        raise FetchError(*about_missing_model(local))
    if repo is None:
        raise FetchError(
            f"model {folder}: expected the folder {local} or a known repository, found neither",
            f"pass --models DIR, or --repo {folder}=ORG/NAME@REVISION",
        )
    listed = listing(repo)
    return [from_hub(listed, name, f"{folder}/{name}", downloads) for name in chosen(listed.files, str(repo))]


def chosen(names: Iterable[str], what: str, pickles: bool = False) -> list[str]:
    """Which files of a model are taken: safetensors and what goes with them; a tool's pickles where it has
    nothing else.

    Remote code, other frameworks' weights and subfolders stay behind. Raises FetchError when no weights are
    left.
    """
    names = [name for name in names if "/" not in name and not name.startswith(".")]
    taken = [
        name
        for name in names
        if PurePosixPath(name).suffix in CARRIED or name.upper().startswith(("LICEN", "NOTICE"))
    ]
    if not any(name.endswith(".safetensors") for name in taken):
        weights = [name for name in names if pickles and PurePosixPath(name).suffix in PICKLED]
        if not weights:
            raise FetchError(
                f"{what}: expected weights as *.safetensors, found none", "choose the safetensors edition"
            )
        taken += weights
    return sorted(taken)


def require_whole(folder: Path, names: Iterable[str]) -> None:
    """Raises FetchError for a local model without its configuration or one of its shards."""
    needed = {"config.json": "a model's configuration"}
    for index in (name for name in names if name.endswith(".safetensors.index.json")):
        try:
            shards = dict(read_json(folder / index, 16 << 20)["weight_map"]).values()
        except (ValueError, KeyError, TypeError) as error:
            raise FetchError(
                f"{folder / index}: expected a weight_map, the file is damaged", "copy the model there again"
            ) from error
        needed |= dict.fromkeys(map(str, shards), index)
    for name, why in needed.items():
        if name not in names:
            raise FetchError(f"{folder}: expected {name} ({why}), found none", "copy the model there again")


def tool_weight(weight: str, local: Path | None, cache: Path | None, downloads: Path) -> list[Wanted]:
    """A weight of the tools' table: one file of torch's hub folder, or a snapshot for the Hugging Face cache.

    What lies in the hub folder `local` or in the Hugging Face cache `cache` is taken from there. Raises
    FetchError.
    """
    if weight.startswith("hf:"):
        repo = Repo(weight.removeprefix("hf:"))
        return (cache and cached_snapshot(repo, cache)) or snapshot(repo, downloads)
    path, name = f"{HUB}/{weight}", PurePosixPath(weight).name
    source = web_source(weight)
    licence = source.licence if source else PYIQA_WEIGHTS.licence
    begins = source.sha256 if source else ""
    if local and (local / weight).is_file():
        return [Wanted(path, local / weight, f"local file {weight}", licence, sha256=begins)]
    if source:
        url, file = source.url, downloads / "urls" / name
        return [Wanted(path, file, url, licence, lambda: retried(url, lambda: download(url, file)), begins)]
    listed = listing(PYIQA_WEIGHTS)
    if name not in listed.files:
        raise FetchError(
            f"{PYIQA_WEIGHTS}: expected a file {name}, found none",
            f"put it below --weights DIR as {weight}",
        )
    return [from_hub(listed, name, path, downloads)]


class WebSource(NamedTuple):
    """Where a file is on a web server, how its SHA-256 begins, and its licence."""

    url: str
    sha256: str
    licence: str


def web_source(weight: str) -> WebSource | None:
    """The source of a file of torch's hub folder; None for pyiqa's, which the Hub has, with their hashes.

    CLIP's addresses hold the file's SHA-256, torchvision's its beginning.
    """
    if weight.startswith("pyiqa/") or weight in PYIQA_CHECKPOINTS:
        return None
    if weight in CLIP:
        return WebSource(CLIP[weight], CLIP[weight].split("/")[-2], "mit")
    name = PurePosixPath(weight)
    return WebSource(TORCHVISION + name.name, name.stem.rpartition("-")[2], "bsd-3-clause")


def cache_folder(repo: Repo) -> str:
    """Where a Hugging Face cache has a repository."""
    return f"models--{repo.name.replace('/', '--')}"


def cached_snapshot(repo: Repo, cache: Path) -> list[Wanted]:
    """A repository as it lies in a Hugging Face cache; empty where it does not."""
    ref = cache / cache_folder(repo) / "refs" / "main"
    try:
        commit = read_bytes(ref, 1000).decode("ascii", "replace").strip()
    except FileError:
        return []
    place = f"{cache_folder(repo)}/snapshots/{commit}"
    if not SEGMENT.fullmatch(commit) or not os.path.isdir(cache / place):
        return []
    names = chosen(
        (file.name for file in (cache / place).iterdir() if file.is_file()), str(cache / place), pickles=True
    )
    files = [*(f"{place}/{name}" for name in names), f"{cache_folder(repo)}/refs/main"]
    return [
        Wanted(f"{HUGGINGFACE}/{name}", cache / name, f"local cache {name}", repo.licence) for name in files
    ]


def snapshot(repo: Repo, downloads: Path) -> list[Wanted]:
    """A repository as the Hugging Face cache lays it out, with files where it has links; refs/main names the
    commit."""
    listed = listing(repo)
    cache = f"{HUGGINGFACE}/{cache_folder(repo)}"
    files = [
        from_hub(listed, name, f"{cache}/snapshots/{listed.commit}/{name}", downloads)
        for name in chosen(listed.files, str(repo), pickles=True)
    ]
    ref = snapshot_folder(listed, downloads) / ".ref"

    def write_ref() -> None:
        ref.parent.mkdir(parents=True, exist_ok=True)
        ref.write_text(listed.commit)

    return [
        *files,
        Wanted(f"{cache}/refs/main", ref, f"https://huggingface.co/{repo.name}", listed.licence, write_ref),
    ]


def folder_of(settings: "Settings", backend: str) -> str:
    """Where the configuration looks for a model, relative to the models folder. Raises ConfigError."""
    from agentic_iqa_local.config_sections import ConfigError

    name = backend.partition(".")[2]
    options = settings.models.get(name)
    folder = PurePosixPath((options and options.path) or name)
    if len(folder.parts) != 1:
        raise ConfigError(
            f"models.{name}.path: expected the name of a folder in the models folder, for a bundle; got"
            f" {folder}"
        )
    return str(folder)


def check_downloads(manifest: Manifest, wanted: dict[str, Wanted]) -> None:
    """Raises FetchError for a file that is not what its publisher says it is, and removes it where it was
    downloaded."""
    for entry in manifest.files:
        item = wanted[entry.path]
        if not entry.sha256.startswith(item.sha256):
            if item.fetch:
                item.file.unlink()
            raise FetchError(
                f"{item.file}: expected a file whose SHA-256 begins with {item.sha256}, got {entry.sha256}; "
                + (
                    "it was removed: run the same command again"
                    if item.fetch
                    else "it is damaged or another: remove it"
                )
            )
