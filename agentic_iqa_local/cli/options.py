"""Options of the command line: the fields of one model, which an adapter gives to argparse, and the settings that they
choose."""

import argparse
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, StringConstraints

from agentic_iqa_local.cli.console import tell
from agentic_iqa_local.config import ConfigError, Count, Options, Request, Seconds, option
from agentic_iqa_local.errors import UserError
from agentic_iqa_local.files import about_missing_model, models_root

if TYPE_CHECKING:
    from agentic_iqa_local.batch.work import Work
    from agentic_iqa_local.config import Settings

GROUPS = {  # options that several commands share
    "SET_UP": ("gpu", "cpu", "config", "engine", "model", "models"),
    "HOW": ("pipeline", "mode", "fit", "max_replan_iterations"),
    "HOW_SURE": ("abstain_wider_than", "at_least", "error_rate", "target_width"),
    "WORK": ("jobs", "timeout"),
    "CLUSTER": ("cluster", "workers", "gpus_per_worker"),
    "SHOWN": ("json", "explain", "verbose"),
}
METAVARS = {
    "abstain_wider_than": "W", "at_least": "LEVEL", "background": "COLOUR", "batches": "DIR", "box": "BOX",
    "choices": "ANSWER",
    "cluster": "ADDRESS", "contexts": "CONTEXT", "expect": "HASH", "fit": "FILE", "host": "ADDRESS", "images": "DIR",
    "models": "DIR", "modes": "MODE", "mos_range": "X", "query": "TEXT", "repo": "FOLDER=ORG/NAME@REVISION",
    "root": "DIR", "target_width": "W", "tools": "TOOL",
}  # fmt: skip
KINDS = {"integer": "N", "number": "X", "path": "FILE"}  # JSON schema's → metavar
# An option → those of which it needs one; and options of which one stands alone.
NEEDS = {
    "resume": ["out"], "retry_failed": ["resume"], "map_tiles": ["map"], "cluster": ["workers"], "workers": ["cluster"],
    "gpus_per_worker": ["cluster"], "strict": ["at_least", "abstain_wider_than"],
}  # fmt: skip
APART = (
    ("pictures", "manifest"),
    ("reference", "manifest"),
    ("gpu", "cluster"),
    ("map", "cluster"),
    ("quick", "deep"),
)
STATE = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")

File = Annotated[Path, BeforeValidator(lambda path: Path(path))]  # also of a name that is no UTF-8


class UsageError(UserError):
    """A command line that cannot be carried out."""


