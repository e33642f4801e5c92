"""Options of the command line: the fields of one model, which an adapter gives to argparse, and the
settings that they choose."""

import argparse
import os
import re
from collections.abc import Callable
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
    "range": tuple[float, float], "seconds": Seconds,
    "share": Annotated[float, Field(gt=0, le=1)], "text": str, "texts": list[str],
}  # fmt: skip
METAVARS = {"integer": "N", "number": "X", "path": "FILE"}  # by the names of JSON schema


class Declared(BaseModel):
    """An option as options.yaml declares it."""

    about: str = ""
    kind: str | list[str] = ""
    default: Any = None
    metavar: str = ""
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
            default = False if kind == "flag" else declared.default
            fields[name] = value | None, option(declared.about, default)
    return create_model("Words", __base__=Request, **fields)


Words = _words()
FIELDS: dict[str, Any] = Words.model_json_schema()["properties"]
# options that argparse reads itself; the others stay texts until `read` validates them
SWITCHES: dict[str, dict[str, Any]] = {
    "json": {"action": "store_true", "help": "JSON on stdout, on a terminal too"},
    "verbose": {
        "action": "count", "default": 0, "flags": ["-v"],
        "help": "log what happens (-vv: every prompt, answer and letter read too)",
    },
}  # fmt: skip


def option_names(options: str) -> list[str]:
    """The names in a text of options and of groups of them."""
    names: list[str] = []
    for word in options.split():
        names += DECLARED.groups.get(word, [word])
    return names


def add(parser: argparse.ArgumentParser, name: str, about: str | None, required: bool) -> None:
    """Adds json, verbose or a field of `Words` as an option, max_replan_iterations as
    --max-replan-iterations.

    Args:
        parser: What it is added to.
        name: The field.
        about: The help instead of the field's own.
        required: Whether it has to be there.
    """
    flags = ["--mode" if name == "modes" else as_flag(name)]
    shape: dict[str, Any]
    if name in SWITCHES:
        shape = dict(SWITCHES[name])
        flags += shape.pop("flags", [])
    else:
        shape = {**_shape(name, FIELDS[name]), "required": required}
    if about:
        shape["help"] = about
    parser.add_argument(*flags, dest=name, **shape)


def _shape(name: str, field: dict[str, Any]) -> dict[str, Any]:
    """What argparse is told of a field of `Words`, from its JSON schema."""
    shape: dict[str, Any] = {"help": as_flags(field["description"])}
    kind = field.get("anyOf", [field])[0]
    if kind.get("type") == "boolean":
        return shape | {"action": "store_true"}
    if kind.get("type") == "array":
        shape["nargs"] = kind.get("maxItems", "+")
    declared = DECLARED.options.get(name, Declared()).metavar
    usual = METAVARS.get(kind.get("format") or kind.get("type"), "NAME")
    shape["metavar"] = declared or "|".join(kind.get("enum", ())) or usual
    return shape


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


def _with_names(argv: list[str]) -> list[str]:
    """A command line whose names behind "--" look like no options: -a.png becomes ./-a.png, the
    same file."""
    before = options_in(argv)
    names = [f"./{name}" if name.startswith("-") else name for name in argv[len(before) + 1 :]]
    return [*before, "--", *names] if names else before


def read(parser: argparse.ArgumentParser, argv: list[str], names: list[str]) -> argparse.Namespace:
    """The options in `argv`, of those with these names, as what they stand for, or one sentence and
    an exit."""
    args = parser.parse_intermixed_args(_with_names(argv))  # pictures may stand between options
    given = {name: value for name, value in vars(args).items() if value not in (None, False, [])}
    _check_together(parser, given)
    fields = Words.model_fields.keys() & set(names)
    try:
        words = Words.of({name: given[name] for name in fields & given.keys()})
    except ConfigError as error:
        parser.error(of_option(error.message))
    for name in fields:
        setattr(args, name, getattr(words, name))
    return args


def _check_together(parser: argparse.ArgumentParser, given: dict[str, Any]) -> None:
    """Ends with a sentence if an option lacks the one that it needs, or stands with one that it
    excludes."""
    for name, declared in DECLARED.options.items():
        if name not in given:
            continue
        needed, excluded = declared.needs, declared.without
        if needed and not given.keys() & set(needed):
            parser.error(f"{as_flag(name)}: expected with {' or '.join(map(as_flag, needed))}")
        for other in excluded:
            if other not in given:
                continue
            said = given[other][0] if other == "pictures" else as_flag(other)
            parser.error(f"{said}: expected without {as_flag(name)}")


def chosen_settings(args: argparse.Namespace, say: Callable[[str], None] = tell) -> "Settings":
    """The settings that --config, --model and the like name, as far as a command has them. With
    --gpu and neither of those two the largest model that is there is taken, and `say` is told
    which. Raises ConfigError."""
    from agentic_iqa_local.api import choose_settings

    options = {name: getattr(args, name, None) for name in Options.model_fields}
    named = options["config"] or options["model"] or options["engine"] == "server"
    if options["gpu"] is not None and not named:
        from agentic_iqa_local.vlm_client.model_choice import choose

        choice = choose(models_root(options["models"]))
        say(choice.said)
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
