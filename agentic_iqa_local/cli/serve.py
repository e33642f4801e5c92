"""Serves assessments over HTTP: a page for people and an API for programs. The models are loaded once; nothing
leaves this machine.

examples:
  {serve}
  {serve} --gpu 0 --config qwen2_5_vl_7b --engine vllm --jobs 8
  AGENTIC_IQA_TOKEN=$(openssl rand -hex 24) {serve} --host 0.0.0.0 --allow-host iqa.example.org
  curl -F image=@photo.jpg http://127.0.0.1:8765/v1/assess

On anything but the loopback a token of 16 characters or more is needed, in $AGENTIC_IQA_TOKEN. Nothing that was sent
is kept, but batches are, until they are deleted. Exit status: 0 ended by Ctrl-C or a polite kill, 2 wrong usage or a
model that cannot run.
"""

import argparse
import ipaddress
import os
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from agentic_iqa_local.cli import options as shared
from agentic_iqa_local.cli.command import Command, Parser, UsageError

STATE = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
SHORTEST_TOKEN = 16  # characters
PLACE = """
--host ADDRESS  address to listen on (127.0.0.1)
--queue N       requests that wait (default: 64)
--max-bytes N   bytes of a request (default: 134217728)
--batches DIR   where batches lie (agentic-iqa/batches below $XDG_STATE_HOME)
"""


def options(parser: Parser) -> None:
    place = parser.add_argument_group("where it listens, and its limits")
    place.add_argument("--port", type=int, default=8765, help="port; 0 takes a free one (default: 8765)")
    about = "a name that requests may be sent to, beside localhost; may be repeated"
    place.add_argument("--allow-host", action="append", default=[], metavar="NAME", help=about)
    shared.add(place, PLACE)
    parser.set_defaults(host="127.0.0.1", batches=STATE / "agentic-iqa" / "batches")
    how = parser.add_argument_group("how: with what, and where")
    shared.add_options(how, *shared.SET_UP, *shared.HOW, *shared.HOW_SURE)
    shared.add(how, shared.WORK + shared.VERBOSE)


def token_for(host: str) -> str | None:
    """$AGENTIC_IQA_TOKEN. Raises UsageError where one is needed, or is too short."""
    token, loopback = os.environ.get("AGENTIC_IQA_TOKEN") or None, host == "localhost"
    with suppress(ValueError):
        loopback = ipaddress.ip_address(host).is_loopback
    remedy = "type: export AGENTIC_IQA_TOKEN=$(openssl rand -hex 24)"
    if token is None and not loopback:
        raise UsageError(f"--host {host}: others can reach it, so a token is expected in $AGENTIC_IQA_TOKEN", remedy)
    if token is not None and (len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable()):
        raise UsageError(f"AGENTIC_IQA_TOKEN: expected {SHORTEST_TOKEN} plain characters or more", remedy)
    return token


def serve(args: argparse.Namespace) -> int:
    """Serves until it is ended. Raises UserError."""
    token = token_for(args.host)
    with shared.extra("serve"):
        from agentic_iqa_local.serve import app
    from agentic_iqa_local.batch.runner import Runner
    from agentic_iqa_local.devices import choose_device
    from agentic_iqa_local.serve.asks import Serving, SetUp
    from agentic_iqa_local.state import revised

    settings = shared.chosen_settings(args)
    if args.max_replan_iterations is not None:
        settings = revised(settings, max_replan_iterations=args.max_replan_iterations)
    set_up = SetUp(settings, args.pipeline or "agent")
    shared.check_models(settings, set_up.pipeline)
    args.batches.mkdir(mode=0o700, parents=True, exist_ok=True)
    hosts = ["*"] if token and not args.allow_host else ["localhost", "127.0.0.1", "[::1]", *args.allow_host]
    with app.listening(args.host, args.port) as address, TemporaryDirectory(prefix="agentic-iqa-") as uploads:
        runner = Runner(Serving(set_up), choose_device(args.gpu, args.cpu), jobs=args.jobs, timeout=args.timeout)
        limits = {"places": args.queue, "most_bytes": args.max_bytes, "token": token}
        service = app.Service(set_up, runner, args.batches, Path(uploads), **limits)
        app.serve(service, address, hosts, log_requests=args.verbose > 0)
    return 0


main = Command("serve", __doc__, options, serve, shared.read)
