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

from agentic_iqa_local.cli import options as shared
from agentic_iqa_local.cli.command import Command, Parser, UsageError, like_ctrl_c

ROOT = "--root DIR  the folder whose pictures may be read (the working folder)"


def options(parser: Parser) -> None:
    shared.add(parser, ROOT)
    parser.set_defaults(root=Path())
    shared.add_options(parser, *shared.SET_UP)
    shared.add(parser, shared.VERBOSE)


def serve(args: argparse.Namespace) -> int:
    """Serves until stdin is closed. Raises UserError for a set-up that cannot be used."""
    if not args.root.is_dir():
        raise UsageError(f"--root {args.root}: expected a folder", "name the one that holds the pictures")
    with shared.extra("mcp"):
        from agentic_iqa_local.serve.mcp_server import Pictures, run
    from agentic_iqa_local.devices import choose_device
    from agentic_iqa_local.serve.asks import SetUp
    from agentic_iqa_local.services import Services

    settings = shared.chosen_settings(args)
    shared.check_models(settings, "agent")
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
