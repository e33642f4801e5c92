#!/usr/bin/env python
"""Collects what a configuration needs into one bundle, for a machine without a network. Only this script downloads.

examples:
  python scripts/fetch_models.py                                              the embedded model; nothing is downloaded
  python scripts/fetch_models.py --config qwen2_5_vl_7b --tools TOPIQ_NR LPIPS
  python scripts/fetch_models.py --config qwen3_vl_8b --wheels --out /media/usb/iqa.iqabundle.tar
  python scripts/fetch_models.py --config qwen2_5_vl_7b --models /srv/models  the model lies there: it is not downloaded
  python scripts/fetch_models.py --tools LPIPS --weights ~/.cache/torch/hub --accept-licences
  python scripts/fetch_models.py --tools TOPIQ_NR --weights ~/.cache/torch/hub --huggingface ~/.cache/huggingface/hub
  python scripts/fetch_models.py --config mine.yaml --repo My-VL-7B=org/My-VL-7B@main

Every file is recorded with its size, SHA-256, source and licence; repositories are pinned to a commit. Of a repository's
weights only safetensors are taken where it has them. Downloads lie in OUT.downloads until the bundle is written: after an
interruption the same command goes on. HF_TOKEN, HF_ENDPOINT and proxy variables work as they do for huggingface_hub.

Exit status: 0 the bundle is written, 1 it is not (a licence not accepted, something that cannot be had or is damaged),
2 wrong usage, 130 interrupted.
"""

import argparse
import functools
import http.client
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
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

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from agentic_iqa_local.commands.console import Parser, safe_streams  # noqa: E402 (found by the line above)
from agentic_iqa_local.errors import UserError  # noqa: E402
from agentic_iqa_local.files import FileError, read_bytes, read_json  # noqa: E402
from agentic_iqa_local.model_store import (  # noqa: E402
    HUB,
    HUGGINGFACE,
    SEGMENT,
    WHEELS,
    BundleError,
    Manifest,
    Notice,
    Piece,
    amount,
    describe,
    file_hash,
    meter,
    write_bundle,
)
from agentic_iqa_local.paths import EMBEDDED, about_missing_model  # noqa: E402
from agentic_iqa_local.text import one_line  # noqa: E402

if TYPE_CHECKING:
    from huggingface_hub.hf_api import RepoSibling

    from agentic_iqa_local.config import Settings

T = TypeVar("T")


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
    "Qwen2.5-VL-7B-Instruct": Repo("Qwen/Qwen2.5-VL-7B-Instruct", "cc594898137f460bfe9f0759e9844b3ce807cfb5", "apache-2.0"),
    "Qwen3-VL-8B-Instruct": Repo("Qwen/Qwen3-VL-8B-Instruct", "0c351dd01ed87e9c1b53cbc748cba10e6187ff3b", "apache-2.0"),
    "llava-onevision-qwen2-7b-ov-hf": Repo(
        "llava-hf/llava-onevision-qwen2-7b-ov-hf", "0d50680527681998e456c7b78950205bedd8a068", "apache-2.0"
    ),
}
# Where pyiqa's get_url_from_name leads; the commit is that of pyiqa 0.1.16's time.
PYIQA_WEIGHTS = Repo("chaofengc/IQA-PyTorch-Weights", "0df2df423c65f6a64209309695f3845727431027", "cc-by-nc-sa-4.0")
# pyiqa loads this one through torch.hub, which keeps it elsewhere.
PYIQA_CHECKPOINTS = ("checkpoints/ARNIQA.pth",)
TORCHVISION = "https://download.pytorch.org/models/"
CLIP = {
    "clip/RN50.pt": "https://openaipublic.azureedge.net/clip/models/afeb0e10f9e5a86da6080e35cf09123aca3b358a0c3e3b6c78a7b63bc04b6762/RN50.pt",
    "clip/ViT-B-32.pt": "https://openaipublic.azureedge.net/clip/models/40d365715913c9da98579312b702a82c18be219cc2a73407c4526f58eba950af/ViT-B-32.pt",
}

