"""One command with subcommands: `agentic-iqa NAME ...`, or `python -m agentic_iqa_local NAME ...` in a
checkout."""

import difflib
import importlib
import sys
from importlib.metadata import version

from agentic_iqa_local.cli.console import safe_streams
from agentic_iqa_local.errors import one_line
from agentic_iqa_local.files import PROGRAM

# name → (module of this package, whether it reads the name itself, what it does)
COMMANDS = {
    "assess": ("assess", False, "assess pictures"),
    "doctor": ("doctor", False, "say whether a set-up will work on this machine"),
    "gallery": ("gallery", False, "make a page of a batch: look, sort, filter, triage"),
    "mcp": ("mcp", False, "serve assess and compare as tools of the Model Context Protocol"),
    "serve": ("serve", False, "answer over HTTP: a page and an API, models loaded once"),
    "study": ("study", False, "study the agent on images with human scores"),
    "fit": ("fit_tools", False, "fit the maps from tools' raw scores to 1..5"),
    "bundle": (
        "bundle",
        False,
        "collect models, weights and wheels for a machine without a network; the only one that downloads",
    ),
    "verify": (
        "store",
        True,
        "read every byte of a bundle or of the models folder and compare it with its manifest",
    ),
    "unpack": ("store", True, "verify a bundle and put its files into the models folder"),
}


def usage() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {about}" for name, (_, _, about) in COMMANDS.items()]
    return "\n".join(
        [
            f"usage: {PROGRAM} COMMAND ...",
            "",
            "Image quality assessment that runs wholly on this machine.",
            "",
            "commands:",
            *lines,
            "",
            f"{PROGRAM} COMMAND --help says more. --version prints the version.",
        ]
    )


@safe_streams()
def main(argv: list[str] | None = None) -> int:
    """Runs the subcommand that the arguments (default: the command line's) begin with; its exit status, or 2
    where there is none."""
    name, *rest = (sys.argv[1:] if argv is None else argv) or ["--help"]
    if name in ("-h", "--help"):
        print(usage())
        return 0
    if name == "--version":
        print(f"agentic_iqa_local {version('agentic_iqa_local')}")
        return 0
    if name not in COMMANDS:
        near = difflib.get_close_matches(name, COMMANDS, n=1)
        hint = f"; did you mean {near[0]}?" if near else "."
        print(
            f"error: unknown command {one_line(name)}{hint} All commands: {PROGRAM} --help", file=sys.stderr
        )
        return 2
    module, reads_name, _ = COMMANDS[name]
    return importlib.import_module(f"agentic_iqa_local.cli.{module}").main(
        [name, *rest] if reads_name else rest
    )
