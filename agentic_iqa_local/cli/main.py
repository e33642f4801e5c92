"""One command with subcommands: `agentic-iqa NAME ...`, or `python -m agentic_iqa_local NAME ...`
in a checkout."""

import os
import shlex
import sys
from importlib.metadata import version

from agentic_iqa_local.cli.command import COMMANDS, run
from agentic_iqa_local.cli.console import say, tell
from agentic_iqa_local.cli.options import options_in
from agentic_iqa_local.errors import nearest, one_line
from agentic_iqa_local.files import PROGRAM


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
    if name.removeprefix("study").strip() in ("-h", "--help", "help", ""):
        say(_all_commands())
        return 0
    near = f"assess {shlex.quote(name)}" if os.path.exists(name) else nearest(name, COMMANDS)
    line = shlex.join(rest)
    meant = f"; did you mean {PROGRAM} {near} {line}".rstrip() + "?" if near else "."
    tell(f"error: unknown command {one_line(name + meant)} All commands: {PROGRAM} --help")
    return 2


def _all_commands() -> str:
    lines = [f"usage: {PROGRAM} COMMAND ...", ""]
    lines += ["Image quality assessment that runs wholly on this machine.", ""]
    lines += [f"  {name:<13}  {entry.line}" for name, entry in COMMANDS.items()]
    lines += ["", f"Begin with: {PROGRAM} assess photo.jpg --explain"]
    return "\n".join([*lines, f"{PROGRAM} COMMAND --help says more."])