OWN = "this project's own"
EMBEDDED_LICENCE = (
    "this project's own, embedded/README.md names its photographs' licences; SmolLM2's weights in it are under Apache-2.0 "
    "(embedded/LICENSE-SmolLM2)"
)
FREE = ("apache-2.0", "mit", "bsd-2-clause", "bsd-3-clause", "cc0-1.0", "cc-by-4.0", OWN.lower(), EMBEDDED_LICENCE.lower())
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
# The Hub and the web servers are not trusted: what they send is named, counted and compared before it is taken.
COMMIT = re.compile("[0-9a-f]{40}")
MOST_FILES = 10_000  # of a repository
LARGEST_MODEL = 2 << 40  # bytes of all files that are taken of a repository
LARGEST_WEIGHT = 4 << 30  # bytes of a tool's weight from a web server; the largest known has 0.6 GB


@dataclass(frozen=True)
class Wanted:
    """A file for the bundle. `file` is where it lies, or will once `fetch` has run; `sha256` how its hash must begin."""

    path: str
    file: Path
    source: str
    licence: str
    fetch: Callable[[], None] | None = None
    sha256: str = ""


# downloads


def retried(what: str, action: Callable[[], T]) -> T:
    """The action's result; errors of the network are tried again, longer and longer after. Raises FetchError."""
    # HTTPError is the base of its HTTP client's errors, whichever client it has.
    from huggingface_hub.errors import HTTPError, XetDownloadError

    for attempt in range(1, TRIES + 1):
        try:
            return action()
        except (OSError, http.client.HTTPException, HTTPError, XetDownloadError) as error:
            status = getattr(error, "code", None) or getattr(getattr(error, "response", None), "status_code", None)
            reason = _short(str(error)) or type(error).__name__
            if attempt == TRIES or status in (401, 403, 404):
                raise FetchError(f"{what}: cannot be downloaded ({reason}); what is there is kept, try again later") from error
            print(one_line(f"{what}: {reason}; trying again"), file=sys.stderr)
            time.sleep(2**attempt)
    raise AssertionError("the last attempt returns or raises")


def download(url: str, file: Path) -> None:
    """Downloads a file of at most LARGEST_WEIGHT bytes, going on where an earlier attempt ended. Raises OSError, and FetchError
    for an answer that no other try would better."""
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
                f"{request.full_url}: expected to be sent on by {request.type}, got {url[:200]}; nothing was taken from there"
            )
        return super().redirect_request(request, file, code, message, headers, url)


# Neither files nor ftp, whatever a redirect says
WEB = urllib.request.OpenerDirector()
for handler in (
    urllib.request.ProxyHandler, urllib.request.HTTPHandler, urllib.request.HTTPSHandler, urllib.request.HTTPDefaultErrorHandler,
    urllib.request.HTTPErrorProcessor, urllib.request.UnknownHandler, _NoLessSafe,
):  # fmt: skip
    WEB.add_handler(handler())


def _save(response: http.client.HTTPResponse, partial: Path, have: int, url: str) -> None:
    """Writes what comes behind the `have` bytes of `partial`. Raises FetchError, and keeps nothing, beyond LARGEST_WEIGHT."""
    with partial.open("ab" if have else "wb") as out:
        while data := response.read(1 << 20):
            if (have := have + len(data)) > LARGEST_WEIGHT:
                partial.unlink()
                raise FetchError(
                    f"{url}: expected at most {amount(LARGEST_WEIGHT)}, got more; this is not the file that was asked for"
                )
            out.write(data)


@dataclass(frozen=True)
class Listing:
    """A repository at one commit: the licence of its card and, by name, each file's SHA-256 ("" where git keeps it)."""

    repo: str
    commit: str
    licence: str
    files: dict[str, str]


