"""Options of the command line: tables of lines, the fields of `config.Request`, and the settings that they choose."""

import argparse
import math
import os
import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from agentic_iqa_local.cli.command import UsageError
from agentic_iqa_local.cli.console import tell
from agentic_iqa_local.config import ConfigError, Decisions, Options, Request
from agentic_iqa_local.files import FileError, about_missing_model, models_root, place_for

if TYPE_CHECKING:
    from agentic_iqa_local.batch.ray import Place, RayRunner
    from agentic_iqa_local.batch.runner import Runner
    from agentic_iqa_local.batch.work import Work
    from agentic_iqa_local.config import Settings

SET_UP = ("gpu", "cpu", "config", "engine", "model", "models")
HOW = ("pipeline", "mode", "fit", "max_replan_iterations")
HOW_SURE = tuple(Decisions.model_fields)
METAVARS = {
    "abstain_wider_than": "W", "at_least": "LEVEL", "background": "COLOUR", "choices": "ANSWER", "config": "NAME",
    "error_rate": "X", "fit": "FILE", "gpu": "N", "map_tiles": "N", "max_replan_iterations": "N",
    "model": "NAME", "models": "DIR", "most_reads": "N", "most_seconds": "S", "query": "TEXT", "target_width": "W",
}  # fmt: skip
WORK = """
--jobs N      pictures assessed at once, with --engine vllm or server in one batch (default: 1)
--timeout S   seconds for one picture, after which its row is a failure (default: 600)
"""
VERBOSE = "-v --verbose  log what happens (-vv: prompts and model output too)"
ANSWER = f"""
--json        JSON lines on stdout, on a terminal too
--explain     in plain sentences: the verdict, what is wrong and where, how sure, what decided
{VERBOSE}
"""
CLUSTER = """
--cluster ADDRESS     local: workers on this machine; HOST:PORT or auto: of a cluster that `ray start` made
--workers N           workers in all, each with a model
--gpus-per-worker G   GPUs of each worker, such as 1, 2 or 0.5 (default: 0, workers compute on CPUs)
"""
TRACK = "--track mlflow|trackio  note options and figures with this experiment tracker, in files on this disk"
SUFFIXES = {"out": (".jsonl", ".json"), "csv": (".csv",), "gallery": (".html", ".htm")}  # of files of answers
# An option → the one that it needs; and options of which one stands alone.
NEEDS = {
    "resume": "out", "retry_failed": "resume", "map_tiles": "map", "workers": "cluster",
    "cluster": "workers", "gpus_per_worker": "cluster",
}  # fmt: skip
APART = (("pictures", "manifest"), ("reference", "manifest"), ("gpu", "cluster"), ("map", "cluster"))


def count(text: str) -> int:
    """The type of an option that counts from 1 on."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1 on, got {text!r}")
    return int(text)


def positive(text: str) -> float:
    """The type of an option that is a number above 0."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"expected more than 0, got {text!r}")
    return number


KINDS: dict[str, Any] = {"N": count, "S": positive, "G": positive, "FILE": Path, "DIR": Path, "PATH": Path, "X": float}


def add(options: argparse._ActionsContainer, table: str) -> None:
    """Adds options, one a line: name, metavar, two blanks, help.

    By its metavar an option is a count (N), more than 0 (S, G), a number (X), a path (FILE, DIR, PATH), one of several
    words (A|B), a list (TOOL...), or required (DIR!); without one it is a switch, and with a short name beside its own
    a switch that counts. A name without dashes is an argument. A number that the help calls the default is that.
    """
    for line in filter(None, map(str.strip, table.splitlines())):
        names, about = re.split(r"\s{2,}", line, maxsplit=1)
        name, _, metavar = names.partition(" ")
        shape: dict[str, Any] = {"help": about}
        if default := re.search(r"\(default: ([\d.]+)\)", about):
            shape["default"] = default[1]
        if not metavar:
            options.add_argument(name, action="store_true", help=about)
        elif metavar.startswith("--"):
            options.add_argument(name, metavar, action="count", default=0, help=about)
        else:
            word = metavar.rstrip(".!")
            shape |= {"choices": word.split("|")} if "|" in word else {"type": KINDS.get(word), "metavar": word}
            shape |= {"required": True} if metavar.endswith("!") else {}
            options.add_argument(name, nargs="+" if metavar.endswith("...") else None, **shape)


def add_options(options: argparse._ActionsContainer, *names: str) -> None:
    """Adds fields of `config.Request` as options: max_replan_iterations as --max-replan-iterations. Their values
    stay texts until `checked` or `chosen_settings` validates them."""
    for name in names:
        field = Request.model_fields[name]
        kind = next((kind for kind in get_args(field.annotation) if kind is not NoneType), field.annotation)
        words = get_args(kind) if get_origin(kind) is Literal else ()
        shape: dict[str, Any] = {"metavar": "|".join(words) or METAVARS.get(name)}
        if kind is bool:
            shape = {"action": "store_true"}
        elif "list" in str(kind):
            shape["nargs"] = "+"
        options.add_argument(f"--{name.replace('_', '-')}", help=as_flags(field.description or ""), **shape)


def read(parser: argparse.ArgumentParser, argv: list[str] | None) -> argparse.Namespace:
    """The options in `argv` (default: the command line), with the values that they stand for, or one sentence and an
    exit. Pictures may stand before, between and behind options."""
    args = parser.parse_intermixed_args(argv)
    try:
        check_together(args)
        request = Request.of(_given(args, Request))
    except (ConfigError, UsageError) as error:
        parser.error(as_flags(error.message))
    vars(args).update({name: getattr(request, name) for name in _given(args, Request)})
    return args


