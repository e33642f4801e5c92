"""Where this package's files lie, and how a file that comes from elsewhere is read and written: a
regular file of a limited size, as bytes, JSON or YAML. A pipe, a device or a file larger than
memory is an error, which nobody waits for.
"""

import functools
import hashlib
import json
import os
import re
import secrets
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

import yaml
from pydantic_core import ErrorDetails, ValidationError, from_json

from agentic_iqa_local.errors import UserError, did_you_mean, one_line

try:
    from yaml import CSafeLoader as SafeLoader
except ImportError:  # a PyYAML that was built without libyaml
    from yaml import SafeLoader

if TYPE_CHECKING:
    from pydantic import BaseModel

Model = TypeVar("Model", bound="BaseModel")
PACKAGE = Path(__file__).resolve().parent
# configs/ and models/ lie beside the package in a checkout, and inside it where a wheel was
# installed.
ROOT = PACKAGE if (PACKAGE / "configs").is_dir() else PACKAGE.parent
CONFIGS = ROOT / "configs"
EMBEDDED = ROOT / "models" / "embedded"  # the small model that ships
PROGRAM = "agentic-iqa"

LARGEST = 4 * 2**20  # bytes of a JSON file
BEGINNING = 2**20  # bytes in which a file's mark stands
PAGE = re.compile(
    rb'\A<!DOCTYPE html>[^>]*>\s*<head>\s*<meta name="generator" content="agentic_iqa_local">'
)
PNG = re.compile(rb"\A\x89PNG\r\n\x1a\n.{,4000}tEXtSoftware\0agentic_iqa_local", re.DOTALL)
LARGEST_YAML = 2**18  # bytes: PyYAML takes seconds for more
DEEPEST_YAML = 100  # mappings and lists within one another
MOST_VALUES = 100_000  # of a YAML file, each counted as often as aliases (*name) repeat it
TEMPORARY = ".partial"  # the suffix of a file that is being written
_BRANCH = re.compile(r"constrained-\w+|literal\[.*\]")  # pydantic's names of a union's branches
LONGEST_MISTAKE = 300  # characters of a message that quotes keys


class FileError(UserError, ValueError):
    """A file that is not what was expected. The message lacks the file's name: "expected a regular
    file, got a pipe". Whoever catches it adds the name and what to do."""


def models_root(option: str | Path | None = None) -> Path:
    """The models folder: `option`, else $AGENTIC_IQA_MODELS, else models/ of the checkout, which a
    wheel has inside it."""
    return Path(os.path.abspath(option or os.environ.get("AGENTIC_IQA_MODELS") or ROOT / "models"))


def about_missing_model(folder: str | Path) -> tuple[str, str]:
    """What is wrong where a model's folder is not there, and what to do about it."""
    if Path(folder) == EMBEDDED:
        missing = "model embedded: its folder is missing, though it ships with the project"
        return missing, "get the checkout or the installation again"
    fetch = f"fetch it on a connected machine ({PROGRAM} bundle --config NAME)"
    say = "say where it lies: --model FOLDER, or --models DIR (or $AGENTIC_IQA_MODELS) for the folder above it"
    return f"model folder {folder}: there is none", f"{fetch}, or {say}"


def file_hash(place: Path) -> str:
    """A file's SHA-256; a process reads a file once and again only when its size or times have
    changed."""
    state = place.stat()
    return _hash_of(place, (state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns))


@functools.cache
def _hash_of(place: Path, state: tuple[int, ...]) -> str:
    with place.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def folder_hash(folder: Path) -> str:
    """SHA-256 over the names and contents of a model folder's weights and configuration."""
    digest = hashlib.sha256()
    kinds = {".safetensors", ".gguf", ".json", ".jinja", ".txt"}
    for file in sorted(file for file in folder.iterdir() if file.suffix in kinds):
        digest.update(file.name.encode())
        digest.update(bytes.fromhex(file_hash(file)))
    return digest.hexdigest()