@functools.cache
def listing(repo: Repo) -> Listing:
    """Asks the Hub what a repository holds. Raises FetchError."""
    from huggingface_hub import HfApi

    info = retried(str(repo), lambda: HfApi().model_info(repo.name, revision=repo.revision, files_metadata=True))
    card = info.card_data
    licence = (card and (card.license_name or card.license)) or repo.licence
    licence = ", ".join(map(str, licence)) if isinstance(licence, list) else str(licence)
    if not isinstance(info.sha, str) or not COMMIT.fullmatch(info.sha):
        raise FetchError(f"{repo}: expected the Hub to name a commit of 40 hexadecimal digits, got {str(info.sha)[:80]!r}")
    if COMMIT.fullmatch(repo.revision) and info.sha != repo.revision:
        raise FetchError(f"{repo}: expected the Hub to answer about this commit, got {info.sha}")
    if len(info.siblings or ()) > MOST_FILES:
        raise FetchError(f"{repo}: expected at most {MOST_FILES} files, got {len(info.siblings)}")
    files = {file.rfilename: _published(repo, file) for file in info.siblings or () if SEGMENT.fullmatch(str(file.rfilename))}
    if (size := sum(file.size or 0 for file in info.siblings or () if file.rfilename in files)) > LARGEST_MODEL:
        raise FetchError(f"{repo}: expected at most {amount(LARGEST_MODEL)}, got {amount(size)}")
    return Listing(repo.name, info.sha, _short(licence), files)


def _published(repo: Repo, file: "RepoSibling") -> str:
    """A file's SHA-256 as the Hub has it; empty where git keeps the file. Raises FetchError for what is no hash, or no size."""
    sha256 = file.lfs.sha256 if file.lfs else ""
    if file.lfs and not re.fullmatch("[0-9a-f]{64}", str(sha256)):
        raise FetchError(f"{repo}: {file.rfilename}: expected the Hub to name its SHA-256, got {str(sha256)[:80]!r}")
    if file.size is not None and (type(file.size) is not int or file.size < 0):
        raise FetchError(f"{repo}: {file.rfilename}: expected a number of bytes as its size, got {str(file.size)[:80]!r}")
    return sha256


def from_hub(found: Listing, name: str, path: str, downloads: Path) -> Wanted:
    """One file of a repository, downloaded by huggingface_hub, which resumes."""
    folder = snapshot_folder(found, downloads)

    def fetch() -> None:
        from huggingface_hub import hf_hub_download

        retried(f"{found.repo}: {name}", lambda: hf_hub_download(found.repo, name, revision=found.commit, local_dir=folder))

    source = f"https://huggingface.co/{found.repo}/resolve/{found.commit}/{name}"
    return Wanted(path, folder / name, source, found.licence, fetch, found.files[name])


def snapshot_folder(found: Listing, downloads: Path) -> Path:
    return downloads / f"{found.repo.replace('/', '--')}@{found.commit}"


def chosen(names: Iterable[str], what: str, pickles: bool = False) -> list[str]:
    """Which files of a model are taken: safetensors and what goes with them; a tool's pickles where it has nothing else.

    Remote code, other frameworks' weights and subfolders stay behind. Raises FetchError when no weights are left.
    """
    names = [name for name in names if "/" not in name and not name.startswith(".")]
    taken = [name for name in names if PurePosixPath(name).suffix in CARRIED or name.upper().startswith(("LICEN", "NOTICE"))]
    if not any(name.endswith(".safetensors") for name in taken):
        weights = [name for name in names if pickles and PurePosixPath(name).suffix in PICKLED]
        if not weights:
            raise FetchError(f"{what}: expected weights as *.safetensors, found none; choose the safetensors edition")
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
                f"{folder / index}: expected a weight_map, the file is damaged; copy the model there again"
            ) from error
        needed |= dict.fromkeys(map(str, shards), index)
    for name, why in needed.items():
        if name not in names:
            raise FetchError(f"{folder}: expected {name} ({why}), found none; copy the model there again")


# what is wanted


