"""Serves assess and compare as tools of the Model Context Protocol on stdin and stdout, for programs that
talk to a language model. Nothing leaves this machine.

examples:
  {mcp} --root ~/Pictures
  {mcp} --root scans --config qwen2_5_vl_7b --gpu 0

Only files below --root are read; links that lead out of it are refused. The model is loaded at the first
call and then kept. stdout carries the protocol alone, logs go to stderr. A closed stdin or Ctrl-C ends it.
"""

import argparse
import os
from pathlib import Path

from agentic_iqa_local.cli.command import Command, Parser, UsageError, like_ctrl_c
from agentic_iqa_local.cli.options import SET_UP, add_options, add_verbose, check_models, chosen_settings


def options(parser: Parser) -> None:
    about = "the folder whose pictures may be read (default: the working folder)"
    parser.add_argument("--root", type=Path, default=Path(), metavar="DIR", help=about)
    add_options(parser, *SET_UP)
    add_verbose(parser)


def serve(args: argparse.Namespace) -> int:
    """Serves until stdin is closed. Raises UserError for a set-up that cannot be used."""
    if not args.root.is_dir():
        raise UsageError(f"--root {args.root}: expected a folder", "name the one that holds the pictures")
    try:
        from agentic_iqa_local.serve.mcp_server import Pictures, run
    except ModuleNotFoundError as error:
        remedy = "pip install 'agentic_iqa_local[serve]'"
        raise UsageError(f"mcp: expected the package {error.name}", remedy) from error
    from agentic_iqa_local.devices import choose_device
    from agentic_iqa_local.serve.asks import SetUp
    from agentic_iqa_local.services import Services

    settings = chosen_settings(args)
    check_models(settings, "agent")
    services = Services(settings, choose_device(args.gpu, args.cpu))
    pictures = Pictures(args.root, SetUp(settings, "agent"), services)
    with like_ctrl_c(_stop):
        run(pictures)
    if pictures.turn.locked():  # nobody waits for its answer any more
        os._exit(0)
    services.close()
    return 0


def _stop(*_: object) -> None:
    """Ends the process at once: its reader of stdin cannot be interrupted, and nothing is written."""
    os.write(2, b"stopped\n")
    os._exit(130)


main = Command("mcp", __doc__, options, serve)
