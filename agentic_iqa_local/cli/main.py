"""One command with subcommands: `agentic-iqa NAME ...`, or `python -m agentic_iqa_local NAME ...` in a checkout."""

import os
import pkgutil
import shlex
import sys
from importlib.metadata import version

from agentic_iqa_local.cli.command import Parser
from agentic_iqa_local.cli.console import safe_streams, tell
from agentic_iqa_local.errors import nearest, one_line
from agentic_iqa_local.files import PROGRAM

# name → (its module and the Command there, what it does)
COMMANDS = {
    "assess": ("assess:main", "assess pictures"),
    "compare": ("compare:main", "say which of several pictures is better"),
    "best": ("compare:best", "find the best of each group of near-duplicates"),
    "chat": ("chat:main", "answer questions about one picture"),
    "tools": ("tools:main", "list the IQA tools and what each needs"),
    "study": ("study:main", "study the agent on images with human scores"),
    "serve": ("serve:main", "answer over HTTP: a page and an API, models loaded once"),
    "gallery": ("gallery:main", "make a page of a batch: look, sort, filter, triage"),
    "mcp": ("mcp:main", "serve assess and compare as tools of the Model Context Protocol"),
    "doctor": ("doctor:main", "say whether a set-up will work on this machine"),
    "bundle": ("bundle:main", "collect models and weights for a machine without a network; only this downloads"),
    "verify": ("bundle:verify", "compare every byte of a bundle or of the models folder with its manifest"),
    "unpack": ("bundle:unpack", "verify a bundle and put its files into the models folder"),
}


@safe_streams()
def main(argv: list[str] | None = None) -> int:
    """Runs the subcommand that the arguments (default: the command line's) begin with; its exit status, or 2
    where there is none."""
    name, *rest = (sys.argv[1:] if argv is None else argv) or ["--help"]
    if "_ARGCOMPLETE" in os.environ:
        name = _completed_command()
    if name in COMMANDS:
        return pkgutil.resolve_name(f"agentic_iqa_local.cli.{COMMANDS[name][0]}")(rest)
    if name == "--version":
        print(f"agentic_iqa_local {version('agentic_iqa_local')}")
    elif name in ("-h", "--help", "help"):
        print(f"usage: {PROGRAM} COMMAND ...\n\nImage quality assessment that runs wholly on this machine.\n")
        print("\n".join(f"  {name:<8}  {about}" for name, (_, about) in COMMANDS.items()))
        print(f"\nBegin with: {PROGRAM} assess photo.jpg --explain")
        print(f"{PROGRAM} COMMAND --help says more. --version prints the version.")
    else:
        near = f"assess {shlex.quote(name)}" if os.path.exists(name) else nearest(name, COMMANDS)
        meant = f"; did you mean {PROGRAM} {' '.join([near, *map(shlex.quote, rest)])}?" if near else "."
        tell(f"error: unknown command {one_line(f'{name}{meant}')} All commands: {PROGRAM} --help")
        return 2
    return 0


def _completed_command() -> str:
    """The subcommand whose options a shell asks for; where none stands there yet, the shell gets all names."""
    words = os.environ["COMP_LINE"].split()
    if len(words) > 1 and words[1] in COMMANDS:
        os.environ["_ARGCOMPLETE"] = "2"  # the word from which on its own parser reads
        return words[1]
    parser = Parser()
    parser.add_argument("command", choices=COMMANDS)
    parser.parse_args()
    return "--help"
