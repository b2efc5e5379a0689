"""The viewer on a port of this machine."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Collection
from pathlib import Path

from waitress import create_server  # type: ignore[import-untyped]

from vime_otel.data.errors import VimeOtelError

from .app import create_app

HOST = "127.0.0.1"
PORT = 8080


def serve(
    runs_root: Path,
    host: str = HOST,
    port: int = PORT,
    on_ready: Callable[[str], None] = lambda url: None,
    allowed_hosts: Collection[str] = (),
) -> None:
    """Serve until interrupted; `on_ready` gets the URL once the port is open (0 picks a free one).

    Raises VimeOtelError when the port can't be had.
    """
    app = create_app(runs_root, [_in_url(host), *allowed_hosts])
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family)
    except OSError as error:
        raise VimeOtelError(_why_not(error, host, port)) from error
    server = create_server(app, sockets=[listening])
    try:
        on_ready(f"http://{_in_url(host)}:{listening.getsockname()[1]}")
        server.run()
    finally:
        server.close()


def _in_url(host: str) -> str:
    """The host as a URL has it."""
    return f"[{host}]" if ":" in host else host


def _why_not(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is in use; give another with --port, or --port 0 for any free one"
    return f"can't serve on {host}:{port} ({error.strerror or error}); give another with --host and --port"