def model_folder(folder: str, local: Path, repos: dict[str, Repo], downloads: Path) -> list[Wanted]:
    """A vision-language model's files: from the folder `local` if there is one, else from its repository. Raises FetchError."""
    if folder not in repos and local.is_dir():
        ours = EMBEDDED_LICENCE if (local / "LICENSE-SmolLM2").is_file() else OWN
        licence = ours if folder == "embedded" else REPOS[folder].licence if folder in REPOS else "unknown"
        names = chosen((place.name for place in local.iterdir() if place.is_file()), str(local))
        require_whole(local, names)
        return [Wanted(f"{folder}/{name}", local / name, f"local folder {folder}", licence) for name in names]
    repo = repos.get(folder) or REPOS.get(folder)
    if repo is None and local == EMBEDDED:
        raise FetchError(about_missing_model(local))
    if repo is None:
        raise FetchError(
            f"model {folder}: expected the folder {local} or a known repository, found neither; "
            f"pass --models DIR, or --repo {folder}=ORG/NAME@REVISION"
        )
    found = listing(repo)
    return [from_hub(found, name, f"{folder}/{name}", downloads) for name in chosen(found.files, str(repo))]


def tool_weight(weight: str, local: Path | None, cache: Path | None, downloads: Path) -> list[Wanted]:
    """A weight of the tools' table: one file of torch's hub folder, or a snapshot for the Hugging Face cache.

    What lies in the hub folder `local` or in the Hugging Face cache `cache` is taken from there. Raises FetchError.
    """
    if weight.startswith("hf:"):
        repo = Repo(weight.removeprefix("hf:"))
        return (cache and cached_snapshot(repo, cache)) or snapshot(repo, downloads)
    path, name = f"{HUB}/{weight}", PurePosixPath(weight).name
    of_pyiqa = weight.startswith("pyiqa/") or weight in PYIQA_CHECKPOINTS
    url = CLIP.get(weight) or TORCHVISION + name
    # CLIP's and torchvision's files have their SHA-256, or its beginning, in the address; pyiqa's the Hub knows.
    begin = "" if of_pyiqa else url.split("/")[-2] if weight in CLIP else re.search(r"-([0-9a-f]{8,})\.", name)[1]
    licence = PYIQA_WEIGHTS.licence if of_pyiqa else "mit" if weight in CLIP else "bsd-3-clause"
    if local and (local / weight).is_file():
        return [Wanted(path, local / weight, f"local file {weight}", licence, sha256=begin)]
    if of_pyiqa:
        found = listing(PYIQA_WEIGHTS)
        if name not in found.files:
            raise FetchError(f"{PYIQA_WEIGHTS}: expected a file {name}, found none; put it below --weights DIR as {weight}")
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
    names = chosen((file.name for file in (cache / place).iterdir() if file.is_file()), str(cache / place), pickles=True)
    files = [*(f"{place}/{name}" for name in names), f"{cache_folder(repo)}/refs/main"]
    return [Wanted(f"{HUGGINGFACE}/{name}", cache / name, f"local cache {name}", repo.licence) for name in files]


def snapshot(repo: Repo, downloads: Path) -> list[Wanted]:
    """A repository as the Hugging Face cache lays it out, with files where it has links; refs/main names the commit."""
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

    return [*files, Wanted(f"{cache}/refs/main", ref, f"https://huggingface.co/{repo.name}", found.licence, write_ref)]


