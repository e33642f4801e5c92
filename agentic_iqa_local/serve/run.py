"""The service from its start to its end."""

import socket
import sys
import tempfile
from contextlib import closing, suppress
from pathlib import Path

import uvicorn

from agentic_iqa_local.batch.runner import Runner
from agentic_iqa_local.errors import UserError, one_line
from agentic_iqa_local.serve.app import Service, make_app
from agentic_iqa_local.serve.asks import SetUp
from agentic_iqa_local.serve.batches import Batches
from agentic_iqa_local.serve.queue import Queue

STOPS_WITHIN = 5  # seconds
OWN_NAMES = ["localhost", "127.0.0.1", "[::1]"]


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens. Raises UserError for an address of another machine and a port that is taken."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address, family=family, backlog=2048)
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        remedy = "end the program that listens there, or choose another --host or --port"
        wanted = f"--host {host} --port {port}: expected a free address of this machine"
        raise UserError(f"{wanted}, got {why}", remedy) from error


def serve(
    set_up: SetUp,
    runner: Runner,
    address: socket.socket,
    *,
    batches: Path,
    token: str | None,
    allow_hosts: list[str],
    places: int,
    most_bytes: int,
    log_requests: bool,
) -> None:
    """Serves until a signal. Raises VLMError for a model that cannot be loaded."""
    with closing(runner), tempfile.TemporaryDirectory(prefix="agentic-iqa-serve-") as uploads:
        runner.load()
        queue = Queue(runner, places)
        service = Service(set_up, queue, Batches(batches, queue, set_up), Path(uploads), most_bytes, token)
        hosts = ["*"] if token and not allow_hosts else [*OWN_NAMES, *allow_hosts]
        config = uvicorn.Config(
            make_app(service, hosts),
            log_config=None,
            access_log=log_requests,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=STOPS_WITHIN,
            timeout_keep_alive=15,
            ws="none",
        )
        host, port = address.getsockname()[:2]
        host = f"[{host}]" if ":" in host else host
        sys.stderr.write(one_line(f"http://{host}:{port}: {set_up.model} on {runner.device}") + "\n")
        with suppress(KeyboardInterrupt):  # uvicorn raises the signal again that ended it
            uvicorn.Server(config).run([address])
