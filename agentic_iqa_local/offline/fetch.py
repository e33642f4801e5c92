"""Finds what a configuration needs, on this machine, on the Hugging Face Hub or on a web server, and downloads what is
missing. Nothing else in this package reaches a network; the command bundle uses it, on a connected machine."""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from shutil import copytree, ignore_patterns, rmtree

from agentic_iqa_local.errors import UserError, one_line
from agentic_iqa_local.files import EMBEDDED, ROOT, about_missing_model, file_hash
from agentic_iqa_local.offline.manifest import HUB, HUGGINGFACE, SEGMENT, WHEELS, Notice


class FetchError(UserError, RuntimeError):
    """A file that cannot be downloaded or used for a bundle."""


@dataclass(frozen=True)
class Repo:
    """A repository on the Hugging Face Hub; `licence` as its model card had it when this was written."""

    name: str
    revision: str = "main"
    licence: str = "unknown"

    def __str__(self) -> str:
        return f"{self.name}@{self.revision}"


@dataclass(frozen=True)
class Found:
    """A file for the bundle: its path there, where it lies now, where it came from and under which licence."""

    path: str
    file: Path
    source: str
    licence: str


# The model folders that the shipped configurations name.
REPOS = {
    "llava-onevision-qwen2-0.5b-ov-hf": Repo("llava-hf/llava-onevision-qwen2-0.5b-ov-hf", licence="apache-2.0"),
    "q-sit-mini": Repo("zhangzicheng/q-sit-mini", licence="mit"),
    "Qwen3-VL-2B-Instruct": Repo("Qwen/Qwen3-VL-2B-Instruct", "89644892e4d85e24eaac8bacfd4f463576704203", "apache-2.0"),
    "Qwen2.5-VL-3B-Instruct": Repo(
        "Qwen/Qwen2.5-VL-3B-Instruct", "66285546d2b821cf421d4f5eb2576359d3770cd3", "qwen-research"
    ),
    "Qwen2.5-VL-7B-Instruct": Repo(
        "Qwen/Qwen2.5-VL-7B-Instruct", "cc594898137f460bfe9f0759e9844b3ce807cfb5", "apache-2.0"
    ),
    "Qwen3-VL-8B-Instruct": Repo("Qwen/Qwen3-VL-8B-Instruct", "0c351dd01ed87e9c1b53cbc748cba10e6187ff3b", "apache-2.0"),
    "llava-onevision-qwen2-7b-ov-hf": Repo(
        "llava-hf/llava-onevision-qwen2-7b-ov-hf", "0d50680527681998e456c7b78950205bedd8a068", "apache-2.0"
    ),
}
# Where pyiqa's get_url_from_name leads; the commit is that of pyiqa 0.1.16's time.
PYIQA_WEIGHTS = Repo("chaofengc/IQA-PyTorch-Weights", "0df2df423c65f6a64209309695f3845727431027", "cc-by-nc-sa-4.0")
PYIQA_CHECKPOINTS = ("checkpoints/ARNIQA.pth",)  # pyiqa loads this one through torch.hub, which keeps it elsewhere
TORCHVISION = "https://download.pytorch.org/models/"  # names hold the beginning of the SHA-256
CLIP = {  # addresses hold the SHA-256
    "clip/RN50.pt": "https://openaipublic.azureedge.net/clip/models/afeb0e10f9e5a86da6080e35cf09123aca3b358a0c3e3b6c78a7b63bc04b6762/RN50.pt",
    "clip/ViT-B-32.pt": "https://openaipublic.azureedge.net/clip/models/40d365715913c9da98579312b702a82c18be219cc2a73407c4526f58eba950af/ViT-B-32.pt",
}
CARRIED = (
    "*.safetensors",
    "*.json",
    "*.jinja",
    "*.txt",
    "*.model",
    "*.tiktoken",
    "*.md",
    "LICEN*",
    "NOTICE*",
)
LOCKS = {
    "transformers": "constraints.txt",
    "vllm": "constraints-gpu.txt",
}  # of an offline installation for an engine
REQUIREMENTS = f"{WHEELS}/requirements.txt"