class Words(Request):
    """What can be said on the command line: what a request may ask, and what commands read, write and need."""

    manifest: File | None = option(
        "instead: .csv, .jsonl or .parquet with image; reference, query, choices of a row"
    )
    reference: File | None = option(
        "pristine original of the same size; for several a folder with the same names"
    )
    out: File | None = option("JSON lines to FILE, one durable row for each picture")
    resume: bool = option("go on with FILE: assess what it lacks, and what changed", False)
    retry_failed: bool = option("with --resume: assess its failed pictures again", False)
    csv: File | None = option("a table for spreadsheets too, when the run ends")
    gallery: File | None = option("a page to look through, sort and triage too, when the run ends")
    map: File | None = option(
        "draw the quality from place to place to a PNG, of several into a folder"
    )  # pyright: ignore
    strict: bool = option(
        "exit status 4 where a picture fails --at-least, 3 where an answer is not sure", False
    )
    jobs: Count = option(
        "pictures at once, with --engine vllm or server in one batch (default: 1)", 1
    )
    timeout: Seconds = option(
        "seconds for one picture, after which its row is a failure (default: 600)", 600.0
    )
    cluster: str | None = option(
        "local: workers on this machine; HOST:PORT or auto: of a cluster of `ray start`"
    )
    workers: Count | None = option("workers in all, each with a model")
    gpus_per_worker: Seconds | None = option(
        "GPUs of each worker, such as 1 or 0.5 (default: 0, they compute on CPUs)"
    )
    track: Literal["mlflow", "trackio"] | None = option(
        "note options and figures with this tracker, in files here"
    )
    explain: bool = option(
        "plain sentences: the verdict, what is wrong and where, how sure, what decided", False
    )
    # study
    key: str | None = option("which data set it is, where the layout does not tell")
    part_of: str | None = option("a manifest: the data set whose scale its scores have")
    split: str | None = option("only images of this official split, such as train, val or test")
    limit: Count | None = option("only N images, drawn evenly with a fixed seed")
    mos_range: tuple[float, float] | None = option(
        "a manifest: the lowest and the highest score of its scale"
    )
    tools: list[str] | None = option(
        "tools to run or to take (default: those of the configuration)"
    )
    objective: Literal["rps", "srcc", "keep"] = option("what is minimised (default: rps)", "rps")
    called: str | None = option("what rows call the set that intervals are calibrated on")
    share: float = option("without --split: this share of the scenes, seed 0 (default: 0.3)", 0.3)
    baseline: str | None = option("the mode compared with every other (default: classification)")
    modes: list[str] = option("scoring modes, or all (default: logits)", ["logits"])
    png: bool = option("figures as PNG too", False)
    draws: Count = option("bootstrap draws; 1000 decide up to 25 comparisons (default: 1000)", 1000)
    # gallery, serve, mcp, doctor, bundle
    images: File | None = option(
        "where the pictures are now, if they are no longer at the paths in the rows"
    )
    host: str = option("where to listen (default: 127.0.0.1)", "127.0.0.1")
    port: int = option("0 takes a free one (default: 8765)", 8765)
    batches: File = option(
        "where batches lie (default: below $XDG_STATE_HOME)", STATE / "agentic-iqa" / "batches"
    )
    root: File = option(
        "the folder whose pictures may be read (default: the working folder)", Path()
    )
    quick: bool = option("load no model and no tool: for a health check", False)
    deep: bool = option("also compare letters and tools, in minutes", False)
    repo: list[str] = option("the repository of a model folder, which is then downloaded", [])
    accept_licences: bool = option("accept the licences that are shown", False)
    wheels: Literal["transformers", "vllm"] | None = option(
        "also wheels of an engine's environment, for this platform"
    )
    expect: Annotated[str, StringConstraints(to_lower=True)] | None = option(
        "refuse every other bundle"
    )


FIELDS: dict[str, Any] = Words.model_json_schema()["properties"]


def add(options: argparse._ActionsContainer, *names: str, **other: str) -> None:
    """Adds json, verbose and fields of `Words` as options, max_replan_iterations as --max-replan-iterations; `other`
    are fields with a help of their own. Their values stay texts until `read` validates them."""
    for name in (*names, *other):
        flag, field = (
            "--mode" if name == "modes" else f"--{name.replace('_', '-')}",
            FIELDS.get(name, {}),
        )
        kind = field.get("anyOf", [field])[0]
        shape: dict[str, Any] = {"help": as_flags(other.get(name) or field.get("description", ""))}
        if name == "json":
            options.add_argument(
                flag, action="store_true", help="JSON on stdout, on a terminal too"
            )
        elif name == "verbose":
            shape["help"] = "log what happens (-vv: every prompt, answer and letter read too)"
            options.add_argument("-v", flag, action="count", default=0, **shape)
        elif kind.get("type") == "boolean":
            options.add_argument(flag, action="store_true", **shape)
        else:
            shape["nargs"] = kind.get("maxItems", "+") if kind.get("type") == "array" else None
            metavar = METAVARS.get(name) or "|".join(kind.get("enum", ()))
            metavar = metavar or KINDS.get(kind.get("format") or kind.get("type"), "NAME")
            options.add_argument(flag, dest=name, metavar=metavar, **shape)


