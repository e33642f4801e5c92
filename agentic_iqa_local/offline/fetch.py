"""Finds what a configuration needs, on this machine, on the Hugging Face Hub or on a web server, and downloads what is
missing. Nothing else in this package reaches a network; the command bundle uses it, on a connected machine."""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from shutil import copytree, ignore_patterns, rmtree
from typing import NamedTuple

from agentic_iqa_local.config import ConfigError
from agentic_iqa_local.errors import one_line
from agentic_iqa_local.files import ROOT, file_hash, write_whole
from agentic_iqa_local.iqa_tools.weights import HUB, HUGGINGFACE
from agentic_iqa_local.offline.manifest import SEGMENT, WHEELS, BundleError, Notice


class Repo(NamedTuple):
    """A repository on the Hugging Face Hub; `licence` as its model card had it when this was written."""

    name: str
    revision: str = "main"
    licence: str = "unknown"

    def page(self, commit: str) -> str:
        """The address of its files."""
        return f"https://huggingface.co/{self.name}/tree/{commit}"


class Found(NamedTuple):
    """A file for the bundle: its path there, where it lies now, where it came from and under which licence."""

    path: str
    file: Path
    source: str
    licence: str


REPOS = {  # of the model folders that the shipped configurations name
    name.partition("/")[2]: Repo(name, revision, licence)
    for name, revision, licence in (
        ("llava-hf/llava-onevision-qwen2-0.5b-ov-hf", "main", "apache-2.0"),
        (
            "llava-hf/llava-onevision-qwen2-7b-ov-hf",
            "0d50680527681998e456c7b78950205bedd8a068",
            "apache-2.0",
        ),
        ("zhangzicheng/q-sit-mini", "main", "mit"),
        (
            "Qwen/Qwen2.5-VL-3B-Instruct",
            "66285546d2b821cf421d4f5eb2576359d3770cd3",
            "qwen-research",
        ),
        ("Qwen/Qwen2.5-VL-7B-Instruct", "cc594898137f460bfe9f0759e9844b3ce807cfb5", "apache-2.0"),
        ("Qwen/Qwen3-VL-2B-Instruct", "89644892e4d85e24eaac8bacfd4f463576704203", "apache-2.0"),
        ("Qwen/Qwen3-VL-8B-Instruct", "0c351dd01ed87e9c1b53cbc748cba10e6187ff3b", "apache-2.0"),
    )
}
# Where pyiqa's get_url_from_name leads; the commit is that of pyiqa 0.1.16's time.
PYIQA_WEIGHTS = Repo(
    "chaofengc/IQA-PyTorch-Weights", "0df2df423c65f6a64209309695f3845727431027", "cc-by-nc-sa-4.0"
)
PYIQA_CHECKPOINTS = (
    "checkpoints/ARNIQA.pth",
)  # pyiqa loads this one through torch.hub, which keeps it elsewhere
TORCHVISION = "https://download.pytorch.org/models/"  # names hold the beginning of the SHA-256
CLIP = "https://openaipublic.azureedge.net/clip/models/"  # the folder of each file is its SHA-256
CLIP_HASHES = {
    "clip/RN50.pt": "afeb0e10f9e5a86da6080e35cf09123aca3b358a0c3e3b6c78a7b63bc04b6762",
    "clip/ViT-B-32.pt": "40d365715913c9da98579312b702a82c18be219cc2a73407c4526f58eba950af",
}
# of a model; remote code and other frameworks' weights stay behind
CARRIED = [
    "*.safetensors",
    "*.json",
    "*.jinja",
    "*.txt",
    "*.model",
    "*.tiktoken",
    "*.md",
    "LICEN*",
    "NOTICE*",
]
LOCKS = {
    "transformers": "constraints.txt",
    "vllm": "constraints-gpu.txt",
}  # of an environment for an engine

OWN = "this project's own"
EMBEDDED_LICENCE = f"{OWN}, embedded/README.md names its photographs' licences"
FREE = {"apache-2.0", "mit", "bsd-3-clause", OWN, EMBEDDED_LICENCE}
TERMS = {  # licence → what it says, where it stands
    "cc-by-nc-sa-4.0": (
        "no commercial use, changes under the same licence",
        "https://creativecommons.org/licenses/by-nc-sa/4.0/",
    ),
    "qwen-research": (
        "research only",
        "https://huggingface.co/Qwen/Qwen2.5-VL-3B-Instruct/blob/main/LICENSE",
    ),
    "PolyForm-Noncommercial-1.0.0": (
        "no commercial use without permission",
        "https://polyformproject.org/licenses/noncommercial/1.0.0/",
    ),
    "LicenseRef-NVIDIA-Proprietary": (
        "NVIDIA's licence agreement",
        "https://docs.nvidia.com/cuda/eula/",
    ),
}
# (licence, what is under it) of programs
PYIQA = ("PolyForm-Noncommercial-1.0.0", "pyiqa, which runs the tools")
NVIDIA = ("LicenseRef-NVIDIA-Proprietary", "CUDA libraries that torch's wheels for Linux bring")


