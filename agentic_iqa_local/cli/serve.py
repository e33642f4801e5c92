"""The commands that answer until they are ended: serve over HTTP, mcp on stdin and stdout."""

import argparse
import ipaddress
import os
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from agentic_iqa_local.cli.command import like_ctrl_c
from agentic_iqa_local.cli.options import (
    STATE,
    UsageError,
    batch_of,
    check_set_up,
    chosen_settings,
    device_of,
)

if TYPE_CHECKING:
    from agentic_iqa_local.config import Settings


def token_for(host: str) -> str | None:
    """$AGENTIC_IQA_TOKEN. Raises UsageError where one is needed, or is too short."""
    token, loopback = os.environ.get("AGENTIC_IQA_TOKEN") or None, host == "localhost"
    with suppress(ValueError):
        loopback = ipaddress.ip_address(host).is_loopback
    remedy = "type: export AGENTIC_IQA_TOKEN=$(openssl rand -hex 24)"
    if token is None and not loopback:
        raise UsageError(
            f"--host {host}: others can reach it: expected a token in $AGENTIC_IQA_TOKEN", remedy
        )
    if token is not None and (len(token) < 16 or not token.isascii() or not token.isprintable()):
        raise UsageError("AGENTIC_IQA_TOKEN: expected 16 plain characters or more", remedy)
    return token


def serve(args: argparse.Namespace) -> None:
    """Serves until it is ended, by Ctrl-C or a polite kill, also while the model loads. Raises
    UserError."""
    token, settings = token_for(args.host), chosen_settings(args)
    with suppress(KeyboardInterrupt):
        _serve(args, settings, token)


def _serve(args: argparse.Namespace, settings: "Settings", token: str | None) -> None:
    from agentic_iqa_local.serve import app
    from agentic_iqa_local.serve.asks import ServiceWork, SetUp
    from agentic_iqa_local.serve.guard import LOOPBACK, listening

    set_up = SetUp(settings, args.pipeline or "agent")
    check_set_up(settings, set_up.pipeline)
    batches = args.batches or STATE / "agentic-iqa" / "batches"
    batches.mkdir(mode=0o700, parents=True, exist_ok=True)
    hosts = ["*"] if token else LOOPBACK
    with (
        listening(args.host, args.port) as address,
        TemporaryDirectory(prefix="agentic-iqa-") as uploads,
    ):
        runner = batch_of(args, ServiceWork(set_up), device_of(args))
        service = app.Service(set_up, runner, batches, Path(uploads), token=token)
        app.serve(service, address, hosts, log_requests=args.verbose > 0)


def mcp(args: argparse.Namespace) -> None:
    """Serves until stdin is closed. Raises UserError for a set-up that cannot be used."""
    root = Path(args.root)
    if not root.is_dir():
        raise UsageError(
            f"--root {root}: expected a folder", "name the one that holds the pictures"
        )
    settings = chosen_settings(args)
    from agentic_iqa_local.serve.asks import SetUp
    from agentic_iqa_local.serve.mcp_server import Pictures, run
    from agentic_iqa_local.services import Services

    check_set_up(settings, "agent")
    services = Services(settings, device_of(args))
    pictures = Pictures(root, SetUp(settings, "agent"), services)
    with like_ctrl_c(_stop):
        run(pictures)
    if pictures.turn.locked():  # nobody waits for its answer any more
        os._exit(0)
    services.close()


def _stop(*_: object) -> None:
    """Ends the process at once: its reader of stdin cannot be interrupted, and nothing is
    written."""
    os.write(2, b"stopped\n")
    os._exit(130)
