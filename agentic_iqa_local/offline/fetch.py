"""Finds what a configuration needs, on this machine, on the Hugging Face Hub or on a web server,
and puts it into a bundle's folder. Nothing else in this package downloads; the command bundle uses
it, on a connected machine."""

import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel

from agentic_iqa_local.errors import one_line
from agentic_iqa_local.files import read_record
from agentic_iqa_local.iqa_tools.weights import HUB, HUGGINGFACE, BundleError

WEIGHTS = (".safetensors", ".gguf")
HUB_PAGE = "https://huggingface.co"
PYIQA = ("PolyForm-Noncommercial-1.0.0", "pyiqa, which runs the tools")  # licence, what is under it


class Quantised(BaseModel):
    """GGUF files of a repository on the Hugging Face Hub."""

    name: str
    files: list[str]
    revision: str = "main"


class Repo(BaseModel):
    """A repository on the Hugging Face Hub; `licence` as its model card had it when this was
    written. With `gguf` its weights are taken from there."""

    name: str = ""
    revision: str = "main"
    licence: str = "unknown"
    gguf: Quantised | None = None


class Part(NamedTuple):
    """A file or folder of a bundle: its path there, where it came from and under which licence."""

    path: str
    source: str
    licence: str


class Sources(BaseModel):
    """sources.yaml, which says what each of these is."""

    models: dict[str, Repo]
    carried: list[str]
    left_out: list[str]
    pyiqa: Repo
    pyiqa_checkpoints: list[str]
    torchvision: str
    clip: str
    clip_hashes: dict[str, str]
    free: list[str]
    terms: dict[str, str]

    def model(self, folder: str) -> Repo:
        """What is known of a model folder; of a user's own nothing."""
        return self.models.get(folder, Repo())


SOURCES = read_record(Path(__file__).with_name("sources.yaml"), Sources)


def check_model(folder: str, local: Path) -> None:
    """Raises BundleError for a model folder that neither lies in `local` nor can be downloaded."""
    if not local.is_dir() and not SOURCES.model(folder).name:
        expected = f"expected the folder {local} or a repository in sources.yaml"
        remedy = f"pass --models DIR, or download it: hf download ORG/NAME --local-dir {local}"
        raise BundleError(f"model {folder}: {expected}, found neither", remedy)


def fetch_model(folder: str, local: Path, bundle: Path) -> Part:
    """Puts a vision-language model's files into a bundle, from the folder `local` or, if there is
    none, downloaded. Raises BundleError."""
    place, repo = bundle / folder, SOURCES.model(folder)
    if local.is_dir():
        source = f"local folder {folder}"
        _copy(local, place, "*.gguf")
    else:
        source = _download_model(repo, place)
    names = sorted(path.name for path in place.iterdir())
    if "config.json" not in names or not any(name.endswith(WEIGHTS) for name in names):
        found = ", ".join(names) or "neither"
        expected = "expected config.json and weights as *.safetensors or *.gguf"
        raise BundleError(f"{folder}: {expected}, found {found}", "choose another edition")
    return Part(folder, source, repo.licence)


def _download_model(repo: Repo, place: Path) -> str:
    """Downloads a model's files, of one repository or of two. The commits' addresses."""
    if repo.gguf is None:
        return _download(repo, place, SOURCES.carried)
    small_files = _download(repo, place, SOURCES.carried, "*.safetensors", "*.index.json")
    weights = _download(repo.gguf, place, repo.gguf.files)
    return f"{weights}, other files {small_files}"


def _download(repo: Repo | Quantised, place: Path, carried: list[str], *left_out: str) -> str:
    """Downloads a repository's files; what is there already is kept if its hash is right. The
    commit's address."""
    from huggingface_hub import HfApi, snapshot_download

    with _network_errors(f"{repo.name}@{repo.revision}"):
        commit = str(HfApi().model_info(repo.name, revision=repo.revision).sha)
        snapshot_download(
            repo.name,
            revision=commit,
            local_dir=place,
            allow_patterns=carried,
            ignore_patterns=[*SOURCES.left_out, *left_out],
        )
    return f"{HUB_PAGE}/{repo.name}/tree/{commit}"


