"""What keeps other web pages and other hosts away from the recordings."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection

from flask import Flask, Response, abort, request

LOOPBACK_HOSTS = frozenset({"localhost", "127.0.0.1", "[::1]"})
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^][:@/\s]+)(:\d+)?", re.IGNORECASE)

# d3-flame-graph puts its style sheet into the page with a script. The hash allows that one text
# and no other inline style; d3's own style changes go through the CSSOM, which needs no leave.
_D3_FLAME_GRAPH_STYLE = "'sha256-PjPkXjWPssRCMzB6p5SnF25xrwIH7ThbVHWlE+SG1DE='"

HEADERS = {
    "Content-Security-Policy": "; ".join(
        (
            "default-src 'self'",
            f"style-src 'self' {_D3_FLAME_GRAPH_STYLE}",
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
    """Refuse other hosts (403), which DNS rebinding would bring; send HEADERS with every answer.

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

    @app.after_request
    def add_headers(response: Response) -> Response:
        response.headers.update(HEADERS)
        return response


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True
