"""Hosts and their addresses, as seen from this machine."""

from __future__ import annotations

import ipaddress
import socket
from functools import lru_cache
from urllib.parse import urlsplit, urlunsplit

import psutil

_DEFAULT_PORTS = {"http": 80, "https": 443}


def host_and_port(url: str) -> tuple[str, int]:
    """Where a URL points; the scheme's port where it names none."""
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or _DEFAULT_PORTS.get(parts.scheme, 80)


def with_host(url: str, host: str) -> str:
    """The URL on another host."""
    parts = urlsplit(url)
    shown = f"[{host}]" if ":" in host else host
    return urlunsplit(parts._replace(netloc=f"{shown}:{parts.port}" if parts.port else shown))


def server_url(url: str) -> str:
    """A server's URL however it was spelt: no trailing slash, no `/v1`, `http://` before a bare host:port."""
    full = url if "://" in url else f"http://{url}"
    return full.rstrip("/").removesuffix("/v1").rstrip("/")


def worker_url(url: str) -> str:
    """The one spelling of a worker's URL: as `server_url`, in lower case, `localhost` as 127.0.0.1."""
    parts = urlsplit(server_url(url))
    user, at, place = parts.netloc.rpartition("@")
    host, colon, port = place.lower().partition(":")
    place = f"{'127.0.0.1' if host == 'localhost' else host}{colon}{port}"
    return urlunsplit(parts._replace(netloc=f"{user}{at}{place}"))


def without_rank(url: str) -> str:
    """`http://h:1@0` is data-parallel rank 0 of the server `http://h:1`; spelt as by `worker_url`."""
    head, at, rank = url.rpartition("@")
    return worker_url(head if at and rank.isdigit() else url)


def is_loopback(host: str) -> bool:
    """Whether the host is written as loopback; names but `localhost` are not looked up."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@lru_cache(maxsize=256)
def names_loopback(authority: str) -> bool:
    """Whether a Host header's `host[:port]` is written as loopback."""
    try:
        return is_loopback(urlsplit(f"//{authority}").hostname or "")
    except ValueError:
        return False


def addresses_of(host: str) -> frozenset[str]:
    """The addresses behind a host: of a name by DNS (this may block), of loopback all those of this machine.

    Empty where the name is unknown.
    """
    try:
        found = {str(entry[4][0]).partition("%")[0] for entry in socket.getaddrinfo(host, None)}
    except (OSError, UnicodeError):
        return frozenset()
    return frozenset(found | _own() if any(is_loopback(address) for address in found) else found)


def is_this_machine(host: str) -> bool:
    """Whether one of the host's addresses is one of ours, or all of them (0.0.0.0); may block on DNS."""
    return _is_unspecified(host) or bool(addresses_of(host) & _own())


def _is_unspecified(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def _own() -> set[str]:
    interfaces = psutil.net_if_addrs().values()
    return {entry.address.partition("%")[0] for interface in interfaces for entry in interface}