def model_repo(folder: str, local: Path, repos: dict[str, Repo]) -> Repo | None:
    """The repository that a model folder is downloaded from; None where it lies in `local`. Raises BundleError."""
    if folder not in repos and local.is_dir():
        return None
    if repo := repos.get(folder) or REPOS.get(folder):
        return repo
    wrong = f"expected the folder {local} or a known repository, found neither"
    raise BundleError(
        f"model {folder}: {wrong}", f"pass --models DIR, or --repo {folder}=ORG/NAME@REVISION"
    )


def model_files(folder: str, local: Path, repo: Repo | None, downloads: Path) -> list[Found]:
    """A vision-language model's files, from the folder `local` or downloaded from `repo`. Remote code, other
    frameworks' weights and subfolders stay behind. Raises BundleError."""
    if repo:
        from huggingface_hub import HfApi, snapshot_download

        with _network_errors(
            f"{repo.name}@{repo.revision}"
        ):  # what is there already is kept, hashes are compared
            commit = str(HfApi().model_info(repo.name, revision=repo.revision).sha)
            place = downloads / f"{repo.name.replace('/', '--')}@{commit}"
            snapshot_download(repo.name, revision=commit, local_dir=place, allow_patterns=CARRIED)
        source, licence = repo.page(commit), repo.licence
    else:
        place, source = local, f"local folder {folder}"
        licence = EMBEDDED_LICENCE if folder == "embedded" else REPOS.get(folder, Repo("")).licence
    names = [
        name for name in sorted(os.listdir(place)) if (place / name).is_file() and _is_carried(name)
    ]
    if "config.json" not in names or not any(name.endswith(".safetensors") for name in names):
        wrong = f"expected config.json and weights as *.safetensors, found {', '.join(names) or 'neither'}"
        raise BundleError(f"{place}: {wrong}", "choose the safetensors edition")
    return [Found(f"{folder}/{name}", place / name, source, licence) for name in names]


def _is_carried(name: str) -> bool:
    return SEGMENT.fullmatch(name) is not None and any(
        PurePosixPath(name).match(kind) for kind in CARRIED
    )


@contextmanager
def _network_errors(what: str) -> Iterator[None]:
    """What a download raises becomes BundleError."""
    # HTTPError is the base of its HTTP client's errors, whichever client huggingface_hub has
    from huggingface_hub.errors import HTTPError  # pyright: ignore[reportPrivateImportUsage]
    from huggingface_hub.utils.logging import set_verbosity_error

    set_verbosity_error()  # not a warning for each of its tries
    try:
        yield
    except (OSError, HTTPError, ValueError, RuntimeError) as error:
        reason = one_line(" ".join(str(error).split())[:200]) or type(error).__name__
        remedy = "what is there is kept: run the same command again"
        raise BundleError(f"{what}: cannot be downloaded ({reason})", remedy) from error


def tool_weight(weight: str, downloads: Path) -> list[Found]:
    """The files of one weight of the tools' table: a file of torch's hub folder, or "hf:ORG/NAME", a repository. Raises
    BundleError, also for a file that is not its publisher's."""
    if weight.startswith("hf:"):
        return _snapshot_files(weight.removeprefix("hf:"))
    path, name, begins, url, licence = (
        f"{HUB}/{weight}",
        PurePosixPath(weight).name,
        "",
        "",
        PYIQA_WEIGHTS.licence,
    )
    if weight in CLIP_HASHES:
        begins, licence = CLIP_HASHES[weight], "mit"
        url = f"{CLIP}{begins}/{name}"
    elif not weight.startswith("pyiqa/") and weight not in PYIQA_CHECKPOINTS:
        begins, url, licence = (
            PurePosixPath(name).stem.rpartition("-")[2],
            TORCHVISION + name,
            "bsd-3-clause",
        )
    file = downloads / "weights" / name
    with _network_errors(url or PYIQA_WEIGHTS.name):
        if not url:
            from huggingface_hub import hf_hub_download

            url = PYIQA_WEIGHTS.page(PYIQA_WEIGHTS.revision)
            hf_hub_download(
                PYIQA_WEIGHTS.name, name, revision=PYIQA_WEIGHTS.revision, local_dir=file.parent
            )
        elif not file.is_file():
            from torch.hub import download_url_to_file

            file.parent.mkdir(parents=True, exist_ok=True)
            download_url_to_file(url, str(file), hash_prefix=begins)
    return [Found(path, file, url, licence)]


