"""TCP ports of this machine for servers that are told theirs."""

from __future__ import annotations

import socket

_reserved: list[socket.socket] = []


def free_port() -> int:
    """A TCP port of 127.0.0.1 that is free now and stays reserved while this process runs.

    A socket stays bound to it: the system gives the port to nobody who asks for any, and a connection to it is refused,
    while a server that names it gets it, since both set SO_REUSEADDR.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    _reserved.append(held)
    return int(held.getsockname()[1])


def is_free(port: int) -> bool:
    """Whether a server can listen on this TCP port of 127.0.0.1 now."""
    try:
        with socket.create_server(("127.0.0.1", port)):
            return True
    except OSError:
        return False
