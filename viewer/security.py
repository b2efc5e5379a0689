"""What keeps other web pages and other hosts away from the recordings."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection
from urllib.parse import urlsplit

from flask import Flask, Response, abort, request

LOOPBACK_HOSTS = frozenset({"localhost", "127.0.0.1", "[::1]"})
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^][:@/\s]+)(:\d+)?", re.IGNORECASE)

HEADERS = {
    "Content-Security-Policy": "; ".join(
        (
            "default-src 'self'",
            "object-src 'none'",
            "base-uri 'none'",
            "form-action 'self'",
            "frame-ancestors 'none'",
        )
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    # No Cross-Origin-Opener-Policy: `same-origin` cuts the tie to the window that "Open in
    # Perfetto" opens, and the trace could not be handed over.
}


def protect(app: Flask, allowed_hosts: Collection[str], any_address: bool = False) -> None:
    """Refuse other hosts, which DNS rebinding would bring, and other sites' requests (403); send HEADERS always.

    `any_address` lets every IP address pass: rebinding needs a name.
    """
    allowed = LOOPBACK_HOSTS | {host.lower() for host in allowed_hosts}

    @app.before_request
    def check_host() -> None:
        host = request.headers.get("Host", "")
        match = _HOST.fullmatch(host)
        if not match or not (match[1].lower() in allowed or (any_address and _is_address(match[1]))):
            way_out = "by its IP address" if any_address else "as 127.0.0.1 or localhost"
            abort(
                403,
                f"this viewer does not answer to the host {host!r}; open it {way_out},"
                " or start it with --allow-host NAME",
            )

    @app.before_request
    def check_site() -> None:
        if _is_foreign():
            abort(403, "this viewer answers to its own pages only, not to those of another site")

    @app.after_request
    def add_headers(response: Response) -> Response:
        # A stand-alone page brings a policy of its own, which is stricter.
        response.headers.update(HEADERS)
        return response


def _is_foreign() -> bool:
    """Whether another site's page sent this: to read it or to change something, not to open it in a window."""
    origin = request.headers.get("Origin")
    if origin is not None and urlsplit(origin).netloc != request.headers.get("Host"):
        return True
    site = request.headers.get("Sec-Fetch-Site", "none")
    opened = request.headers.get("Sec-Fetch-Mode") == "navigate" and request.headers.get("Sec-Fetch-Dest") == "document"
    return site not in ("none", "same-origin") and not (opened and request.method == "GET")


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True