OWN = "this project's own"
EMBEDDED_LICENCE = f"{OWN}, embedded/README.md names its photographs' licences"
FREE = {
    "apache-2.0",
    "mit",
    "bsd-2-clause",
    "bsd-3-clause",
    "cc0-1.0",
    "cc-by-4.0",
    OWN,
    EMBEDDED_LICENCE.lower(),
}
TERMS = {
    "cc-by-nc-sa-4.0": (
        "no commercial use, changes under the same licence",
        "https://creativecommons.org/licenses/by-nc-sa/4.0/",
    ),
    "qwen-research": (
        "research only; commercial use needs a licence of Alibaba Cloud's",
        "https://huggingface.co/Qwen/Qwen2.5-VL-3B-Instruct/blob/main/LICENSE",
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


def model_repo(folder: str, local: Path, repos: dict[str, Repo]) -> Repo | None:
    """The repository that a model folder is downloaded from; None where it lies in `local`. Raises FetchError."""
    if folder not in repos and local.is_dir():
        return None
    if repo := repos.get(folder) or REPOS.get(folder):
        return repo
    if local == EMBEDDED:
        raise FetchError(*about_missing_model(local))
    raise FetchError(
        f"model {folder}: expected the folder {local} or a known repository, found neither",
        f"pass --models DIR, or --repo {folder}=ORG/NAME@REVISION",
    )


def model_files(folder: str, local: Path, repo: Repo | None, downloads: Path) -> list[Found]:
    """A vision-language model's files, from the folder `local` or downloaded from `repo`. Remote code, other
    frameworks' weights and subfolders stay behind. Raises FetchError."""
    if repo:
        place, commit = _snapshot(repo, downloads)
        source, licence = f"https://huggingface.co/{repo.name}/tree/{commit}", repo.licence
    else:
        licence = EMBEDDED_LICENCE if folder == "embedded" else REPOS.get(folder, Repo("")).licence
        place, source = local, f"local folder {folder}"
    names = [n for n in sorted(os.listdir(place)) if (place / n).is_file() and _is_carried(n)]
    if not any(name.endswith(".safetensors") for name in names):
        raise FetchError(f"{place}: expected weights as *.safetensors, found none", "choose the safetensors edition")
    if "config.json" not in names:
        raise FetchError(f"{place}: expected config.json (a model's configuration), found none", "copy it again")
    return [Found(f"{folder}/{name}", place / name, source, licence) for name in names]


def _is_carried(name: str) -> bool:
    return SEGMENT.fullmatch(name) is not None and any(PurePosixPath(name).match(kind) for kind in CARRIED)


def _snapshot(repo: Repo, downloads: Path) -> tuple[Path, str]:
    """(the folder of a repository's files, its commit), downloaded by huggingface_hub, which resumes and compares
    each file with its published hash. Raises FetchError."""
    from huggingface_hub import HfApi, snapshot_download

    with _network_errors(str(repo)):
        commit = HfApi().model_info(repo.name, revision=repo.revision).sha
        folder = downloads / f"{repo.name.replace('/', '--')}@{commit}"
        snapshot_download(repo.name, revision=commit, local_dir=folder, allow_patterns=list(CARRIED))
    return folder, str(commit)


@contextmanager
def _network_errors(what: str) -> Iterator[None]:
    """What a download raises becomes FetchError."""
    # HTTPError is the base of its HTTP client's errors, whichever client huggingface_hub has
    from huggingface_hub.errors import HTTPError  # pyright: ignore[reportPrivateImportUsage]

    try:
        yield
    except UserError:
        raise
    except (OSError, HTTPError, ValueError, RuntimeError) as error:
        reason = one_line(" ".join(str(error).split())[:200]) or type(error).__name__
        raise FetchError(
            f"{what}: cannot be downloaded ({reason})", "what is there is kept: run the same command again"
        ) from error


def tool_weight(weight: str, local: Path | None, cache: Path | None, downloads: Path) -> list[Found]:
    """A weight of the tools' table: one file of torch's hub folder, or a snapshot of a Hugging Face cache ("hf:").

    What lies in the hub folder `local` or in the Hugging Face cache `cache` is taken from there. Raises FetchError.
    """
    if weight.startswith("hf:"):
        return _cached_repository(weight.removeprefix("hf:"), cache, downloads)
    path, name = f"{HUB}/{weight}", PurePosixPath(weight).name
    url, begins = _web_source(weight)
    licence = PYIQA_WEIGHTS.licence if url is None else "mit" if weight in CLIP else "bsd-3-clause"
    if local and (local / weight).is_file():
        _require_hash(local / weight, begins)
        return [Found(path, local / weight, f"local file {weight}", licence)]
    with _network_errors(url or str(PYIQA_WEIGHTS)):
        if url is None:
            from huggingface_hub import hf_hub_download

            repo = PYIQA_WEIGHTS
            file = Path(hf_hub_download(repo.name, name, revision=repo.revision, local_dir=downloads / "pyiqa"))
            return [Found(path, file, f"https://huggingface.co/{repo.name}/{name}", licence)]
        file = downloads / "urls" / name
        if not file.is_file():
            from torch.hub import download_url_to_file

            file.parent.mkdir(parents=True, exist_ok=True)
            download_url_to_file(url, str(file), hash_prefix=begins)
    return [Found(path, file, url, licence)]


def _web_source(weight: str) -> tuple[str | None, str]:
    """(address of a file of torch's hub folder on a web server, how its SHA-256 begins); None for pyiqa's own."""
    if weight.startswith("pyiqa/") or weight in PYIQA_CHECKPOINTS:
        return None, ""
    if weight in CLIP:
        return CLIP[weight], CLIP[weight].split("/")[-2]
    name = PurePosixPath(weight)
    return TORCHVISION + name.name, name.stem.rpartition("-")[2]


def _require_hash(file: Path, begins: str) -> None:
    if not (digest := file_hash(file)).startswith(begins):
        raise FetchError(
            f"{file}: expected a file whose SHA-256 begins with {begins}, got {digest}",
            "it is another: remove it",
        )


def _cached_repository(name: str, cache: Path | None, downloads: Path) -> list[Found]:
    """A repository as a Hugging Face cache lays it out, with files where it has links; `refs/main` names the commit."""
    inner = f"models--{name.replace('/', '--')}"
    if not cache or not (cache / inner / "refs" / "main").is_file():
        from huggingface_hub import snapshot_download

        cache = downloads / "huggingface"
        with _network_errors(name):
            snapshot_download(name, cache_dir=cache, allow_patterns=[*CARRIED, "*.bin"])
    commit = (cache / inner / "refs" / "main").read_text().strip()
    if not SEGMENT.fullmatch(commit):
        raise FetchError(f"{cache / inner}: expected refs/main to name a commit", "download it anew")
    folder = cache / inner / "snapshots" / commit
    names = sorted(file.name for file in folder.iterdir() if file.is_file())
    pickles = not any(name.endswith(".safetensors") for name in names)
    names = [name for name in names if _is_carried(name) or (pickles and name.endswith(".bin"))]
    files = [f"{inner}/refs/main", *(f"{inner}/snapshots/{commit}/{name}" for name in names)]
    source = f"https://huggingface.co/{name}/tree/{commit}"
    return [Found(f"{HUGGINGFACE}/{file}", cache / file, source, "unknown") for file in files]


def wheels(engine: str, folder: Path) -> Iterator[Found]:
    """Builds or downloads a wheel of every package of an engine's lock and of this project, and a list of them with
    their hashes. Raises FetchError."""
    rmtree(folder, ignore_errors=True)
    with tempfile.TemporaryDirectory() as place:  # pip leaves files in a source that it builds from
        source = copied_source(Path(place) / "source")
        command = [sys.executable, "-m", "pip", "wheel", "--disable-pip-version-check", "--no-deps"]
        command += ["--wheel-dir", str(folder), "--requirement", str(ROOT / LOCKS[engine]), str(source)]
        if status := subprocess.run(command, stdout=sys.stderr, check=False).returncode:
            raise FetchError(f"wheels: pip ended with status {status}", "its own message stands above")
    lines = []
    for wheel in sorted(folder.glob("*.whl")):
        name, version, *_ = wheel.name.split("-")
        lines.append(f"{name}=={version} --hash=sha256:{file_hash(wheel)}\n")
        yield Found(f"{WHEELS}/{wheel.name}", wheel, f"pip wheel {wheel.name}", "in the wheel")
    (folder / "requirements.txt").write_text("".join(lines), encoding="utf-8")
    yield Found(REQUIREMENTS, folder / "requirements.txt", "this script", OWN)


def copied_source(folder: Path) -> Path:
    """A copy of the checkout without what its wheel is not built of, in the new `folder`, which is returned."""
    names = (".*", "runs", "build", "*.egg-info", "__pycache__", "docs", "benchmarks")
    copytree(ROOT, folder, ignore=ignore_patterns(*names), symlinks=True)
    return folder


def restrictions(licences: Iterable[tuple[str, str]]) -> list[Notice]:
    """A notice for each licence that restricts the use of files, of (licence, what is under it)."""
    under: dict[str, list[str]] = {}
    for licence, of in licences:
        if licence.lower() not in FREE:
            under.setdefault(licence, []).append(of)
    notices = []
    for licence, names in under.items():
        otherwise = ("read it before use, it may restrict what you do", "see the model card")
        says, url = TERMS.get(licence.lower(), otherwise)
        of = one_line(", ".join(dict.fromkeys(names)))[:500]
        notices.append(Notice(licence=licence, of=of, says=says, url=url))
    return notices


def repo_option(text: str) -> tuple[str, Repo]:
    """A model folder and its repository, as --repo names them. Raises ValueError."""
    parts = re.fullmatch(r"([\w.-]+)=([\w.-]+/[\w.-]+?)(?:@([\w./-]+))?", text)
    if parts is None:
        raise ValueError(f"expected FOLDER=ORG/NAME@REVISION, got {text!r}")
    return parts[1], Repo(parts[2], parts[3] or "main")
