"""Options of the command line: the fields of one model, as options.yaml tells argparse of them, and
the settings that they choose."""

import argparse
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, StringConstraints, create_model

from agentic_iqa_local.cli.console import tell
from agentic_iqa_local.config import ConfigError, Count, Options, Request, Seconds, option
from agentic_iqa_local.errors import UserError
from agentic_iqa_local.files import about_missing_model, models_root, read_record

if TYPE_CHECKING:
    from agentic_iqa_local.batch.work import Work
    from agentic_iqa_local.config import Settings

STATE = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
KINDS: dict[str, Any] = {
    "count": Count,
    "file": Annotated[Path, BeforeValidator(lambda path: Path(path))],  # also one that is no UTF-8
    "flag": bool, "hash": Annotated[str, StringConstraints(to_lower=True)], "port": int,
    "part": Annotated[float, Field(gt=0, lt=1)],
    "range": tuple[float, float], "seconds": Seconds,
    "share": Annotated[float, Field(gt=0, le=1)], "text": str, "texts": list[str],
}  # fmt: skip


class Declared(BaseModel):
    """An option as options.yaml declares it."""

    about: str = ""
    kind: str | list[str] = ""
    default: Any = None
    long: str = ""
    short: str = ""
    argparse: dict[str, Any]
    needs: list[str] = []
    without: list[str] = []


class Declarations(BaseModel):
    """options.yaml."""

    groups: dict[str, list[str]]
    options: dict[str, Declared]


DECLARED = read_record(Path(__file__).with_name("options.yaml"), Declarations)


class UsageError(UserError):
    """A command line that cannot be carried out."""


def _words() -> type[Request]:
    """What can be said on the command line: what a request may ask, and what commands read, write
    and need."""
    fields: dict[str, Any] = {}
    for name, declared in DECLARED.options.items():
        kind = declared.kind
        if kind:
            value: Any = KINDS[kind] if isinstance(kind, str) else Literal[tuple(kind)]
            fields[name] = value | None, option(declared.about, declared.default)
    return create_model("Words", __base__=Request, **fields)


Words = _words()


def option_names(options: str) -> list[str]:
    """The names in a text of options and of groups of them."""
    names: list[str] = []
    for word in options.split():
        names += DECLARED.groups.get(word, [word])
    return names


def add(parser: argparse.ArgumentParser, name: str, about: str | None = None, **shape: Any) -> None:
    """Adds an option, max_replan_iterations as --max-replan-iterations.

    Args:
        parser: What it is added to.
        name: Its name in options.yaml.
        about: The help instead of its own.
        shape: What argparse is told beside what options.yaml says.
    """
    declared = DECLARED.options[name]
    flags = [declared.long or as_flag(name), declared.short]
    own = declared.about or Words.model_fields[name].description or ""
    shape = declared.argparse | {"dest": name, "help": about or as_flags(own)} | shape
    if isinstance(shape.get("metavar"), list):  # a name for each of several values
        shape["metavar"] = tuple(shape["metavar"])
    parser.add_argument(*filter(None, flags), **shape)


def as_flag(name: str) -> str:
    """An option's name as it is typed."""
    return f"--{name.replace('_', '-')}"


def as_flags(text: str) -> str:
    """A text with the options of several words as they are typed."""
    return re.sub(r"(?<!-)\b[a-z]+_[a-z_]+\b", lambda word: as_flag(word[0]), text)


def of_option(message: str) -> str:
    """A message that begins with an option's name, as of a command line; another one as it is."""
    name, _, rest = message.partition(":")
    return f"{as_flag(name)}:{as_flags(rest)}" if name in Words.model_fields else message


def options_in(argv: list[str]) -> list[str]:
    """What of a command line may be options: what stands before a "--"."""
    return argv[: argv.index("--")] if "--" in argv else argv


