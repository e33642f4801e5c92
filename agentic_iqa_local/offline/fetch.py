"""Collects the files that a configuration needs: models and tools' weights from the Hub, wheels from an
index. The only module that downloads; `agentic_iqa_local bundle` calls it, on a connected machine."""

import functools
import http.client
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from packaging.metadata import parse_email
from packaging.tags import sys_tags
from packaging.utils import parse_wheel_filename

from agentic_iqa_local.errors import UserError
from agentic_iqa_local.files import FileError, read_bytes, read_json
from agentic_iqa_local.offline.store import (
    HUB,
    HUGGINGFACE,
    SEGMENT,
    WHEELS,
    Manifest,
    Notice,
    amount,
    file_hash,
)
from agentic_iqa_local.paths import EMBEDDED, ROOT, about_missing_model
from agentic_iqa_local.text import one_line

if TYPE_CHECKING:
    from huggingface_hub.hf_api import RepoSibling

    from agentic_iqa_local.config import Settings

T = TypeVar("T")
logger = logging.getLogger(__name__)


class FetchError(UserError, RuntimeError):
    """Something that cannot be had; the message is one sentence for the user."""


@dataclass(frozen=True)
class Repo:
    """A repository on the Hugging Face Hub; `licence` as its model card had it when this was written."""

    name: str
    revision: str = "main"
    licence: str = "unknown"

    def __str__(self) -> str:
        return f"{self.name}@{self.revision}"


