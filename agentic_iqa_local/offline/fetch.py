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

HUB_PAGE = "https://huggingface.co"


class Repo(BaseModel):
    """A repository on the Hugging Face Hub; `licence` as its model card had it when this was
    written."""

    name: str
    revision: str = "main"
    licence: str = "unknown"


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
    embedded: str
    free: list[str]
    terms: dict[str, str]


SOURCES = read_record(Path(__file__).with_name("sources.yaml"), Sources)
PYIQA = ("PolyForm-Noncommercial-1.0.0", "pyiqa, which runs the tools")  # licence, what is under it


def model_repo(folder: str, local: Path) -> Repo | None:
    """The repository that a model folder is downloaded from; None if it lies in `local`. Raises
    BundleError."""
    if local.is_dir():
        return None
    if folder not in SOURCES.models:
        expected = f"expected the folder {local} or a repository in sources.yaml"
        remedy = f"pass --models DIR, or download it: hf download ORG/NAME --local-dir {local}"
        raise BundleError(f"model {folder}: {expected}, found neither", remedy)
    return SOURCES.models[folder]


def model_licence(folder: str) -> str:
    """The licence of a model folder's files, "unknown" for one of the user's own."""
    if folder == "embedded":
        return SOURCES.embedded
    return SOURCES.models[folder].licence if folder in SOURCES.models else "unknown"


def fetch_model(folder: str, local: Path, repo: Repo | None, bundle: Path) -> Part:
    """Puts a vision-language model's files into a bundle, from the folder `local` or downloaded
    from `repo`. Raises BundleError."""
    place = bundle / folder
    if repo:
        source = _download_model(repo, place)
    else:
        source = f"local folder {folder}"
        names = [path.name for path in local.iterdir() if path.is_file()]
        _copy(local, _carried(names), place)
    names = sorted(path.name for path in place.iterdir())
    if "config.json" not in names or not any(name.endswith(".safetensors") for name in names):
        found = ", ".join(names) or "neither"
        wrong = f"{folder}: expected config.json and weights as *.safetensors, found {found}"
        raise BundleError(wrong, "choose the safetensors edition")
    return Part(folder, source, model_licence(folder))


def _download_model(repo: Repo, place: Path) -> str:
    """Downloads a repository's files; what is there already is kept if its hash is right. The
    commit's address."""
    from huggingface_hub import HfApi, snapshot_download

    with _network_errors(f"{repo.name}@{repo.revision}"):
        commit = str(HfApi().model_info(repo.name, revision=repo.revision).sha)
        snapshot_download(
            repo.name,
            revision=commit,
            local_dir=place,
            allow_patterns=SOURCES.carried,
            ignore_patterns=SOURCES.left_out,
        )
    return f"{HUB_PAGE}/{repo.name}/tree/{commit}"


def _carried(names: Iterable[str], *more: str) -> list[str]:
    from huggingface_hub.utils import filter_repo_objects

    taken = [*SOURCES.carried, *more]
    kept = filter_repo_objects(names, allow_patterns=taken, ignore_patterns=SOURCES.left_out)
    return list(kept)


def _copy(folder: Path, names: Iterable[str], place: Path) -> None:
    place.mkdir(parents=True, exist_ok=True)
    for name in names:
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
    if weight.startswith("hf:"):
        return _fetch_snapshot(weight.removeprefix("hf:"), bundle)
    path = f"{HUB}/{weight}"
    file = bundle / path
    file.parent.mkdir(parents=True, exist_ok=True)
    if _is_pyiqas(weight):
        source = _download_pyiqas(file)
    elif weight in SOURCES.clip_hashes:
        source = f"{SOURCES.clip}{SOURCES.clip_hashes[weight]}/{file.name}"
        _download_file(source, file, SOURCES.clip_hashes[weight])
    else:
        source = SOURCES.torchvision + file.name
        _download_file(source, file, file.stem.rpartition("-")[2])
    return Part(path, source, weight_licence(weight))


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


def _fetch_snapshot(name: str, bundle: Path) -> Part:
    """Puts a repository into a bundle as the Hugging Face cache lays it out, with files in place of
    links; `refs/main` names the commit. What lies in the cache already ($HF_HUB_CACHE) is not
    downloaded."""
    from huggingface_hub import snapshot_download

    with _network_errors(name):
        snapshot = Path(snapshot_download(name, allow_patterns=[*SOURCES.carried, "*.bin"]))
    names = sorted(path.name for path in snapshot.iterdir() if path.is_file())
    has_safetensors = any(name.endswith(".safetensors") for name in names)
    repository = snapshot.parents[1]
    path = f"{HUGGINGFACE}/{repository.name}"
    kept = _carried(names) if has_safetensors else _carried(names, "*.bin")
    _copy(snapshot, kept, bundle / path / "snapshots" / snapshot.name)
    _copy(repository / "refs", ["main"], bundle / path / "refs")
    return Part(path, f"{HUB_PAGE}/{name}/tree/{snapshot.name}", "unknown")


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
