"""Options that commands share: the fields of `config.Request` on a command line, and the settings that they choose."""

import argparse
import os
import re
from collections.abc import Callable
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from agentic_iqa_local.cli.console import tell
from agentic_iqa_local.cli.command import UsageError
from agentic_iqa_local.config import ConfigError, Decisions, Options, Request

if TYPE_CHECKING:
    from agentic_iqa_local.config import Settings

SET_UP = ("gpu", "cpu", "config", "engine", "model", "models")
HOW = ("pipeline", "mode", "fit", "max_replan_iterations")
HOW_SURE = tuple(Decisions.model_fields)
METAVARS = {
    "abstain_wider_than": "W", "at_least": "LEVEL", "background": "COLOUR", "choices": "ANSWER", "config": "NAME",
    "error_rate": "X", "fit": "FILE", "gpu": "N", "map_seconds": "S", "map_tiles": "N", "max_replan_iterations": "N",
    "model": "NAME", "models": "DIR", "most_reads": "N", "most_seconds": "S", "query": "TEXT", "target_width": "W",
}  # fmt: skip
MOST_JOBS = 256


def add_options(options: argparse._ActionsContainer, *names: str) -> None:
    """Adds fields of `config.Request` as options: max_replan_iterations as --max-replan-iterations. Their values
    stay texts until `check_options` or `chosen_settings` validates them."""
    for name in names:
        field = Request.model_fields[name]
        kinds = [kind for kind in get_args(field.annotation) if kind is not NoneType] or [field.annotation]
        words = get_args(kinds[0]) if get_origin(kinds[0]) is Literal else ()
        shape: dict[str, Any] = {"metavar": "|".join(words) or METAVARS.get(name)}
        if kinds == [bool]:
            shape = {"action": "store_true"}
        elif "list" in str(kinds[0]):
            shape["nargs"] = "+"
        options.add_argument(f"--{name.replace('_', '-')}", help=as_flags(field.description or ""), **shape)


def add_set_up(options: argparse._ActionsContainer) -> None:
    """The options that say where a command runs and with what: a device, and what `chosen_settings` reads."""
    add_options(options, *SET_UP)


def add_work(options: argparse._ActionsContainer) -> None:
    """How many pictures are worked on at once, and for how long."""
    about = "pictures assessed at once, with --engine vllm or server in one batch (default: 1)"
    options.add_argument("--jobs", type=number(int, 1, MOST_JOBS), default=1, metavar="N", help=about)
    about = "seconds for one picture, after which its row is a failure and the others go on (default: 600)"
    options.add_argument("--timeout", type=number(float, 0.001), default=600.0, metavar="S", help=about)


def add_answer(options: argparse._ActionsContainer) -> None:
    """How an answer is shown, for `console.show_answer`."""
    options.add_argument("--json", action="store_true", help="JSON lines on stdout, on a terminal too")
    about = "a readable account: what was seen and measured, the probabilities, and why"
    options.add_argument("--explain", action="store_true", help=about)
    about = "log what happens (-vv: prompts and model output too)"
    options.add_argument("-v", "--verbose", action="count", default=0, help=about)


def number(kind: type[int] | type[float], least: float, most: float = float("inf")) -> Callable[[str], float]:
    """The type of an option: a number of a kind from `least` to `most`."""

    def read(text: str) -> float:
        try:
            if least <= (value := kind(text)) <= most:
                return value
        except ValueError:
            pass
        limits = f"{least:g} or more" if most == float("inf") else f"{least:g} to {most:g}"
        raise argparse.ArgumentTypeError(f"expected {limits}, got {text!r}")

    return read


def check_options(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Gives the options in `args` the values that they stand for, or ends the program with one sentence."""
    given = _given(args, Request)
    try:
        request = Request.of(given)
    except ConfigError as error:
        parser.error(as_flags(error.message))
    vars(args).update({name: getattr(request, name) for name in given})


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
    chosen = options.keys() & {"config", "model"} or options.get("engine") == "server"
    if "gpu" in options and not chosen:
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