# The model folders that the shipped configurations name.
REPOS = {
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

OWN = "this project's own"
EMBEDDED_LICENCE = (
    "this project's own, embedded/README.md names its photographs' licences; SmolLM2's weights in it are"
    " under Apache-2.0 (embedded/LICENSE-SmolLM2)"
)
FREE = (
    "apache-2.0",
    "mit",
    "bsd-2-clause",
    "bsd-3-clause",
    "cc0-1.0",
    "cc-by-4.0",
    OWN.lower(),
    EMBEDDED_LICENCE.lower(),
)
TERMS = {
    "cc-by-nc-sa-4.0": (
        "no commercial use, changes under the same licence",
        "https://creativecommons.org/licenses/by-nc-sa/4.0/",
    ),
    "unknown": ("read the model card before use", "no link known"),
}
PYIQA = Notice(
    licence="PolyForm-Noncommercial-1.0.0",
    of="pyiqa, which runs the tools",
    says="commercial use needs its authors' permission",
    url="https://polyformproject.org/licenses/noncommercial/1.0.0/",
)
NVIDIA = Notice(
    licence="LicenseRef-NVIDIA-Proprietary",
    of="CUDA libraries that torch's wheels for Linux bring",
    says="NVIDIA's licence agreement",
    url="https://docs.nvidia.com/cuda/eula/",
)

CARRIED = {".safetensors", ".json", ".jinja", ".txt", ".model", ".tiktoken", ".md"}
PICKLED = {".bin"}
# What an offline installation for an engine consists of.
LOCKS = {"transformers": "constraints.txt", "vllm": "constraints-gpu.txt"}
LONGEST_NAME = 100  # of a file in a tar archive
REQUIREMENTS = f"{WHEELS}/requirements.txt"
TRIES = 5
# The Hub and the web servers are not trusted: what they send is named, counted and compared before it is
# taken.
COMMIT = re.compile("[0-9a-f]{40}")
MOST_FILES = 10_000  # of a repository
LARGEST_MODEL = 2 << 40  # bytes of all files that are taken of a repository
LARGEST_WEIGHT = 4 << 30  # bytes of a tool's weight from a web server; the largest known has 0.6 GB


@dataclass(frozen=True)
class Wanted:
    """A file for the bundle. `file` is where it lies, or will once `fetch` has run; `sha256` how its hash
    must begin."""

    path: str
    file: Path
    source: str
    licence: str
    fetch: Callable[[], None] | None = None
    sha256: str = ""


# downloads


def retried(what: str, action: Callable[[], T]) -> T:
    """The action's result; errors of the network are tried again, longer and longer after. Raises
    FetchError."""
    # HTTPError is the base of its HTTP client's errors, whichever client it has.
    from huggingface_hub.errors import HTTPError, XetDownloadError

    for attempt in range(1, TRIES + 1):
        try:
            return action()
        except (OSError, http.client.HTTPException, HTTPError, XetDownloadError) as error:
            status = getattr(error, "code", None) or getattr(
                getattr(error, "response", None), "status_code", None
            )
            reason = _short(str(error)) or type(error).__name__
            if attempt == TRIES or status in (401, 403, 404):
                raise FetchError(
                    f"{what}: cannot be downloaded ({reason})", "what is there is kept, try again later"
                ) from error
            logger.warning("%s", one_line(f"{what}: {reason}; trying again"))
            time.sleep(2**attempt)
    raise AssertionError("the last attempt returns or raises")


def download(url: str, file: Path) -> None:
    """Downloads a file of at most LARGEST_WEIGHT bytes, going on where an earlier attempt ended. Raises
    OSError, and FetchError for an answer that no other try would better."""
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(file.name + ".partial")
    have = partial.stat().st_size if partial.exists() else 0
    headers = {"User-Agent": "agentic_iqa_local"} | ({"Range": f"bytes={have}-"} if have else {})
    try:
        with WEB.open(urllib.request.Request(url, headers=headers), timeout=60) as response:
            resumed = response.status == 206
            length = response.headers["Content-Length"] or "0"
            if not re.fullmatch("[0-9]{1,18}", length):
                raise OSError(f"expected a number as Content-Length, got {length[:80]!r}")
            expected = int(length) + (have if resumed else 0)
            _save(response, partial, have if resumed else 0, url)
    except urllib.error.HTTPError as error:
        if error.code == 416:  # what is there is as long as the whole, or longer: nothing to go on from
            partial.unlink()
        raise
    except ValueError as error:  # sent on to an address that is none
        raise OSError(f"expected an address to be sent on to, got another ({error})") from error
    if (got := partial.stat().st_size) < expected:
        raise OSError(f"the connection ended after {got} of {expected} bytes")
    os.replace(partial, file)


class _NoLessSafe(urllib.request.HTTPRedirectHandler):
    """Follows no redirect from https to http, and none to a file."""

    def redirect_request(self, request, file, code, message, headers, url):
        if urlsplit(url).scheme not in ("https", request.type):
            raise FetchError(
                f"{request.full_url}: expected to be sent on by {request.type}, got {url[:200]};"
                " nothing was taken from there",
            )
        return super().redirect_request(request, file, code, message, headers, url)


# Neither files nor ftp, whatever a redirect says
WEB = urllib.request.OpenerDirector()
for handler in (
    urllib.request.ProxyHandler,
    urllib.request.HTTPHandler,
    urllib.request.HTTPSHandler,
    urllib.request.HTTPDefaultErrorHandler,
    urllib.request.HTTPErrorProcessor,
    urllib.request.UnknownHandler,
    _NoLessSafe,
):
    WEB.add_handler(handler())


def _save(response: http.client.HTTPResponse, partial: Path, have: int, url: str) -> None:
    """Writes what comes behind the `have` bytes of `partial`. Raises FetchError, and keeps nothing, beyond
    LARGEST_WEIGHT."""
    with partial.open("ab" if have else "wb") as out:
        while data := response.read(1 << 20):
            if (have := have + len(data)) > LARGEST_WEIGHT:
                partial.unlink()
                raise FetchError(
                    f"{url}: expected at most {amount(LARGEST_WEIGHT)}, got more; this is not the"
                    " file that was asked for",
                )
            out.write(data)


@dataclass(frozen=True)
class Listing:
    """A repository at one commit: the licence of its card and, by name, each file's SHA-256 ("" where git
    keeps it)."""

    repo: str
    commit: str
    licence: str
    files: dict[str, str]


@functools.cache
def listing(repo: Repo) -> Listing:
    """Asks the Hub what a repository holds. Raises FetchError."""
    from huggingface_hub import HfApi

    info = retried(
        str(repo), lambda: HfApi().model_info(repo.name, revision=repo.revision, files_metadata=True)
    )
    card = info.card_data
    licence = (card and (card.license_name or card.license)) or repo.licence
    licence = ", ".join(map(str, licence)) if isinstance(licence, list) else str(licence)
    if not isinstance(info.sha, str) or not COMMIT.fullmatch(info.sha):
        raise FetchError(
            f"{repo}: expected the Hub to name a commit of 40 hexadecimal digits, got {str(info.sha)[:80]!r}"
        )
    if COMMIT.fullmatch(repo.revision) and info.sha != repo.revision:
        raise FetchError(f"{repo}: expected the Hub to answer about this commit, got {info.sha}")
    if len(info.siblings or ()) > MOST_FILES:
        raise FetchError(f"{repo}: expected at most {MOST_FILES} files, got {len(info.siblings)}")
    files = {
        file.rfilename: _published(repo, file)
        for file in info.siblings or ()
        if SEGMENT.fullmatch(str(file.rfilename))
    }
    if (
        size := sum(file.size or 0 for file in info.siblings or () if file.rfilename in files)
    ) > LARGEST_MODEL:
        raise FetchError(f"{repo}: expected at most {amount(LARGEST_MODEL)}, got {amount(size)}")
    return Listing(repo.name, info.sha, _short(licence), files)


def _published(repo: Repo, file: "RepoSibling") -> str:
    """A file's SHA-256 as the Hub has it; empty where git keeps the file. Raises FetchError for what is no
    hash, or no size."""
    sha256 = file.lfs.sha256 if file.lfs else ""
    if file.lfs and not re.fullmatch("[0-9a-f]{64}", str(sha256)):
        raise FetchError(
            f"{repo}: {file.rfilename}: expected the Hub to name its SHA-256, got {str(sha256)[:80]!r}"
        )
    if file.size is not None and (type(file.size) is not int or file.size < 0):
        raise FetchError(
            f"{repo}: {file.rfilename}: expected a number of bytes as its size, got {str(file.size)[:80]!r}"
        )
    return sha256


def from_hub(found: Listing, name: str, path: str, downloads: Path) -> Wanted:
    """One file of a repository, downloaded by huggingface_hub, which resumes."""
    folder = snapshot_folder(found, downloads)

    def fetch() -> None:
        from huggingface_hub import hf_hub_download

        retried(
            f"{found.repo}: {name}",
            lambda: hf_hub_download(found.repo, name, revision=found.commit, local_dir=folder),
        )

    source = f"https://huggingface.co/{found.repo}/resolve/{found.commit}/{name}"
    return Wanted(path, folder / name, source, found.licence, fetch, found.files[name])


def snapshot_folder(found: Listing, downloads: Path) -> Path:
    return downloads / f"{found.repo.replace('/', '--')}@{found.commit}"


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


# what is wanted


def model_folder(folder: str, local: Path, repos: dict[str, Repo], downloads: Path) -> list[Wanted]:
    """A vision-language model's files: from the folder `local` if there is one, else from its repository.
    Raises FetchError."""
    if folder not in repos and local.is_dir():
        ours = EMBEDDED_LICENCE if (local / "LICENSE-SmolLM2").is_file() else OWN
        licence = ours if folder == "embedded" else REPOS[folder].licence if folder in REPOS else "unknown"
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
    found = listing(repo)
    return [from_hub(found, name, f"{folder}/{name}", downloads) for name in chosen(found.files, str(repo))]


def tool_weight(weight: str, local: Path | None, cache: Path | None, downloads: Path) -> list[Wanted]:
    """A weight of the tools' table: one file of torch's hub folder, or a snapshot for the Hugging Face cache.

    What lies in the hub folder `local` or in the Hugging Face cache `cache` is taken from there. Raises
    FetchError.
    """
    if weight.startswith("hf:"):
        repo = Repo(weight.removeprefix("hf:"))
        return (cache and cached_snapshot(repo, cache)) or snapshot(repo, downloads)
    path, name = f"{HUB}/{weight}", PurePosixPath(weight).name
    of_pyiqa = weight.startswith("pyiqa/") or weight in PYIQA_CHECKPOINTS
    url = CLIP.get(weight) or TORCHVISION + name
    # CLIP's and torchvision's files have their SHA-256, or its beginning, in the address; pyiqa's the Hub
    # knows.
    begin = (
        "" if of_pyiqa else url.split("/")[-2] if weight in CLIP else re.search(r"-([0-9a-f]{8,})\.", name)[1]
    )
    licence = PYIQA_WEIGHTS.licence if of_pyiqa else "mit" if weight in CLIP else "bsd-3-clause"
    if local and (local / weight).is_file():
        return [Wanted(path, local / weight, f"local file {weight}", licence, sha256=begin)]
    if of_pyiqa:
        found = listing(PYIQA_WEIGHTS)
        if name not in found.files:
            raise FetchError(
                f"{PYIQA_WEIGHTS}: expected a file {name}, found none",
                f"put it below --weights DIR as {weight}",
            )
        return [from_hub(found, name, path, downloads)]
    file = downloads / "urls" / name
    return [Wanted(path, file, url, licence, lambda: retried(url, lambda: download(url, file)), begin)]


def cache_folder(repo: Repo) -> str:
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
    found = listing(repo)
    cache = f"{HUGGINGFACE}/{cache_folder(repo)}"
    files = [
        from_hub(found, name, f"{cache}/snapshots/{found.commit}/{name}", downloads)
        for name in chosen(found.files, str(repo), pickles=True)
    ]
    ref = snapshot_folder(found, downloads) / ".ref"

    def write_ref() -> None:
        ref.parent.mkdir(parents=True, exist_ok=True)
        ref.write_text(found.commit)

    return [
        *files,
        Wanted(f"{cache}/refs/main", ref, f"https://huggingface.co/{repo.name}", found.licence, write_ref),
    ]


def wheels(engine: str, folder: Path) -> Iterator[Wanted]:
    """Builds or downloads a wheel of every package of an engine's lock, and of this project; and a list of
    them with hashes."""
    shutil.rmtree(folder, ignore_errors=True)
    with tempfile.TemporaryDirectory() as place:
        # pip builds from a copy: it leaves files in the source, and would pack what an earlier build left
        # there.
        source = Path(place) / "source"
        for part in ("agentic_iqa_local", "configs", "models/embedded-parts"):
            shutil.copytree(ROOT / part, source / part, ignore=shutil.ignore_patterns("__pycache__"))
        for file in ("pyproject.toml", "README.md"):
            shutil.copyfile(ROOT / file, source / file)
        line = [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "--disable-pip-version-check",
            "--no-deps",
            "--wheel-dir",
            str(folder),
        ]
        if status := subprocess.run(
            [*line, "--requirement", str(ROOT / LOCKS[engine]), str(source)], stdout=sys.stderr
        ).returncode:
            raise FetchError(f"wheels: pip ended with status {status}", "its own message stands above")
    requirements = []
    for wheel in sorted(map(with_short_name, folder.glob("*.whl"))):
        name, version, _, _ = parse_wheel_filename(wheel.name)
        requirements.append(f"{name}=={version} --hash=sha256:{file_hash(wheel)}\n")
        yield Wanted(f"{WHEELS}/{wheel.name}", wheel, f"pip wheel {wheel.name}", wheel_licence(wheel))
    (folder / "requirements.txt").write_text("".join(requirements), encoding="utf-8")
    yield Wanted(REQUIREMENTS, folder / "requirements.txt", "this script", OWN)


def with_short_name(wheel: Path) -> Path:
    """The wheel, renamed where an archive cannot hold its name: of its platforms only the one that fits here
    best is kept."""
    if len(wheel.name) <= LONGEST_NAME:
        return wheel
    tags = parse_wheel_filename(wheel.name)[-1]
    best = next(tag for tag in sys_tags() if tag in tags)
    return wheel.rename(wheel.with_name(f"{wheel.name.rpartition('-')[0]}-{best.platform}.whl"))


def wheel_licence(wheel: Path) -> str:
    """What a wheel's metadata says of its licence, in one line."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            name = next(
                (name for name in archive.namelist() if name.endswith(".dist-info/METADATA")), "METADATA"
            )
            with archive.open(name) as file:
                metadata, _ = parse_email(file.read(1 << 20))
    except (zipfile.BadZipFile, KeyError) as error:
        raise FetchError(
            f"{wheel}: expected a wheel with its metadata, got another file ({error})", "build it anew"
        ) from error
    text = metadata.get("license_expression") or metadata.get("license") or ""
    return _short((text.strip() or "in the wheel").splitlines()[0])


def _short(text: str) -> str:
    return one_line(" ".join(text.split())[:200])


# licences


def binding(wanted: Iterable[Wanted]) -> list[Notice]:
    """A notice for each licence among the files that restricts their use, with the folder or repository it is
    about."""
    of: dict[str, list[str]] = {}
    for item in wanted:
        if item.licence.lower() not in FREE:
            parts = PurePosixPath(item.path).parts
            of.setdefault(item.licence, []).append(
                parts[0] if parts[0] != "tools" else parts[2 if parts[1] != "hub" else -1]
            )
    return [notice(licence, ", ".join(dict.fromkeys(names))) for licence, names in of.items()]


def notice(licence: str, of: str) -> Notice:
    says, url = TERMS.get(
        licence.lower(), ("read it before use, it may restrict what you do", "see the model card")
    )
    return Notice(licence=licence, of=_short(of), says=says, url=url)


def folder_of(settings: "Settings", backend: str) -> str:
    """Where the configuration looks for a model, relative to the models folder. Raises ConfigError."""
    from agentic_iqa_local.config import ConfigError, ModelSettings

    name = backend.partition(".")[2]
    folder = PurePosixPath(settings.models.get(name, ModelSettings()).path or name)
    if len(folder.parts) != 1:
        raise ConfigError(
            f"models.{name}.path: expected the name of a folder in the models folder, for a bundle; got"
            f" {folder}",
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
