"""The viewer on a port of this machine."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import socket
from collections.abc import Callable, Collection
from pathlib import Path

from waitress import create_server  # type: ignore[import-untyped]

from vime_otel.data.errors import UsageError, VimeOtelError

from .app import create_app

HOST = "127.0.0.1"
PORT = 8080


def serve(
    runs_root: Path,
    host: str = HOST,
    port: int = PORT,
    on_ready: Callable[[str], None] = lambda url: None,
    allowed_hosts: Collection[str] = (),
    insecure: bool = False,
) -> None:
    """Serve until interrupted; `on_ready` gets the URL once the port is open (0 picks a free one).

    Beyond loopback, which `insecure` allows, any IP address will do as the Host of a request, and this
    machine's name; other names are `allowed_hosts`. Raises VimeOtelError when the port can't be had.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        address = ipaddress.ip_address(_address_of(host, port, family))
        if not address.is_loopback and not insecure:
            raise UsageError(_why_ask(host or str(address), port or PORT))
        listening = socket.create_server((str(address), port), family=family)
    except (OSError, UnicodeError) as error:
        raise VimeOtelError(_why_not(error, host, port)) from error
    names = {_in_url(host), *allowed_hosts, *([] if address.is_loopback else [socket.gethostname()])}
    app = create_app(runs_root, names, any_address=not address.is_loopback)
    server = create_server(app, sockets=[listening])
    shown = _outward_address(family) if address.is_unspecified else host
    try:
        on_ready(f"http://{_in_url(shown)}:{listening.getsockname()[1]}")
        server.run()
    finally:
        server.close()


def _address_of(host: str, port: int, family: socket.AddressFamily) -> str:
    """The address to listen on for a host; raises OSError for an unknown name."""
    found = socket.getaddrinfo(host or None, port, family, socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return str(found[0][4][0])


def _outward_address(family: socket.AddressFamily) -> str:
    """The address under which this machine meets others, loopback where it meets none."""
    elsewhere, loopback = ("2001:db8::1", "::1") if family == socket.AF_INET6 else ("192.0.2.1", "127.0.0.1")
    # Connecting a datagram socket sends nothing: it only asks for the route.
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((elsewhere, 9))
        return str(probe.getsockname()[0])
    return loopback


def _in_url(host: str) -> str:
    """The host as a URL has it."""
    return f"[{host}]" if ":" in host else host


def _why_ask(host: str, port: int) -> str:
    return (
        f"{host} is beyond loopback, where whoever reaches the port sees the runs: add --insecure if that is meant;"
        f" better is `ssh -L {port}:127.0.0.1:{port} HOST` to a viewer on 127.0.0.1"
    )


def _why_not(error: OSError | UnicodeError, host: str, port: int) -> str:
    code, reason = (error.errno, error.strerror) if isinstance(error, OSError) else (None, "no host's name")
    if code == errno.EADDRINUSE:
        return f"port {port} on {host} is in use; give another with --port, or --port 0 for any free one"
    return f"can't serve on {host}:{port} ({reason or error}); give another with --host and --port"