def check_together(args: argparse.Namespace) -> None:
    """Raises UsageError for an option without the one that it needs, and for two that do not go together."""
    given = {name for name, value in vars(args).items() if value not in (None, False, [])}
    for option, needed in NEEDS.items():
        if option in given and needed not in given and hasattr(args, needed):
            raise UsageError(f"--{option.replace('_', '-')}: expected with --{needed}")
    for option, other in APART:
        if {option, other} <= given:
            named = args.pictures[0] if option == "pictures" else f"--{option}"
            raise UsageError(f"{named}: expected without --{other}")


def _given(args: argparse.Namespace, model: type[Options]) -> dict[str, Any]:
    """The options of a model that were typed; a command may give --map a value of its own."""
    values = {name: getattr(args, name, None) for name in model.model_fields.keys() - {"map"}}
    return {name: value for name, value in values.items() if value is not None and value is not False}


def as_flags(message: str) -> str:
    """`message` with options of several words, and the one that it begins with, as they are typed: "error_rate:
    expected with at_least" → "--error-rate: expected with --at-least"."""

    def flag(word: re.Match[str]) -> str:
        return f"--{word[0].replace('_', '-')}" if word[0] in Request.model_fields else word[0]

    return re.sub(r"^\w+(?=:)|(?<!-)\b[a-z]+_[a-z_]+\b", flag, message)


def output_file(option: str, file: Path, *suffixes: str) -> Path:
    """The file that `option` writes, where `file` is a link the one that it leads to. Raises UsageError for a name
    with another suffix, so that nothing of another kind is replaced, and for a place where nothing can be written."""
    folder, ends = file.absolute().parent, " or ".join(suffixes)
    try:
        place = place_for(file)
    except FileError as error:
        raise UsageError(f"{option} {file}: {error}", "choose a new file in a folder of yours") from error
    if place.suffix.lower() not in suffixes:
        raise UsageError(f"{option} {file}: expected a name with {ends}", f"name it {file.stem}{suffixes[0]}")
    if not folder.is_dir():
        remedy = f"make it first: mkdir -p {shlex.quote(str(folder))}"
        raise UsageError(f"{option} {file}: there is no folder {folder}", remedy)
    if not os.access(place if place.exists() else folder, os.W_OK):
        raise UsageError(f"{option} {file}: it cannot be written", "choose a file in a folder of yours")
    return place


def check_outputs(args: argparse.Namespace) -> None:
    """Gives the options for files of answers the places that they lead to. Raises UsageError, see `output_file`."""
    for option, suffixes in SUFFIXES.items():
        if file := getattr(args, option, None):
            setattr(args, option, output_file(f"--{option}", file, *suffixes))


def chosen_settings(args: argparse.Namespace, say: Callable[[str], None] = tell) -> "Settings":
    """The settings that --config, --model and the like name, as far as a command has them. With --gpu and
    neither of those two the largest model that is there is taken, and `say` is told which. Raises ConfigError."""
    from agentic_iqa_local.api import choose_settings

    options = _given(args, Options)
    if "gpu" in options and not options.keys() & {"config", "model"} and options.get("engine") != "server":
        from agentic_iqa_local.vlm_client.model_choice import choose

        choice = choose(models_root(options.get("models")))
        say(choice.said)
        if choice.folder:
            options |= {"model": choice.folder} | ({"config": choice.config} if choice.config else {})
    try:
        settings = choose_settings(**options)
    except ConfigError as error:
        of_an_option = error.message.partition(":")[0] in Options.model_fields  # not of a file
        raise ConfigError(as_flags(error.message) if of_an_option else error.message, error.remedy) from None
    if settings.models_dir:  # the command's other parts and its processes look there too
        os.environ["AGENTIC_IQA_MODELS"] = settings.models_dir
    return settings


def check_models(settings: "Settings", pipeline: str) -> None:
    """Raises UsageError for a model folder that is not there; one that a server has need not be."""
    for role in ("planner", "executor", "summarizer") if pipeline == "agent" else ("summarizer",):
        backend = settings.role(role).backend
        if not backend.startswith("server.") and not os.path.isdir(folder := settings.folder(backend)):
            raise UsageError(*about_missing_model(folder))


def place_of(args: argparse.Namespace) -> "Place | None":
    """Where the workers of a command line are; None without --cluster. Raises ClusterError where the address is none
    or does not answer."""
    if args.cluster is None:
        return None
    from agentic_iqa_local.batch.ray import Place, check_address

    check_address(args.cluster)
    return Place(args.cluster, args.workers, args.gpus_per_worker or 0.0)


@contextmanager
def extra(name: str) -> Iterator[None]:
    """What is imported here comes with the extra `serve`. Raises UsageError where the command `name` lacks it."""
    try:
        yield
    except ModuleNotFoundError as error:
        remedy = "pip install 'agentic_iqa_local[serve]'"
        raise UsageError(f"{name}: expected the package {error.name}", remedy) from error


def chosen_batch(
    work: "Work[Any, Any]", device: str, place: "Place | None", **window: Any
) -> "Runner[Any, Any] | RayRunner[Any, Any]":
    """What does the work: a process on this machine, or a cluster's workers."""
    from agentic_iqa_local.batch.ray import RayRunner
    from agentic_iqa_local.batch.runner import Runner

    return Runner(work, device, **window) if place is None else RayRunner(work, place, **window)