def _snapshot_files(name: str) -> list[Found]:
    """A repository as the Hugging Face cache lays it out, with files where it has links; `refs/main` names the commit.
    What lies in the cache already ($HF_HUB_CACHE) is not downloaded."""
    from huggingface_hub import snapshot_download

    with _network_errors(name):
        place = Path(snapshot_download(name, allow_patterns=[*CARRIED, "*.bin"]))
    names = sorted(file.name for file in place.iterdir() if file.is_file())
    pickles = not any(name.endswith(".safetensors") for name in names)
    kept = [name for name in names if _is_carried(name) or (pickles and name.endswith(".bin"))]
    repository = place.parents[1]
    files, source = (
        [repository / "refs" / "main", *(place / name for name in kept)],
        Repo(name).page(place.name),
    )
    return [
        Found(f"{HUGGINGFACE}/{file.relative_to(repository.parent)}", file, source, "unknown")
        for file in files
    ]


def wheels(engine: str, folder: Path) -> Iterator[Found]:
    """Builds or downloads a wheel of every package of an engine's lock and of this project, and a list of them with
    their hashes. Raises BundleError."""
    rmtree(folder, ignore_errors=True)
    with tempfile.TemporaryDirectory() as place:  # pip leaves files in a source that it builds from
        source = copied_source(Path(place) / "source")
        command = [sys.executable, "-m", "pip", "wheel", "--disable-pip-version-check", "--no-deps"]
        command += [
            "--wheel-dir",
            str(folder),
            "--requirement",
            str(ROOT / LOCKS[engine]),
            str(source),
        ]
        if status := subprocess.run(command, stdout=sys.stderr, check=False).returncode:
            raise BundleError(
                f"wheels: pip ended with status {status}", "its own message stands above"
            )
    lines = []
    for wheel in sorted(folder.glob("*.whl")):
        name, version, *_ = wheel.name.split("-")
        lines.append(f"{name}=={version} --hash=sha256:{file_hash(wheel)}\n")
        yield Found(f"{WHEELS}/{wheel.name}", wheel, f"pip wheel {wheel.name}", "in the wheel")
    requirements = folder / "requirements.txt"
    write_whole(requirements, "".join(lines))
    yield Found(f"{WHEELS}/{requirements.name}", requirements, "this script", OWN)


def copied_source(folder: Path) -> Path:
    """A copy of the checkout without what its wheel is not built of, in the new `folder`, which is returned."""
    names = (".*", "runs", "build", "*.egg-info", "__pycache__", "docs", "benchmarks")
    copytree(ROOT, folder, ignore=ignore_patterns(*names), symlinks=True)
    return folder


def notices_of(
    sources: dict[str, Repo | None], weights: Iterable[str], tools: bool, wheels: str | None
) -> tuple[Notice, ...]:
    """A notice for each licence that restricts the use of what goes into a bundle."""
    licences = [(repo.licence, folder) for folder, repo in sources.items() if repo]
    licences += [
        (REPOS[folder].licence, folder)
        for folder in sources
        if not sources[folder] and folder in REPOS
    ]
    licences += [("unknown" if w.startswith("hf:") else PYIQA_WEIGHTS.licence, w) for w in weights]
    licences += [PYIQA] * (tools or bool(wheels)) + [NVIDIA] * bool(wheels)
    under: dict[str, dict[str, None]] = {}
    for licence, of in licences:
        if licence not in FREE:
            under.setdefault(licence, {})[of] = None
    unknown = "it may restrict what you do: read the model card", "no link known"
    told = (
        (licence, one_line(", ".join(of))[:500], *TERMS.get(licence, unknown))
        for licence, of in under.items()
    )
    return tuple(
        Notice(licence=licence, of=of, says=says, url=url) for licence, of, says, url in told
    )


def repo_option(text: str) -> tuple[str, Repo]:
    """A model folder and its repository, as --repo names them. Raises ConfigError."""
    parts = re.fullmatch(r"([\w.-]+)=([\w.-]+/[\w.-]+?)(?:@([\w./-]+))?", text)
    if parts is None:
        raise ConfigError(f"--repo: expected FOLDER=ORG/NAME@REVISION, got {text!r}")
    return parts[1], Repo(parts[2], parts[3] or "main")