def wheels(engine: str, folder: Path) -> Iterator[Wanted]:
    """Builds or downloads a wheel of every package of an engine's lock, and of this project; and a list of them with hashes."""
    shutil.rmtree(folder, ignore_errors=True)
    with tempfile.TemporaryDirectory() as place:
        # pip builds from a copy: it leaves files in the source, and would pack what an earlier build left there.
        source = Path(place) / "source"
        for part in ("agentic_iqa_local", "configs", "models/embedded-parts"):
            shutil.copytree(ROOT / part, source / part, ignore=shutil.ignore_patterns("__pycache__"))
        for file in ("pyproject.toml", "README.md"):
            shutil.copyfile(ROOT / file, source / file)
        line = [sys.executable, "-m", "pip", "wheel", "--disable-pip-version-check", "--no-deps", "--wheel-dir", str(folder)]
        if status := subprocess.run(
            [*line, "--requirement", str(ROOT / LOCKS[engine]), str(source)], stdout=sys.stderr
        ).returncode:
            raise FetchError(f"wheels: pip ended with status {status}; its own message stands above")
    requirements = []
    for wheel in sorted(map(with_short_name, folder.glob("*.whl"))):
        name, version, _, _ = parse_wheel_filename(wheel.name)
        requirements.append(f"{name}=={version} --hash=sha256:{file_hash(wheel)}\n")
        yield Wanted(f"{WHEELS}/{wheel.name}", wheel, f"pip wheel {wheel.name}", wheel_licence(wheel))
    (folder / "requirements.txt").write_text("".join(requirements), encoding="utf-8")
    yield Wanted(REQUIREMENTS, folder / "requirements.txt", "this script", OWN)


def with_short_name(wheel: Path) -> Path:
    """The wheel, renamed where an archive cannot hold its name: of its platforms only the one that fits here best is kept."""
    if len(wheel.name) <= LONGEST_NAME:
        return wheel
    tags = parse_wheel_filename(wheel.name)[-1]
    best = next(tag for tag in sys_tags() if tag in tags)
    return wheel.rename(wheel.with_name(f"{wheel.name.rpartition('-')[0]}-{best.platform}.whl"))


