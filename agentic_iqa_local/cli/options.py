"""Options of the command line: tables of lines, the fields of `config.Request`, and the settings that they choose."""

import argparse
import os
import re
from collections.abc import Callable
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from agentic_iqa_local.cli.command import UsageError
from agentic_iqa_local.cli.console import tell
from agentic_iqa_local.config import ConfigError, Decisions, Options, Request

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
    "error_rate": "X", "fit": "FILE", "gpu": "N", "map_seconds": "S", "map_tiles": "N", "max_replan_iterations": "N",
    "model": "NAME", "models": "DIR", "most_reads": "N", "most_seconds": "S", "query": "TEXT", "target_width": "W",
}  # fmt: skip
WORK = """
--jobs N      pictures assessed at once, with --engine vllm or server in one batch (default: 1)
--timeout S   seconds for one picture, after which its row is a failure (default: 600)
"""
ANSWER = """
--json        JSON lines on stdout, on a terminal too
--explain     in plain sentences: the verdict, what is wrong and where, how sure, what decided
"""
CLUSTER = """
--cluster ADDRESS     local: workers on this machine; HOST:PORT or auto: of a cluster that `ray start` made
--workers N           workers in all, each with a model
--gpus-per-worker G   GPUs of each worker, such as 1, 2 or 0.5 (default: 0, workers compute on CPUs)
"""
TRACK = "--track mlflow|trackio  note options and figures with this experiment tracker, in files on this disk"
MOST = 1024  # of what an option counts


def add(options: argparse._ActionsContainer, table: str) -> None:
    """Adds options, one a line: name, metavar, two blanks, help. By its metavar an option is a count (N), more than
    0 (S, G), a path (FILE, DIR, PATH), one of several words (A|B) or a list (TOOL...); without one it is a switch. A
    number that its help calls the default is that."""
    kinds: dict[str, Any] = {"N": count, "S": positive, "G": positive, "FILE": Path, "DIR": Path, "PATH": Path}
    for line in filter(None, table.splitlines()):
        names, about = re.split(r"\s{2,}", line.strip(), maxsplit=1)
        name, _, metavar = names.partition(" ")
        if not metavar:
            options.add_argument(name, action="store_true", help=about)
            continue
        default = re.search(r"\(default: (\d+)\)", about)
        shape: dict[str, Any] = {"default": default[1]} if default else {}
        if "|" in metavar:
            shape["choices"] = metavar.split("|")
        else:
            shape |= {"type": kinds.get(metavar), "metavar": metavar.removesuffix("...")}
        options.add_argument(name, help=about, nargs="+" if metavar.endswith("...") else None, **shape)


def add_answer(options: argparse._ActionsContainer) -> None:
    """How an answer is shown (`Console.show_answer`), and how much is logged."""
    add(options, ANSWER)
    add_verbose(options)


def add_verbose(options: argparse._ActionsContainer) -> None:
    about = "log what happens (-vv: prompts and model output too)"
    options.add_argument("-v", "--verbose", action="count", default=0, help=about)


def count(text: str) -> int:
    """The type of an option that counts from 1 on."""
    if not text.isdecimal() or not 1 <= int(text) <= MOST:
        raise argparse.ArgumentTypeError(f"expected 1 to {MOST}, got {text!r}")
    return int(text)


def positive(text: str) -> float:
    """The type of an option that is a number above 0."""
    if not re.fullmatch(r"[0-9.]+(e-?\d{1,2})?", text) or text.count(".") > 1 or not float(text) > 0:
        raise argparse.ArgumentTypeError(f"expected more than 0, got {text!r}")
    return float(text)


def add_options(options: argparse._ActionsContainer, *names: str) -> None:
    """Adds fields of `config.Request` as options: max_replan_iterations as --max-replan-iterations. Their values
    stay texts until `check_options` or `chosen_settings` validates them."""
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


def check_options(parser: argparse.ArgumentParser, args: argparse.Namespace) -> argparse.Namespace:
    """Gives the options in `args` the values that they stand for, or ends the program with one sentence."""
    given = _given(args, Request)
    try:
        request = Request.of(given)
    except ConfigError as error:
        parser.error(as_flags(error.message))
    vars(args).update({name: getattr(request, name) for name in given})
    return args


def checked(parser: argparse.ArgumentParser, argv: list[str] | None) -> argparse.Namespace:
    """The options in `argv` (default: the command line), with the values that they stand for."""
    return check_options(parser, parser.parse_args(argv))


def _given(args: argparse.Namespace, model: type[Options]) -> dict[str, Any]:
    """The options of a model that were typed; a command may give --map and --pairwise values of its own."""
    values = {name: getattr(args, name, None) for name in model.model_fields.keys() - {"map", "pairwise"}}
    return {name: value for name, value in values.items() if value is not None and value is not False}


def as_flags(message: str) -> str:
    """`message` with options of several words, and the one that it begins with, as they are typed: "error_rate:
    expected with at_least" → "--error-rate: expected with --at-least"."""

    def flag(word: re.Match[str]) -> str:
        return f"--{word[0].replace('_', '-')}" if word[0] in Request.model_fields else word[0]

    return re.sub(r"^\w+(?=:)|(?<!-)\b[a-z]+_[a-z_]+\b", flag, message)


def chosen_settings(args: argparse.Namespace, say: Callable[[str], None] = tell) -> "Settings":
    """The settings that --config, --model and the like name, as far as a command has them. With --gpu and
    neither of those two the largest model that is there is taken, and `say` is told which. Raises ConfigError."""
    from agentic_iqa_local.api import choose_settings
    from agentic_iqa_local.files import models_root

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
    from agentic_iqa_local.files import about_missing_model

    for role in ("planner", "executor", "summarizer") if pipeline == "agent" else ("summarizer",):
        backend = settings.role(role).backend
        if not backend.startswith("server.") and not os.path.isdir(folder := settings.folder(backend)):
            raise UsageError(*about_missing_model(folder))


def place_of(args: argparse.Namespace) -> "Place | None":
    """Where the workers of a command line are; None without --cluster. Raises UsageError for options that do not go
    together, ClusterError where the address is none or does not answer."""
    if (args.cluster is None) != (args.workers is None) or (args.gpus_per_worker and not args.cluster):
        raise UsageError("--cluster, --workers: expected both, with --gpus-per-worker if each worker has GPUs")
    if args.cluster is None:
        return None
    if args.gpu is not None or (args.cpu and args.gpus_per_worker):
        raise UsageError("--gpu, --cpu: expected without --cluster, whose workers get GPUs by --gpus-per-worker")
    if getattr(args, "map", None) and args.cluster != "local":
        raise UsageError("--map: expected without --cluster ADDRESS: a map would be drawn to its worker's disk")
    from agentic_iqa_local.batch.ray import Place, check_address

    check_address(args.cluster)
    return Place(args.cluster, args.workers, args.gpus_per_worker or 0.0)


def chosen_batch(
    work: "Work[Any, Any]", device: str, place: "Place | None", **window: Any
) -> "Runner[Any, Any] | RayRunner[Any, Any]":
    """What does the work: a process on this machine, or a cluster's workers."""
    from agentic_iqa_local.batch.ray import RayRunner
    from agentic_iqa_local.batch.runner import Runner

    return Runner(work, device, **window) if place is None else RayRunner(work, place, **window)
