"""The token that a viewer beyond loopback asks for: a link brings it once, a cookie keeps it."""

from __future__ import annotations

import hashlib
import hmac
from urllib.parse import parse_qsl, urlencode

from flask import Flask, abort, make_response, redirect, request
from werkzeug.wrappers import Response

COOKIE = "vime_otel_view"
QUERY = "token"
_DAYS = 30


def ask_for(app: Flask, token: str) -> None:
    """Answer only requests that bring the token: as `?token=`, as a cookie, or as a bearer. No token, no asking."""
    if not token:
        return
    # The cookie is not the token: who reads it can't open the link elsewhere.
    cookie = hmac.new(token.encode(), b"vime-otel viewer", hashlib.sha256).hexdigest()

    @app.before_request
    def check_token() -> Response | None:
        brought = request.args.get(QUERY)
        if brought is not None and _same(brought, token):
            return _kept()
        bearer = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if _same(request.cookies.get(COOKIE, ""), cookie) or _same(bearer, token):
            return None
        abort(
            401,
            "this viewer asks for a token: open the link that `vime-otel view` printed where it runs, or add"
            f" ?{QUERY}= and the value of VIME_OTEL_VIEW_TOKEN to this address",
        )

    def _kept() -> Response:
        rest = [pair for pair in parse_qsl(request.query_string.decode("ascii", "replace")) if pair[0] != QUERY]
        path = request.script_root + request.path
        answer = make_response(redirect(path + (f"?{urlencode(rest)}" if rest else "")))
        answer.set_cookie(
            COOKIE,
            cookie,
            max_age=_DAYS * 86400,
            httponly=True,
            samesite="Lax",
            secure=request.is_secure,
            path=request.script_root or "/",
        )
        answer.headers["Cache-Control"] = "no-store"
        return answer


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode())