def path_text(path: str | os.PathLike[str]) -> str:
    """A path as text that UTF-8 and JSON can hold: bytes that are not UTF-8 become "\\xNN"."""
    try:
        name = os.fsencode(path)
    except UnicodeEncodeError:  # no file has such a name
        return one_line(os.fspath(path))
    return name.decode("utf-8", "backslashreplace")


def path_from_text(text: str) -> str:
    """The path that `path_text` made the text of."""
    parts = re.split(rb"\\x([0-9a-f]{2})", text.encode())
    parts[1::2] = map(bytes.fromhex, map(bytes.decode, parts[1::2]))
    return os.fsdecode(b"".join(parts))


@contextmanager
def _usable(done: str) -> Iterator[None]:
    """What the system says of a file becomes a FileError."""
    try:
        yield
    except FileError:
        raise
    except (OSError, ValueError) as error:  # ValueError: a null byte in the name
        reason = getattr(error, "strerror", None) or error
        raise FileError(f"expected a file that can be {done}, got {reason}") from error


def _require_regular(path: str | Path) -> None:
    kind = stat.S_IFMT(os.stat(path).st_mode)
    if kind != stat.S_IFREG:
        kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
        raise FileError(f"expected a regular file, got {kinds.get(kind, 'a device')}")


def open_regular(path: str | Path) -> int:
    """A descriptor of the regular file at `path`, open for reading; the caller closes it. Links are
    followed. Raises FileError for anything else, without opening or waiting for it."""
    with _usable("read"):
        _require_regular(path)
        return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)


def place_for(path: Path) -> Path:
    """Where to write the file `path`, which need not exist: the end of the link, if it is one.

    Raises FileError for a link that leads to no file, and for anything but a regular file. Nothing
    is opened.
    """
    with _usable("written"):
        if not os.path.lexists(path):
            return path
        if not os.path.exists(path):
            raise FileError("expected a file, got a link that leads nowhere")
        _require_regular(path)
        return Path(os.path.realpath(path)) if path.is_symlink() else path


def read_bytes(path: str | Path, largest: int = LARGEST) -> bytes:
    """The content of a regular file of at most `largest` bytes. Raises FileError. The size that the
    file system reports is not trusted: in /proc it is 0 for files that never end."""
    with open(open_regular(path), "rb") as file, _usable("read"):
        content = file.read(largest + 1)
    if len(content) > largest:
        raise FileError(f"expected at most {largest} bytes, got more")
    return content


def read_json(path: str | Path, largest: int = LARGEST, *, finite: bool = True) -> dict[str, Any]:
    """The JSON object in a file of at most `largest` bytes; see `parsed_object`. Raises
    FileError."""
    return parsed_object(read_bytes(path, largest), finite=finite)


def parsed_object(content: bytes, *, finite: bool = True) -> dict[str, Any]:
    """The JSON object in a text; with infinite numbers only if not all are to be `finite`. Raises
    FileError."""
    try:
        value = from_json(content, allow_inf_nan=not finite)
        if finite:
            json.dumps(value, allow_nan=False)  # 1e999 is read as infinite
    except ValueError as error:
        if "recursion limit" in str(error):
            raise FileError("expected JSON, got it nested too deeply") from None
        raise FileError(f"expected JSON, got something else ({error})") from error
    if not isinstance(value, dict):
        raise FileError(f"expected a JSON object, got {type(value).__name__}")
    return value


def walk(value: Any) -> Iterator[dict | list]:
    """Each object and list in parsed JSON, without recursion."""
    waiting = [value]
    while waiting:
        part = waiting.pop()
        if isinstance(part, (dict, list)):
            yield part
            waiting += part.values() if isinstance(part, dict) else part


class WriteError(UserError, ValueError):
    """What the disk did not take; what was there before is whole."""


