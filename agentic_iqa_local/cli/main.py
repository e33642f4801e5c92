"""One command with subcommands: `agentic-iqa NAME ...`, or `python -m agentic_iqa_local NAME ...` in a checkout."""

import os
import shlex
import sys
from importlib.metadata import version

from agentic_iqa_local.cli.command import COMMANDS, Parser, run
from agentic_iqa_local.cli.console import say, tell
from agentic_iqa_local.cli.options import options_in
from agentic_iqa_local.errors import nearest, one_line
from agentic_iqa_local.files import PROGRAM


def main(argv: list[str] | None = None) -> int:
    """Runs the subcommand that the arguments (default: the command line's) begin with; its exit status, or 2
    where there is none."""
    words = (sys.argv[1:] if argv is None else argv) or ["--help"]
    if "_ARGCOMPLETE" in os.environ:
        words = _completed()
    name = " ".join(words[: 2 if words[0] == "study" else 1])
    rest = words[len(name.split()) :]
    if "--version" in (name, *options_in(rest)):
        say(f"agentic_iqa_local {version('agentic_iqa_local')}")
    elif name in COMMANDS:
        return run(name, rest)
    elif name.removeprefix("study").strip() in ("-h", "--help", "help", ""):
        names = "\n".join(f"  {name:<13}  {entry['line']}" for name, entry in COMMANDS.items())
        say(
            f"usage: {PROGRAM} COMMAND ...\n\nImage quality assessment that runs wholly on this machine.\n\n{names}\n"
        )
        say(
            f"Begin with: {PROGRAM} assess photo.jpg --explain\n{PROGRAM} COMMAND --help says more."
        )
    else:
        near = f"assess {shlex.quote(name)}" if os.path.exists(name) else nearest(name, COMMANDS)
        meant = (
            f"; did you mean {PROGRAM} {' '.join([near, *map(shlex.quote, rest)])}?"
            if near
            else "."
        )
        tell(f"error: unknown command {one_line(f'{name}{meant}')} All commands: {PROGRAM} --help")
        return 2
    return 0


def _completed() -> list[str]:
    """The subcommand whose options a shell asks for; where none stands there yet, the shell gets all names."""
    words = os.environ["COMP_LINE"].split()[1:]
    for name in COMMANDS:
        if words[: len(name.split())] == name.split():
            os.environ["_ARGCOMPLETE"] = str(
                len(name.split()) + 1
            )  # the word from which on its own parser reads
            return name.split()
    parser, of_study = Parser(), words[:1] == ["study"]
    os.environ["_ARGCOMPLETE"] = "2" if of_study else "1"
    parser.add_argument(
        "command",
        choices=[name.split()[of_study] for name in COMMANDS if " " in name or not of_study],
    )
    import argcomplete

    argcomplete.autocomplete(parser)
    return ["--help"]
