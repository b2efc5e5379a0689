"""OTLP over HTTP: POST /v1/traces and /v1/logs, protobuf and JSON, plain and gzip."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web
from google.protobuf.message import DecodeError
from google.rpc.code_pb2 import INVALID_ARGUMENT, PERMISSION_DENIED, RESOURCE_EXHAUSTED, UNAUTHENTICATED, UNAVAILABLE
from google.rpc.status_pb2 import Status

from . import otlp_json
from .http_body import BodyTooLarge, BodyUnreadable, UnknownEncoding, read_body
from .intake import Intake
from .signals import ALL, MAX_REQUEST_BYTES, Signal

_log = logging.getLogger(__name__)

_PROTOBUF = "application/x-protobuf"
_JSON = "application/json"
_STATUS_CODES = {
    400: INVALID_ARGUMENT,
    401: UNAUTHENTICATED,
    403: PERMISSION_DENIED,
    413: RESOURCE_EXHAUSTED,
    503: UNAVAILABLE,
}
PATHS = frozenset(signal.path for signal in ALL)


def add_routes(app: web.Application, intake: Intake) -> None:
    """Serve both signals."""
    for signal in ALL:
        app.router.add_post(signal.path, _handler(signal, intake))


def error_response(request: web.Request, status: int, message: str) -> web.Response:
    """An error as a google.rpc.Status in the request's content type; JSON where it has none of ours."""
    body = Status(code=_STATUS_CODES.get(status, INVALID_ARGUMENT), message=message)
    return _response(status, body, as_json=request.content_type != _PROTOBUF)


def _handler(signal: Signal, intake: Intake) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def handle(request: web.Request) -> web.Response:
        if request.content_type not in (_PROTOBUF, _JSON):
            message = f"Content-Type {request.content_type!r} is not supported; send {_PROTOBUF} or {_JSON}"
            return error_response(request, 415, message)
        as_json = request.content_type == _JSON
        try:
            content = await read_body(request, MAX_REQUEST_BYTES)
            message = otlp_json.decode(signal, content) if as_json else _parse(signal, content)
            outcome = intake.take(signal, message, None if as_json else content)
        except UnknownEncoding as error:
            return error_response(request, 415, str(error))
        except BodyTooLarge as error:
            return error_response(request, 413, str(error))
        except (BodyUnreadable, ValueError) as error:
            return error_response(request, 400, str(error))
        except OSError as error:
            _log.error("what came can't be written, so a request was refused: %s", error)
            return error_response(request, 503, f"the collector can't write what came: {error.strerror or error}")
        return _response(200, signal.response(outcome.rejected, outcome.message), as_json)

    return handle


def _parse(signal: Signal, content: bytes) -> Any:
    try:
        return signal.request_type.FromString(content)
    except DecodeError as error:
        raise ValueError(f"the body is not an OTLP request: {error}") from error


def _response(status: int, message: Any, as_json: bool) -> web.Response:
    if as_json:
        return web.Response(status=status, body=otlp_json.encode(message), content_type=_JSON)
    return web.Response(status=status, body=message.SerializeToString(), content_type=_PROTOBUF)