@contextmanager
def replacing(path: Path, *, sync: bool = False) -> Iterator[BinaryIO]:
    """A new file to write to, which takes the place of `path` once the block has ended without an
    error.

    Every file that this package replaces is written here. A killed process leaves either the old or
    the new content, with `sync` a power failure does too. Until its end the file has a name of its
    own, TEMPORARY, in the same folder: nothing that lies there is written to, and after an error or
    Ctrl-C it is gone. A link at `path` is replaced, never followed: where a user names a link,
    `place_for` gives the file that it leads to. Raises WriteError.
    """
    temporary = path.with_name(f"{path.name[:40]}.{secrets.token_hex(8)}{TEMPORARY}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        with open(os.open(temporary, flags, 0o666), "wb") as file:
            yield file
            file.flush()
            if sync:
                os.fsync(file.fileno())
        os.replace(temporary, path)
        if sync:
            sync_folder(path)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink()
        if not isinstance(error, OSError):
            raise
        reason = f"{path}: could not be written ({error.strerror})"
        raise WriteError(reason, "make room there or choose another place") from error


def is_replaceable(place: Path, mark: re.Pattern[bytes]) -> bool:
    """Whether nobody misses the file at `place`: there is none, it is empty, or its beginning, with
    its end where it is long, bears the `mark` of what this program writes there. Raises
    FileError."""
    if not os.path.exists(place):
        return True
    with open(open_regular(place), "rb") as file, _usable("read"):
        beginning = file.read(BEGINNING)
        if file.seek(0, os.SEEK_END) > BEGINNING:
            file.seek(max(BEGINNING, file.tell() - BEGINNING))
            beginning += file.read()
    return not beginning or mark.search(beginning) is not None


def remove_temporaries(folder: Path) -> None:
    """Removes what a killed process left in `folder` of files that it was writing there."""
    name = re.compile(rf".+\.[0-9a-f]{{16}}{re.escape(TEMPORARY)}")
    for file in folder.iterdir():
        if name.fullmatch(file.name):
            file.unlink()


def write_whole(
    path: Path,
    content: str | bytes | Iterable[bytes],
    *,
    sync: bool = False,
    encoding: str = "utf-8",
) -> None:
    """Replaces a file by this content, see `replacing`. A text ends with exactly one line end.
    Raises WriteError."""
    if isinstance(content, str):
        content = (content.rstrip("\n") + "\n").encode(encoding)
    with replacing(path, sync=sync) as file:
        file.writelines([content] if isinstance(content, bytes) else content)


def sync_folder(path: Path) -> None:
    """Puts the name of a new file on disk, where the file system can."""
    folder = os.open(path.absolute().parent, os.O_RDONLY)
    with suppress(OSError):
        os.fsync(folder)
    os.close(folder)


class _Loader(SafeLoader):  # pyright: ignore[reportGeneralTypeIssues]
    """Plain values only, by libyaml where PyYAML has it, which is ten times as fast. A key that is
    given twice, of which YAML would take the last, is an error, and so is a merge (<<): merges of
    merges grow without end."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        twice = [name for name, times in names.items() if times > 1]
        if twice:
            raise self._mistake(f"expected each key once, got {twice[0]}", node)
        if any(key.tag == "tag:yaml.org,2002:merge" for key, _ in node.value):
            raise self._mistake("expected each value written out, got a merge (<<)", node)
        return super().construct_mapping(node, deep)

    @staticmethod
    def _mistake(problem: str, node: yaml.Node) -> yaml.MarkedYAMLError:
        return yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)


def _check_depth(text: str) -> None:
    """Raises FileError for YAML that is nested so deeply that libyaml's loader would crash."""
    depth = 0
    for event in yaml.parse(text, _Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > DEEPEST_YAML:
            raise FileError("expected YAML, got it nested too deeply")


def read_yaml(path: str | Path) -> Any:
    """The plain value in a YAML file, the only kind of YAML that is read here. Raises FileError,
    also for a file beyond `LARGEST_YAML`, and for one whose aliases make it hold more than
    `MOST_VALUES`."""
    content = read_bytes(path, LARGEST_YAML)
    try:
        text = content.decode("utf-8")
        _check_depth(text)
        value = yaml.load(text, _Loader)  # nosec B506 # a SafeLoader
    except FileError:
        raise
    except Exception as error:  # PyYAML raises nearly any type: KeyError, AttributeError ...
        # it quotes the line, in which an address may hold a password
        quoted = re.sub("://[^/\\s]*@", "://", " ".join(str(error).split()))
        raise FileError(f"not valid YAML ({quoted})") from None
    values = 0
    for part in walk(value):
        values += 1 + len(part)
        if values > MOST_VALUES:
            expected = f"expected at most {MOST_VALUES} values, its aliases make it more"
            raise FileError(f"not valid YAML ({expected})")
    return value


def read_record(path: Path, kind: type[Model], read: Callable[[Path], Any] = read_yaml) -> Model:
    """What a file that ships with this package holds, checked. Raises FileError, which names the
    file."""
    try:
        return kind.model_validate(read(path))
    except (FileError, ValidationError) as error:
        why = reason(error)
        raise FileError(f"{path}: {why}", "get the checkout or the installation again") from None


def first_mistake(error: ValidationError, quoted: bool = False) -> str:
    """The first mistake that pydantic found, as a sentence: "fusion.eta: expected more than 0".

    Args:
        error: What a model's validation raised.
        quoted: Whether a wrong text or number is quoted ("..., got -1"). The values of a file are not: aliases
            make them endless, and an address may hold a password.
    """
    first, *others = error.errors(include_url=False)
    where = _where(first)
    place = ".".join(map(str, where[:1] if quoted else where))  # of an option its name alone
    text = _expected(first).removeprefix(f"{place}: ")
    for other in others:
        if _where(other) == where:  # another branch of a union
            text += _expected(other).replace("expected", " or", 1)
    if quoted and ", got " not in text:
        text += _got(first)
    return (f"{place}: {text}" if place else text)[:LONGEST_MISTAKE]


def _where(mistake: ErrorDetails) -> tuple[int | str, ...]:
    """The keys that lead to a mistake, without the branch of a union."""
    return tuple(part for part in mistake["loc"] if not _BRANCH.fullmatch(str(part)))


def reason(error: Exception) -> str:
    """What is wrong, as a sentence: the first mistake that pydantic found, or what an error of ours
    says."""
    if isinstance(error, ValidationError):
        return first_mistake(error)
    return getattr(error, "message", None) or str(error)


def _expected(mistake: ErrorDetails) -> str:
    """What was expected in the place of a mistake."""
    match mistake["type"]:
        case "extra_forbidden":
            return "unknown key"
        case "missing":
            return "expected a value, got none"
        case "string_unicode":
            return "expected a text in UTF-8"
        case "string_pattern_mismatch":
            return "expected a text that is not blank"
        case "literal_error":
            expected = mistake.get("ctx", {})["expected"]
            return f"expected {expected}".replace("'", "")
    message = mistake["msg"].removeprefix("Value error, ")
    message = re.sub(r"^(Input|String|List|Tuple) should (be|have)", "expected", message)
    return re.split(", unable to | or instance of ", message)[0]  # what only a programmer knows


def _got(mistake: ErrorDetails) -> str:
    """What was given in the place of a mistake, and of a wrong word the nearest right one."""
    given = mistake["input"]
    if not isinstance(given, (str, int, float)):
        return f", got {type(given).__name__}"
    near = ""
    if mistake["type"] == "literal_error":
        words = re.findall("'(.*?)'", mistake.get("ctx", {})["expected"])
        near = did_you_mean(str(given)[:80], words)
    return f", got {given!r:.80}{near}"
