"""One command with subcommands: `agentic-iqa NAME ...`, or `python -m agentic_iqa_local NAME ...`
in a checkout."""

import os
import shlex
import sys
from collections.abc import Iterable
from importlib.metadata import version

from agentic_iqa_local.cli.command import COMMANDS, run
from agentic_iqa_local.cli.console import say, tell
from agentic_iqa_local.cli.options import options_in
from agentic_iqa_local.errors import nearest, one_line
from agentic_iqa_local.files import PROGRAM

HELP = ("-h", "--help", "help", "")


def main(argv: list[str] | None = None) -> int:
    """Runs the subcommand that the arguments (default: the command line's) begin with; its exit
    status, or 2 if there is none."""
    words = sys.argv[1:] if argv is None else argv
    length = 2 if words[:1] == ["study"] else 1
    name, rest = " ".join(words[:length]), words[length:]
    if "--version" in (name, *options_in(rest)):
        say(f"agentic_iqa_local {version('agentic_iqa_local')}")
        return 0
    if name in COMMANDS:
        return run(name, rest)
    if name in HELP:
        say(_all_commands())
        return 0
    if name.removeprefix("study").strip() in HELP:
        say(_study_commands())
        return 0
    near = f"assess {shlex.quote(name)}" if os.path.exists(name) else nearest(name, COMMANDS)
    line = shlex.join(rest)
    meant = f"; did you mean {PROGRAM} {near} {line}".rstrip() + "?" if near else "."
    tell(f"error: unknown command {one_line(name + meant)} All commands: {PROGRAM} --help")
    return 2


def _all_commands() -> str:
    about = "Image quality assessment that runs wholly on this machine."
    return _listed("COMMAND", about, COMMANDS, "assess photo.jpg --explain")


def _study_commands() -> str:
    about = "How well scores agree with people's, on pictures with human scores."
    names = [name for name in COMMANDS if name.startswith("study ")]
    return _listed("study COMMAND", about, names, "study run my40.csv --mos-range 1 5 --out my_run")


def _listed(command: str, about: str, names: Iterable[str], first: str) -> str:
    """Help on commands."""
    lines = [f"usage: {PROGRAM} {command} ...", "", about, ""]
    lines += [f"  {name:<13}  {COMMANDS[name].line}" for name in names]
    lines += ["", f"Begin with: {PROGRAM} {first}"]
    return "\n".join([*lines, f"{PROGRAM} {command} --help says more."])
