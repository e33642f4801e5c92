"""Serves assessments over HTTP: a page for people and an API for programs. Models are loaded once; nothing
leaves this machine.

examples:
  {serve}
  {serve} --gpu 0 --config qwen2_5_vl_7b --engine vllm --jobs 8
  AGENTIC_IQA_TOKEN=$(openssl rand -hex 24) {serve} --host 0.0.0.0 --allow-host iqa.example.org
  curl -F image=@photo.jpg http://127.0.0.1:8765/v1/assess

On anything but the loopback a token of 16 characters or more is needed, in $AGENTIC_IQA_TOKEN. Nothing that
was sent is kept unless --keep DIR is given; batches keep their rows until they are deleted. Exit status: 0
ended by Ctrl-C or a polite kill, 2 wrong usage or a model that cannot run.
"""

import argparse
import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from agentic_iqa_local.cli.command import Parser, UsageError, exit_status
from agentic_iqa_local.cli.console import safe_streams, start_logging
from agentic_iqa_local.cli.options import (
    HOW,
    HOW_SURE,
    SET_UP,
    WORK,
    add,
    add_options,
    check_models,
    check_options,
    chosen_settings,
)
from agentic_iqa_local.files import command

if TYPE_CHECKING:
    from agentic_iqa_local.config import Settings
    from agentic_iqa_local.serve.fields import Defaults
    from agentic_iqa_local.serve.keeping import Kept

MEBI = 2**20


@safe_streams()
def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    start_logging(args.verbose)
    return exit_status(lambda: serve(args), interrupted="interrupted before it listened")


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = Parser(
        prog=command("serve"),
        description=(__doc__ or "").replace("{serve}", command("serve")),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _place(parser)
    add_options(parser.add_argument_group("where and with what"), *SET_UP)
    how = parser.add_argument_group("how")
    add_options(how, *HOW, *HOW_SURE)
    add(how, WORK)
    _limits(parser)
    parser.add_argument("-v", "--verbose", action="count", default=0, help="log each request")
    args = parser.parse_args(argv)
    for name in (
        "jobs",
        "queue",
        "max_bytes",
        "max_bytes_held",
        "max_pixels",
        "max_pictures",
        "batches_bytes",
    ):
        if getattr(args, name) is not None and getattr(args, name) < 1:
            parser.error(f"--{name.replace('_', '-')}: expected 1 or more")
    check_options(parser, args)
    if not 0 <= args.port <= 65535:
        parser.error("--port: expected 0 to 65535")
    if args.max_bytes_held is not None and args.max_bytes_held < args.max_bytes:
        parser.error(f"--max-bytes-held: expected at least --max-bytes, {args.max_bytes}")
    return args


def _place(parser: Parser) -> None:
    place = parser.add_argument_group("where it listens")
    place.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    place.add_argument("--port", type=int, default=8765, help="port; 0 takes a free one (default: 8765)")
    place.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="a name that requests may be sent to, beside this machine's own; may be repeated",
    )
    place.add_argument("--root-path", default="", metavar="PATH", help="where a proxy has put the service")


def _limits(parser: Parser) -> None:
    limits = parser.add_argument_group("limits, and what is kept")
    limits.add_argument("--queue", type=int, default=64, metavar="N", help="requests that wait (default: 64)")
    limits.add_argument(
        "--max-bytes", type=int, default=128 * MEBI, metavar="N", help="of a request (default: 128 MiB)"
    )
    limits.add_argument(
        "--max-bytes-held",
        type=int,
        metavar="N",
        help="of all requests that are not answered yet (default: 8 times --max-bytes)",
    )
    limits.add_argument("--max-pixels", type=int, metavar="N", help="of a picture (default: configured)")
    limits.add_argument(
        "--max-pictures", type=int, default=1000, metavar="N", help="in a request (default: 1000)"
    )
    limits.add_argument("--keep", type=Path, metavar="DIR", help="keep every picture, row and comparison")
    limits.add_argument(
        "--batches",
        type=Path,
        metavar="DIR",
        help="where submitted batches lie (default: agentic-iqa/batches below $XDG_STATE_HOME)",
    )
    limits.add_argument(
        "--batches-bytes", type=int, default=10 * 1024 * MEBI, metavar="N", help="of all (default: 10 GiB)"
    )


def token_for(host: str) -> str | None:
    """$AGENTIC_IQA_TOKEN. Raises UsageError where one is needed, or is too short."""
    from agentic_iqa_local.serve.guard import SHORTEST_TOKEN, is_loopback

    token = os.environ.get("AGENTIC_IQA_TOKEN") or None
    remedy = "set it to what `openssl rand -hex 24` prints"
    if token is None and not is_loopback(host):
        raise UsageError(f"--host {host}: expected a token in $AGENTIC_IQA_TOKEN beyond the loopback", remedy)
    if token is not None and (len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable()):
        raise UsageError(f"AGENTIC_IQA_TOKEN: expected {SHORTEST_TOKEN} plain characters or more", remedy)
    return token


def batches_folder(args: argparse.Namespace) -> Path:
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return args.batches or Path(state) / "agentic-iqa" / "batches"


def pipelines_here(args: argparse.Namespace, settings: "Settings") -> "Defaults":
    """What requests may ask for. Raises UsageError where the models of --pipeline (agent) are not here; where
    a server has them, it tells itself."""
    from agentic_iqa_local.serve.fields import Defaults

    wanted, here = args.pipeline or "agent", []
    for name in ("agent", "letters"):
        try:
            check_models(settings, name)
            here.append(name)
        except UsageError:
            if name == wanted:
                raise
    return Defaults(wanted, tuple(here), args.max_replan_iterations)


def serve(args: argparse.Namespace) -> int:
    """Serves until it is ended. Raises UserError."""
    try:
        import fastapi  # noqa: F401
        import python_multipart  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise UsageError(
            f"serve: expected the package {error.name}", "pip install 'agentic_iqa_local[serve]'"
        ) from error
    token = token_for(args.host)
    settings = chosen_settings(args)
    if args.max_pixels:
        from agentic_iqa_local.state import revised

        settings = revised(settings, images=revised(settings.images, max_pixels=args.max_pixels))
    defaults = pipelines_here(args, settings)
    from agentic_iqa_local.serve.running import run

    with contextlib.ExitStack() as files:
        temporary = Path(files.enter_context(tempfile.TemporaryDirectory(prefix="agentic-iqa-serve-")))
        try:
            if args.keep:
                args.keep.mkdir(mode=0o700, parents=True, exist_ok=True)
            batches_folder(args).mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            why = f"{error.filename}: expected a folder that can be made, got {error.strerror}"
            raise UsageError(why, "choose another --keep or --batches") from error
        kept = files.enter_context(kept_in(args.keep)) if args.keep else None
        return run(args, settings, defaults, token, temporary, batches_folder(args), kept)


@contextlib.contextmanager
def kept_in(folder: Path) -> "Iterator[Kept]":
    """What is kept in a folder. Raises UsageError where it cannot be written, or another service does."""
    from agentic_iqa_local.batch.rows import RowsError
    from agentic_iqa_local.serve.keeping import Kept

    try:
        kept = Kept(folder)
    except RowsError as error:
        raise UsageError(error.message, "choose another --keep") from error
    with contextlib.closing(kept):
        yield kept