def _copy(folder: Path, place: Path, *more: str) -> None:
    """Copies the files that a bundle carries, and those of the patterns `more`."""
    from huggingface_hub.utils import filter_repo_objects

    names = [path.name for path in folder.iterdir() if path.is_file()]
    wanted = [*SOURCES.carried, *more]
    place.mkdir(parents=True, exist_ok=True)
    for name in filter_repo_objects(names, allow_patterns=wanted, ignore_patterns=SOURCES.left_out):
        shutil.copyfile(folder / name, place / name)


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


def weight_licence(weight: str) -> str:
    """The licence of a weight of the tools' table."""
    if weight.startswith("hf:"):
        return "unknown"
    if weight in SOURCES.clip_hashes:
        return "mit"
    return SOURCES.pyiqa.licence if _is_pyiqas(weight) else "bsd-3-clause"


def _is_pyiqas(weight: str) -> bool:
    return weight.startswith("pyiqa/") or weight in SOURCES.pyiqa_checkpoints


def fetch_weight(weight: str, bundle: Path) -> Part:
    """Puts one weight of the tools' table into a bundle: a file of torch's hub folder, or the
    repository "hf:ORG/NAME". Raises BundleError, also for a file that is not its publisher's."""
    licence = weight_licence(weight)
    if weight.startswith("hf:"):
        return Part(*_fetch_snapshot(weight.removeprefix("hf:"), bundle), licence)
    path = f"{HUB}/{weight}"
    file = bundle / path
    file.parent.mkdir(parents=True, exist_ok=True)
    if _is_pyiqas(weight):
        source = _download_pyiqas(file)
    elif weight in SOURCES.clip_hashes:
        sha256 = SOURCES.clip_hashes[weight]
        source = f"{SOURCES.clip}{sha256}/{file.name}"
        _download_file(source, file, sha256)
    else:
        source = SOURCES.torchvision + file.name
        _download_file(source, file, file.stem.rpartition("-")[2])
    return Part(path, source, licence)


def _download_pyiqas(file: Path) -> str:
    from huggingface_hub import hf_hub_download

    name, revision = SOURCES.pyiqa.name, SOURCES.pyiqa.revision
    with _network_errors(name):
        hf_hub_download(name, file.name, revision=revision, local_dir=file.parent)
    return f"{HUB_PAGE}/{name}/tree/{revision}"


def _download_file(url: str, file: Path, hash_prefix: str) -> None:
    from torch.hub import download_url_to_file

    if not file.is_file():
        with _network_errors(url):
            download_url_to_file(url, str(file), hash_prefix=hash_prefix)


def _fetch_snapshot(name: str, bundle: Path) -> tuple[str, str]:
    """Puts a repository into a bundle as the Hugging Face cache lays it out, with files in place of
    links; `refs/main` names the commit. What lies in the cache already ($HF_HUB_CACHE) is not
    downloaded. Its path in the bundle and the commit's address."""
    from huggingface_hub import snapshot_download

    with _network_errors(name):
        snapshot = Path(snapshot_download(name, allow_patterns=[*SOURCES.carried, "*.bin"]))
    repository = snapshot.parents[1]
    path = f"{HUGGINGFACE}/{repository.name}"
    pickles = [] if list(snapshot.glob("*.safetensors")) else ["*.bin"]
    _copy(snapshot, bundle / path / "snapshots" / snapshot.name, *pickles)
    _copy(repository / "refs", bundle / path / "refs", "main")
    return path, f"{HUB_PAGE}/{name}/tree/{snapshot.name}"


def restrictions(licences: Iterable[tuple[str, str]]) -> list[str]:
    """A sentence for each licence that restricts the use of what goes into a bundle.

    Args:
        licences: Pairs of a licence and what is under it.
    """
    under: dict[str, list[str]] = {}
    for licence, what in licences:
        if licence not in SOURCES.free:
            under.setdefault(licence, []).append(what)
    return [
        one_line(f"{', '.join(names)}: {licence}, {SOURCES.terms[licence]}")
        for licence, names in under.items()
    ]
