"""The service from its start to its end."""

import argparse
import contextlib
import errno
import socket
import sys
import threading
from pathlib import Path
from typing import Any

import uvicorn

from agentic_iqa_local.config import Settings
from agentic_iqa_local.devices import choose_device
from agentic_iqa_local.errors import UserError, one_line
from agentic_iqa_local.files import ROOT
from agentic_iqa_local.offline.store import models_root
from agentic_iqa_local.serve.app import SetUp, make_app
from agentic_iqa_local.serve.asks import Answer, Ask, Serving
from agentic_iqa_local.serve.batches import Batches
from agentic_iqa_local.serve.connections import Connection
from agentic_iqa_local.serve.engine import Engine, Witness
from agentic_iqa_local.serve.fields import Defaults
from agentic_iqa_local.serve.guard import Guard, Held
from agentic_iqa_local.serve.keeping import Kept
from agentic_iqa_local.serve.metrics import Metrics
from agentic_iqa_local.serve.pending import failure_code
from agentic_iqa_local.vlm_client import VLMError

STOPS_WITHIN = 5  # seconds
BODIES = 8  # of the largest size, that all requests together may hold by default


class _Server(uvicorn.Server):
    """Says where it listens, and ends with a model that cannot be loaded."""

    def __init__(self, config: Any, engine: Engine, what: str, small: bool):
        super().__init__(config)
        self.engine, self.what, self.small, self.failure = engine, what, small, ""

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        for listening in self.servers:
            for one in listening.sockets:
                host, port = one.getsockname()[:2]
                host = f"[{host}]" if ":" in host else host
                sys.stderr.write(one_line(f"http://{host}:{port}: {self.what}") + "\n")
        if self.small:
            line = "the embedded model is small: its answers are coarse; --config names a larger one"
            sys.stderr.write(line + "\n")
        sys.stderr.flush()

    def serve_until_stopped(self, sockets: list[socket.socket]) -> None:
        """Begins the engine, and ends it when a signal comes. Raises VLMError for a model that cannot be
        loaded."""
        self.engine.start()
        threading.Thread(target=self.watch, daemon=True).start()
        try:
            self.run(sockets)
        except KeyboardInterrupt:
            pass
        except SystemExit:
            if not self.should_exit:  # uvicorn could not begin
                raise
        finally:
            self.engine.stop()
        if self.failure:
            raise VLMError(self.failure)

    def watch(self) -> None:
        self.engine.started.wait()
        if self.engine.state == "failing":
            self.failure, self.should_exit = self.engine.why, True

    def handle_exit(self, sig: int, frame: Any) -> None:
        threading.Thread(target=self.engine.stop, daemon=True).start()
        super().handle_exit(sig, frame)


def run(
    args: argparse.Namespace,
    settings: Settings,
    defaults: Defaults,
    token: str | None,
    temporary: Path,
    spool: Path,
    kept: Kept | None,
) -> int:
    """Serves until a signal; the exit status. Raises VLMError for a model that cannot be loaded, UserError
    for an address that cannot be listened on, and where another service has the folder of batches."""
    sockets = listening(args.host, args.port)
    with contextlib.ExitStack() as closing:
        for one in sockets:
            closing.enter_context(one)
        return _serve(sockets, args, settings, defaults, token, temporary, spool, kept)


def listening(host: str, port: int) -> list[socket.socket]:
    """A socket that listens for each address of `host`. Raises UserError."""
    sockets: list[socket.socket] = []
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, address in dict.fromkeys((family, address) for family, _, _, _, address in found):
            sockets.append(socket.create_server(address, family=family, backlog=2048))
    except (OSError, UnicodeError) as error:
        for one in sockets:
            one.close()
        if getattr(error, "errno", None) == errno.EADDRINUSE:
            why = f"--port {port}: another program listens there already"
            raise UserError(why, "end it, or choose another with --port") from error
        why = getattr(error, "strerror", None) or str(error)
        raise UserError(
            f"--host {host} --port {port}: expected an address of this machine to listen on, got {why}",
            "choose another --host or --port",
        ) from error
    return sockets


def _serve(
    sockets: list[socket.socket],
    args: argparse.Namespace,
    settings: Settings,
    defaults: Defaults,
    token: str | None,
    temporary: Path,
    spool: Path,
    kept: Kept | None,
) -> int:
    device = choose_device(args.gpu, args.cpu)
    ours = (temporary, spool.absolute(), models_root().absolute(), ROOT, Path(sys.prefix))
    work = Serving(settings, defaults.pipelines, ours)
    engine = Engine(work, device, jobs=args.jobs, timeout=args.timeout, places=args.queue)
    batches = Batches(spool, settings, defaults, args.batches_bytes)
    metrics, held = Metrics(), Held(args.max_bytes_held or BODIES * args.max_bytes, engine.retry_after)
    engine.background, engine.witness = batches, _witness(engine, metrics, kept)
    backend = settings.role("summarizer").backend
    model = settings.folder(backend).name
    set_up = SetUp(
        settings,
        engine,
        batches,
        temporary,
        defaults,
        model=model,
        small=model == "embedded",
        backend=backend.partition(".")[0],
        bytes=args.max_bytes,
        pictures=args.max_pictures,
        token_required=token is not None,
        metrics=metrics,
        held=held,
    )
    hosts = None if token and not args.allow_host else [name.lower() for name in args.allow_host]
    guard = Guard(make_app(set_up), token, hosts, args.max_bytes, held, metrics.requests)
    server = _Server(_configured(args, guard), engine, f"{model} on {device}", set_up.small)
    try:
        server.serve_until_stopped(sockets)
    finally:
        batches.close()
    return 0


def _witness(engine: Engine, metrics: Metrics, kept: Kept | None) -> Witness:
    def witness(ask: Ask, answer: Answer, seconds: float, of_batch: bool) -> None:
        metrics.answered(ask, answer, seconds, of_batch, failure_code(answer, engine.state))
        if kept:
            kept.keep(ask, answer)

    return witness


def _configured(args: argparse.Namespace, guard: Guard) -> uvicorn.Config:
    return uvicorn.Config(
        guard,
        log_config=None,
        access_log=False,
        server_header=False,
        root_path=args.root_path,
        proxy_headers=False,
        timeout_graceful_shutdown=STOPS_WITHIN,
        http=Connection,
        h11_max_incomplete_event_size=64 * 1024,
        lifespan="off",
        ws="none",
        timeout_keep_alive=15,
    )