def read(parser: argparse.ArgumentParser, argv: list[str]) -> argparse.Namespace:
    """The options in `argv` as what they stand for, or one sentence and an exit. Names behind a
    "--" may look like options."""
    options = options_in(argv)
    names = [os.path.join(".", name) for name in argv[len(options) + 1 :]]
    line = [*options, "--", *names] if names else options
    args = parser.parse_intermixed_args(line)  # pictures may stand between options
    given = {name: value for name, value in vars(args).items() if value not in (None, False, [])}
    fields = vars(args).keys() & Words.model_fields.keys()
    try:
        words = Words.of({name: given[name] for name in fields & given.keys()})
        _check_together(given)
    except ConfigError as error:
        parser.error(of_option(error.message))
    for name in fields:
        setattr(args, name, getattr(words, name))
    return args


def _check_together(given: dict[str, Any]) -> None:
    """Raises ConfigError if an option lacks the one that it needs, or stands with one that it
    excludes."""
    for name in given.keys() & DECLARED.options.keys():
        declared = DECLARED.options[name]
        if declared.needs and not given.keys() & set(declared.needs):
            needed = " or ".join(map(as_flag, declared.needs))
            raise ConfigError(f"{name}: expected with {needed}")
        for other in given.keys() & set(declared.without):
            said = as_flag(other) if other in DECLARED.options else other
            raise ConfigError(f"{name}: expected without {said}")


def chosen_settings(args: argparse.Namespace) -> "Settings":
    """The settings that --config, --model and the like name, as far as a command has them. With
    --gpu and neither of those two the largest model that is there is taken, and it is told which.
    Raises ConfigError."""
    from agentic_iqa_local.api import choose_settings

    options = {name: getattr(args, name, None) for name in Options.model_fields}
    named = options["config"] or options["model"] or options["engine"] == "server"
    if options["gpu"] is not None and not named:
        device_of(args)  # a GPU that is not there is told alone
        from agentic_iqa_local.vlm_client.model_choice import choose

        choice = choose(models_root(options["models"]))
        tell(choice.said)
        if choice.folder:
            options |= {"model": choice.folder, "config": choice.config}
    try:
        settings = choose_settings(**{k: v for k, v in options.items() if v not in (None, False)})
    except ConfigError as error:
        raise ConfigError(of_option(error.message), error.remedy) from None
    if settings.models_dir:  # the command's other parts and its processes look there too
        os.environ["AGENTIC_IQA_MODELS"] = settings.models_dir
    return settings


def check_set_up(settings: "Settings", pipeline: str, *tools: str) -> None:
    """Raises UsageError for a model folder that is not there; one that a server has need not be.
    Raises ConfigError for a tool that cannot run here, of the configuration's and these `tools`."""
    backends = settings.backends if pipeline == "agent" else [settings.summarizer.backend]
    for backend in backends:
        folder = settings.folder(backend)
        if not backend.startswith("server.") and not os.path.isdir(folder):
            raise UsageError(*about_missing_model(folder))
    from agentic_iqa_local.services import tools_of

    tools_of(settings, "cpu", *tools)


def device_of(args: argparse.Namespace) -> str:
    """Where models compute, with --cluster at each worker. Raises DeviceError, BatchError."""
    if getattr(args, "cluster", None):
        from agentic_iqa_local.batch.ray import check_address

        check_address(args.cluster)
        return "cuda:0" if args.gpus_per_worker else "cpu"
    from agentic_iqa_local.devices import choose_device

    return choose_device(args.gpu, args.cpu)


def batch_of(args: argparse.Namespace, work: "Work", device: str, **more: Any) -> Any:
    """The Runner or RayRunner that does the work: a process on this machine, or with --cluster the
    workers."""
    more |= {"jobs": args.jobs, "timeout": args.timeout}
    if getattr(args, "cluster", None):
        from agentic_iqa_local.batch.ray import RayRunner

        return RayRunner(work, args.cluster, args.workers, args.gpus_per_worker or 0.0, **more)
    from agentic_iqa_local.batch.runner import Runner

    return Runner(work, device, **more)
