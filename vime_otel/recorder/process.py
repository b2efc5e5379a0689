"""What the engine process can tell of its host and of the API server that started it."""

from __future__ import annotations

import contextlib
import os
import socket
from dataclasses import dataclass

import psutil


@dataclass(frozen=True)
class ApiServer:
    """Where the parent process listens; `ports[0]` is the likeliest API port, none while it starts."""

    address: str | None
    ports: list[int]


def api_server(pid: int | None = None) -> ApiServer:
    """The API server that is this process's parent: EngineCore isn't told its port, the kernel knows it."""
    try:
        parent = psutil.Process(os.getppid() if pid is None else pid)
        named = _named_port(parent.cmdline())
    except (psutil.Error, OSError):
        return ApiServer(None, [])
    try:
        listening = [c.laddr for c in parent.net_connections("tcp") if c.status == psutil.CONN_LISTEN]
    except (psutil.Error, OSError):  # another user's process: its arguments are all there is
        return ApiServer(None, [named] if named else [])
    ports = sorted({place.port for place in listening}, key=lambda port: (port != named, port))
    address = next((place.ip for place in listening if place.port == ports[0]), None)
    return ApiServer(None if address in ("0.0.0.0", "::") else address, ports)


def _named_port(arguments: list[str]) -> int | None:
    for position, argument in enumerate(arguments):
        value = argument.partition("=")[2] if argument.startswith("--port=") else None
        if argument == "--port" and position + 1 < len(arguments):
            value = arguments[position + 1]
        if value and value.isdigit():
            return int(value)
    return None


def host_addresses() -> list[str]:
    """Every address of this host, loopback first."""
    found: list[str] = []
    with contextlib.suppress(OSError):
        for addresses in psutil.net_if_addrs().values():
            found += [a.address.partition("%")[0] for a in addresses if a.family in (socket.AF_INET, socket.AF_INET6)]
    return sorted(set(found) | {"127.0.0.1"}, key=lambda a: (not a.startswith("127.") and a != "::1", ":" in a, a))