def wheel_licence(wheel: Path) -> str:
    """What a wheel's metadata says of its licence, in one line."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            name = next((name for name in archive.namelist() if name.endswith(".dist-info/METADATA")), "METADATA")
            with archive.open(name) as file:
                metadata, _ = parse_email(file.read(1 << 20))
    except (zipfile.BadZipFile, KeyError) as error:
        raise FetchError(f"{wheel}: expected a wheel with its metadata, got another file ({error}); build it anew") from error
    text = metadata.get("license_expression") or metadata.get("license") or ""
    return _short((text.strip() or "in the wheel").splitlines()[0])


def _short(text: str) -> str:
    return one_line(" ".join(text.split())[:200])


# licences


def binding(wanted: Iterable[Wanted]) -> list[Notice]:
    """A notice for each licence among the files that restricts their use, with the folder or repository it is about."""
    of: dict[str, list[str]] = {}
    for item in wanted:
        if item.licence.lower() not in FREE:
            parts = PurePosixPath(item.path).parts
            of.setdefault(item.licence, []).append(parts[0] if parts[0] != "tools" else parts[2 if parts[1] != "hub" else -1])
    return [notice(licence, ", ".join(dict.fromkeys(names))) for licence, names in of.items()]


def notice(licence: str, of: str) -> Notice:
    says, url = TERMS.get(licence.lower(), ("read it before use, it may restrict what you do", "see the model card"))
    return Notice(licence=licence, of=_short(of), says=says, url=url)


def ask(notices: list[Notice], accepted: bool) -> None:
    """Shows licences that bind and asks whether to go on. Raises FetchError where the answer is no or nobody can answer."""
    if not notices:
        return
    print("These licences restrict what you may do:", file=sys.stderr)
    for item in notices:
        print(one_line(f"  {item}"), file=sys.stderr)
    if accepted:
        return
    if not sys.stdin.isatty():
        raise FetchError("licences: expected --accept-licences, since nobody can be asked here; read them, then pass it")
    print("Accept them and go on? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise FetchError("licences: not accepted, so nothing was downloaded")


# the command line


def repo_option(text: str) -> tuple[str, Repo]:
    found = re.fullmatch(r"([\w.-]+)=([\w.-]+/[\w.-]+?)(?:@([\w./-]+))?", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"expected FOLDER=ORG/NAME@REVISION, got {text!r}")
    return found[1], Repo(found[2], found[3] or "main")


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_argument_group("what to collect")
    what.add_argument("--config", metavar="NAME", help="a set-up of configs/ by name, or a YAML file (default: embedded)")
    what.add_argument(
        "--tools", nargs="+", metavar="TOOL", help="tools whose weights are taken (default: those that the configuration names)"
    )
    what.add_argument(
        "--wheels",
        nargs="?",
        choices=LOCKS,
        const="transformers",
        help="also wheels of the locked environment of an engine (default: transformers), for this machine's platform and Python",
    )
    where = parser.add_argument_group("where it comes from")
    where.add_argument(
        "--models", type=Path, metavar="DIR", help="folder that holds model folders (default: the configuration's)"
    )
    where.add_argument("--weights", type=Path, metavar="DIR", help="torch hub folder; tools' weights that lie there are taken")
    where.add_argument(
        "--huggingface", type=Path, metavar="DIR", help="Hugging Face cache; tools' snapshots that lie there are taken"
    )
    where.add_argument(
        "--repo",
        nargs="+",
        type=repo_option,
        default=[],
        metavar="FOLDER=ORG/NAME@REVISION",
        help="the repository of a model folder, which is then downloaded",
    )
    output = parser.add_argument_group("output")
    output.add_argument("--out", type=Path, metavar="FILE", help="the bundle (default: NAME.iqabundle.tar here)")
    output.add_argument("--no-archive", action="store_true", help="write a folder, which any tool can copy file by file")
    output.add_argument("--accept-licences", action="store_true", help="accept the licences that are shown, without a question")
    args = parser.parse_args(argv)
    for option in ("models", "weights", "huggingface"):
        if (folder := getattr(args, option)) is not None and not folder.is_dir():
            parser.error(f"--{option}: expected a folder, found none at {folder}")
    return args


@safe_streams()
def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    from agentic_iqa_local.config import ConfigError, load_settings
    from agentic_iqa_local.iqa_tools import ToolError

    try:
        collect(args, load_settings(args.config))
        return 0
    except (ConfigError, ToolError, FetchError, BundleError, OSError) as error:
        print(f"error: {one_line(str(error))}", file=sys.stderr)
        return 2 if isinstance(error, (ConfigError, ToolError)) else 1
    except KeyboardInterrupt:
        print("interrupted: what was downloaded is kept; the same command goes on", file=sys.stderr)
        return 130


def collect(args: argparse.Namespace, settings: "Settings") -> None:
    """Finds, downloads and bundles what the options ask for."""
    from agentic_iqa_local.config import ConfigError
    from agentic_iqa_local.iqa_tools import find_tool

    name = Path(args.config or "embedded").stem
    out = (args.out or Path(f"{name}.iqabundle{'' if args.no_archive else '.tar'}")).absolute()
    downloads = out.with_name(f"{out.name}.downloads")
    backends = dict.fromkeys(settings.role(role).backend for role in ("planner", "executor", "summarizer"))
    places = {folder_of(settings, backend): Path(settings.model(backend).path) for backend in backends}
    repos = dict(args.repo)
    if unused := set(repos) - set(places):
        raise ConfigError(f"--repo {min(unused)}: expected a folder of configuration {name} ({', '.join(places)})")
    tools = [find_tool(tool) for tool in args.tools or (*settings.tools.full_reference, *settings.tools.no_reference)]
    wanted = []
    for folder, place in places.items():
        wanted += model_folder(folder, args.models / folder if args.models else place, repos, downloads)
    for weight in dict.fromkeys(weight for tool in tools for weight in tool.weights):
        wanted += tool_weight(weight, args.weights, args.huggingface, downloads)
    carried = [tool.name for tool in tools if tool.weights]
    notices = binding(wanted) + [PYIQA] * bool(carried or args.wheels) + [NVIDIA] * bool(args.wheels)
    ask(notices, args.accept_licences)

    contents = [f"configuration {name}: {', '.join(places)}"]
    if carried:
        contents.append(f"weights of the tools {', '.join(carried)}")
    for item in wanted:
        if item.fetch and not item.file.is_file():
            print(f"fetching {one_line(item.path)}", file=sys.stderr)
            item.fetch()
    if args.wheels:
        wanted += wheels(args.wheels, downloads / WHEELS)
        contents.append(
            f"wheels of the engine {args.wheels} for Python {sysconfig.get_python_version()} on {sysconfig.get_platform()}"
        )
    with meter() as progress:
        pieces = [Piece(item.path, item.file, item.source, item.licence) for item in wanted]
        manifest = describe(pieces, contents, notices, progress)
        check_downloads(manifest, {item.path: item for item in wanted})
    with meter() as progress:
        sha256 = write_bundle(out, manifest, {item.path: item.file for item in wanted}, not args.no_archive, progress)
    shutil.rmtree(downloads, ignore_errors=True)
    print(directions(out, manifest, sha256, args, settings))


def folder_of(settings: "Settings", backend: str) -> str:
    """Where the configuration looks for a model, relative to the models folder. Raises ConfigError."""
    from agentic_iqa_local.config import ConfigError, ModelSettings

    name = backend.partition(".")[2]
    folder = PurePosixPath(settings.models.get(name, ModelSettings()).path or name)
    if len(folder.parts) != 1:
        raise ConfigError(f"models.{name}.path: expected the name of a folder in the models folder, for a bundle; got {folder}")
    return str(folder)


def check_downloads(manifest: Manifest, wanted: dict[str, Wanted]) -> None:
    """Raises FetchError for a file that is not what its publisher says it is, and removes it where it was downloaded."""
    for entry in manifest.files:
        item = wanted[entry.path]
        if not entry.sha256.startswith(item.sha256):
            if item.fetch:
                item.file.unlink()
            raise FetchError(
                f"{item.file}: expected a file whose SHA-256 begins with {item.sha256}, got {entry.sha256}; "
                + ("it was removed: run the same command again" if item.fetch else "it is damaged or another: remove it")
            )


def directions(out: Path, manifest: Manifest, sha256: str, args: argparse.Namespace, settings: "Settings") -> str:
    """What was written, and the commands for the server."""
    bundle = shlex.quote(out.name)
    store = "python -m agentic_iqa_local.model_store"
    own = [Path(file).absolute() for file in (args.config, settings.tools.maps) if file and Path(file).is_file()]
    beside = [*([] if args.no_archive else [out.with_name(f"{out.name}.sha256")]), *own]
    copying = [f"rsync {'-a' if args.no_archive else '--append-verify'} {shlex.quote(str(out))} SERVER:"]
    copying += [f"rsync {shlex.join(map(str, beside))} SERVER:"] if beside else []
    moved = shlex.join(f"../{place.name}" for place in (out, *beside))
    lines = [f"Wrote {out}: {len(manifest.files)} files, {amount(manifest.size)}.", f"Manifest SHA-256: {sha256}", ""]
    lines += [
        "Copy it, beside a copy of this checkout; after a break the same commands go on:",
        *(f"  {line}" for line in copying),
    ]
    lines += ["", "On the server, in the copy of the checkout, without a network:", f"  mv {moved} ."]
    if listed := next((file.sha256 for file in manifest.files if file.path == REQUIREMENTS), None):
        place = f"{bundle}/{WHEELS}" if args.no_archive else WHEELS
        lines += [] if args.no_archive else [f"  tar -xf {bundle} {WHEELS}"]
        lines += [f'  echo "{listed}  {place}/requirements.txt" | sha256sum -c']
        lines += ["  python3 -m venv .venv && source .venv/bin/activate"]
        lines += [f"  pip install --no-index --no-deps --find-links {place} --require-hashes -r {place}/requirements.txt"]
    lines += [f"  {store} verify {bundle} --expect {sha256}", f"  {store} unpack {bundle} --expect {sha256} --models models"]
    config = f" --config {shlex.quote(Path(args.config).name)}" if args.config else ""
    lines += [f"  python scripts/doctor.py{config}", f"  python scripts/assess.py{config} --image PHOTO --explain"]
    return "\n".join(map(one_line, lines))


if __name__ == "__main__":
    sys.exit(main())
