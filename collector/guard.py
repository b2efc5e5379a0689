"""What every HTTP request passes: who may come in, and that every error has a body which its client reads."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from . import control
from .addresses import names_loopback
from .auth import Token
from .counts import HTTP, Counts
from .faults import log_fault, log_refusal
from .health import OPEN_PATHS
from .otlp import otlp_errors, otlp_http
from .recordings.refused import RefusedPolls

_log = logging.getLogger(__name__)


def guard(token: Token, loopback_only: bool, refused: RefusedPolls, counts: Counts) -> Any:
    """Ask for the token, and give every error the body that its route's clients read.

    `loopback_only` refuses other names in Host: a browser's page could reach us under a name of its own.
    """

    @web.middleware
    async def guarded(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        if loopback_only and not names_loopback(request.headers.get("Host", "localhost")):
            return _error(request, 403, "this collector listens on loopback: call it 127.0.0.1 or localhost")
        if request.path not in OPEN_PATHS and not token.admits(request.headers.get("Authorization")):
            if request.path == control.POLL:
                refused.note(request.remote or "?")
            if request.path in otlp_http.PATHS:
                signal = otlp_http.PATHS[request.path]
                counts.refused[signal.key, HTTP, otlp_errors.UNAUTHORIZED.reason] += 1
            log_refusal(
                _log, "a request over http", otlp_errors.UNAUTHORIZED.reason, f"{request.path} from {request.remote}"
            )
            response = _error(request, 401, token.refusal)
            response.headers["WWW-Authenticate"] = "Bearer"
            return response
        try:
            return await handler(request)
        except web.HTTPMethodNotAllowed as error:
            allowed = ", ".join(sorted(error.allowed_methods))
            response = _error(request, 405, f"{request.path} takes {allowed}, not {request.method}")
            response.headers["Allow"] = allowed
            return response
        except web.HTTPNotFound:
            return _error(request, 404, f"there is nothing at {request.path:.100}; docs/formats.md lists the routes")
        except web.HTTPException as error:
            return _error(request, error.status, error.reason)
        except Exception as error:  # noqa: BLE001 - no request may end the process
            log_fault(_log, f"{request.method} {request.path}", error)
            return _error(request, 500, f"a fault of the collector: {type(error).__name__}")

    return guarded


def _error(request: web.Request, status: int, message: str) -> web.Response:
    if request.path in otlp_http.PATHS:
        return otlp_http.error_response(request, status, message)
    return control.error_response(status, message)
