"""Downloads models' and tools' files from the Hugging Face Hub and from web servers. The only module that
downloads; `agentic_iqa_local bundle` uses it, on a connected machine.

The Hub and the web servers are not trusted: what they send is named, counted and compared before it is taken.
"""

import functools
import http.client
import logging
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from agentic_iqa_local.errors import UserError
from agentic_iqa_local.offline.manifest import SEGMENT, amount
from agentic_iqa_local.text import one_line

if TYPE_CHECKING:
    from huggingface_hub.hf_api import ModelInfo, RepoSibling

T = TypeVar("T")
logger = logging.getLogger(__name__)

TRIES = 5
COMMIT = re.compile("[0-9a-f]{40}")
MOST_FILES = 10_000  # of a repository
LARGEST_MODEL = 2 << 40  # bytes of all files that are taken of a repository
LARGEST_WEIGHT = 4 << 30  # bytes of a tool's weight from a web server; the largest known has 0.6 GB


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
class Wanted:
    """A file for the bundle. `file` is where it lies, or will once `fetch` has run; `sha256` how its hash
    must begin."""

    path: str
    file: Path
    source: str
    licence: str
    fetch: Callable[[], None] | None = None
    sha256: str = ""


def short(text: str) -> str:
    """The beginning of a text from elsewhere, in one line."""
    return one_line(" ".join(text.split())[:200])


def retried(what: str, action: Callable[[], T]) -> T:
    """The action's result. After an error of the network it is tried again, up to TRIES times with longer and
    longer pauses. Raises FetchError."""
    # HTTPError is the base of its HTTP client's errors, whichever client it has.
    from huggingface_hub.errors import (
        HTTPError,  # pyright: ignore[reportPrivateImportUsage]  # no other name leads to it
        XetDownloadError,
    )

    for attempt in range(1, TRIES + 1):
        try:
            return action()
        except (OSError, http.client.HTTPException, HTTPError, XetDownloadError) as error:
            status = getattr(error, "code", None) or getattr(
                getattr(error, "response", None), "status_code", None
            )
            reason = short(str(error)) or type(error).__name__
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
                f"{request.full_url}: expected to be sent on by {request.type}, got {url[:200]}",
                "nothing was taken from there",
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
                    f"{url}: expected at most {amount(LARGEST_WEIGHT)}, got more",
                    "this is not the file that was asked for",
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
    commit = _commit(repo, info)
    siblings = info.siblings or []
    if len(siblings) > MOST_FILES:
        raise FetchError(f"{repo}: expected at most {MOST_FILES} files, got {len(siblings)}")
    named = [file for file in siblings if SEGMENT.fullmatch(str(file.rfilename))]
    hashes = {file.rfilename: _published(repo, file) for file in named}
    if (size := sum(file.size or 0 for file in named)) > LARGEST_MODEL:
        raise FetchError(f"{repo}: expected at most {amount(LARGEST_MODEL)}, got {amount(size)}")
    return Listing(repo.name, commit, _licence(repo, info), hashes)


def _commit(repo: Repo, info: "ModelInfo") -> str:
    """The commit that the Hub's answer is about. Raises FetchError for another than was asked for."""
    if not isinstance(info.sha, str) or not COMMIT.fullmatch(info.sha):
        raise FetchError(
            f"{repo}: expected the Hub to name a commit of 40 hexadecimal digits, got {str(info.sha)[:80]!r}"
        )
    if COMMIT.fullmatch(repo.revision) and info.sha != repo.revision:
        raise FetchError(f"{repo}: expected the Hub to answer about this commit, got {info.sha}")
    return info.sha


def _licence(repo: Repo, info: "ModelInfo") -> str:
    """The licence of the model card, in one line."""
    card = info.card_data
    licence = (card and (card.license_name or card.license)) or repo.licence
    return short(", ".join(map(str, licence)) if isinstance(licence, list) else str(licence))


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


def from_hub(listed: Listing, name: str, path: str, downloads: Path) -> Wanted:
    """One file of a repository, downloaded by huggingface_hub, which resumes."""
    folder = snapshot_folder(listed, downloads)

    def fetch() -> None:
        from huggingface_hub import hf_hub_download

        retried(
            f"{listed.repo}: {name}",
            lambda: hf_hub_download(listed.repo, name, revision=listed.commit, local_dir=folder),
        )

    source = f"https://huggingface.co/{listed.repo}/resolve/{listed.commit}/{name}"
    return Wanted(path, folder / name, source, listed.licence, fetch, listed.files[name])


def snapshot_folder(listed: Listing, downloads: Path) -> Path:
    """Where the files of a repository are downloaded to."""
    return downloads / f"{listed.repo.replace('/', '--')}@{listed.commit}"