def as_flags(message: str) -> str:
    """A message with the option that it begins with, and those of several words, as they are typed."""

    def flag(word: re.Match[str]) -> str:
        return f"--{word[0].replace('_', '-')}" if word[0] in Words.model_fields else word[0]

    return re.sub(r"^\w+(?=:)|(?<!-)\b[a-z]+_[a-z_]+\b", flag, message)


def options_in(argv: list[str]) -> list[str]:
    """What of a command line may be options: what stands before a "--"."""
    return argv[: argv.index("--")] if "--" in argv else argv


def _with_names(argv: list[str]) -> list[str]:
    """A command line whose names behind "--" look like no options: -a.png becomes ./-a.png, the same file."""
    before = options_in(argv)
    names = argv[len(before) :]
    return (
        before + names[:1] + [f"./{name}" if name.startswith("-") else name for name in names[1:]]
    )


def read(
    parser: argparse.ArgumentParser, argv: list[str], names: Iterable[str]
) -> argparse.Namespace:
    """The options in `argv`, of those with these names, as what they stand for, or one sentence and an exit."""
    args = parser.parse_intermixed_args(_with_names(argv))  # pictures may stand between options
    given = {name for name, value in vars(args).items() if value not in (None, False, [])}
    for name, needed in NEEDS.items():
        if name in given and not given.intersection(needed):
            parser.error(f"--{name}: expected with --{' or --'.join(needed)}".replace("_", "-"))
    for name, other in APART:
        if {name, other} <= given:
            named = args.pictures[0] if name == "pictures" else f"--{name}"
            parser.error(f"{named}: expected without --{other}")
    fields = Words.model_fields.keys() & set(names)
    try:
        words = Words.of({name: getattr(args, name) for name in fields & given})
    except ConfigError as error:
        parser.error(as_flags(error.message))
    return argparse.Namespace(**vars(args) | {name: getattr(words, name) for name in fields})


def chosen_settings(args: argparse.Namespace, say: Callable[[str], None] = tell) -> "Settings":
    """The settings that --config, --model and the like name, as far as a command has them. With --gpu and
    neither of those two the largest model that is there is taken, and `say` is told which. Raises ConfigError."""
    from agentic_iqa_local.api import choose_settings

    given = {name: getattr(args, name, None) for name in Options.model_fields}
    options = {
        name: value for name, value in given.items() if value is not None and value is not False
    }
    if (
        "gpu" in options
        and not options.keys() & {"config", "model"}
        and options.get("engine") != "server"
    ):
        from agentic_iqa_local.vlm_client.model_choice import choose

        choice = choose(models_root(options.get("models")))
        say(choice.said)
        chosen = {"model": choice.folder, "config": choice.config}
        options |= {name: value for name, value in chosen.items() if choice.folder and value}
    try:
        settings = choose_settings(**options)
    except ConfigError as error:
        of_an_option = error.message.partition(":")[0] in Options.model_fields  # not of a file
        raise ConfigError(
            as_flags(error.message) if of_an_option else error.message, error.remedy
        ) from None
    if settings.models_dir:  # the command's other parts and its processes look there too
        os.environ["AGENTIC_IQA_MODELS"] = settings.models_dir
    return settings


def check_set_up(settings: "Settings", pipeline: str, *tools: str) -> None:
    """Raises UsageError for a model folder that is not there; one that a server has need not be. Raises ConfigError
    for a tool that cannot run here, of the configuration's and these `tools`."""
    for role in ("planner", "executor", "summarizer") if pipeline == "agent" else ("summarizer",):
        backend = settings.role(role).backend
        if not backend.startswith("server.") and not os.path.isdir(
            folder := settings.folder(backend)
        ):
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
    """The Runner or RayRunner that does the work: a process on this machine, or with --cluster the workers."""
    more |= {"jobs": args.jobs, "timeout": args.timeout}
    if getattr(args, "cluster", None):
        from agentic_iqa_local.batch.ray import RayRunner

        return RayRunner(work, args.cluster, args.workers, args.gpus_per_worker or 0.0, **more)
    from agentic_iqa_local.batch.runner import Runner

    return Runner(work, device, **more)
