"""OTLP over HTTP: POST /v1/traces, /v1/logs and /v1/metrics, protobuf and JSON, plain, gzip and deflate."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web
from google.rpc.code_pb2 import INVALID_ARGUMENT, NOT_FOUND, PERMISSION_DENIED, UNAUTHENTICATED, UNIMPLEMENTED
from google.rpc.status_pb2 import Status

from ..counts import HTTP
from ..journal.intake import Intake, Malformed
from . import otlp_errors, otlp_json
from .door import Door, Refused
from .http_body import read_body
from .in_time import READ_SECONDS, in_time
from .limits import RETRY_SECONDS, Budget, Room
from .signals import ANSWERED, MAX_REQUEST_BYTES, Signal

_PROTOBUF = "application/x-protobuf"
_JSON = "application/json"
_STATUS_CODES = {401: UNAUTHENTICATED, 403: PERMISSION_DENIED, 404: NOT_FOUND, 405: UNIMPLEMENTED}
_LARGE_JSON_BYTES = 64 * 1024
"""From here on JSON is read on another thread: it takes a hundred times as long as protobuf."""

PATHS = {signal.path: signal for signal in ANSWERED}


def add_routes(app: web.Application, intake: Intake, budget: Budget) -> None:
    """Serve all signals."""
    door = Door(intake, budget, HTTP)
    for signal in ANSWERED:
        app.router.add_post(signal.path, _handler(signal, door))


def error_response(request: web.Request, status: int, message: str) -> web.Response:
    """An error as a google.rpc.Status in the request's content type; JSON where it has none of ours."""
    body = Status(code=_STATUS_CODES.get(status, INVALID_ARGUMENT), message=message)
    return _response(status, body, as_json=request.content_type != _PROTOBUF)


def _handler(signal: Signal, door: Door) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def handle(request: web.Request) -> web.Response:
        as_json = request.content_type != _PROTOBUF

        async def read(room: Room) -> bytes:
            if request.content_type not in (_PROTOBUF, _JSON):
                message = f"Content-Type {request.content_type!r} is not supported; send {_PROTOBUF} or {_JSON}"
                raise Refused(otlp_errors.UNKNOWN_ENCODING, message)
            with in_time(READ_SECONDS):
                content = await read_body(request, MAX_REQUEST_BYTES, room)
            return await _as_protobuf(signal, content) if as_json else content

        try:
            outcome = await door.take(signal, read)
        except Refused as refused:
            response = _response(refused.error.http_status, refused.error.status(str(refused)), as_json)
            if refused.error.retryable:
                response.headers["Retry-After"] = str(RETRY_SECONDS)
            return response
        return _response(200, signal.response(outcome.rejected, outcome.message), as_json)

    return handle


async def _as_protobuf(signal: Signal, content: bytes) -> bytes:
    def convert() -> bytes:
        converted: bytes = otlp_json.decode(signal, content).SerializeToString()
        return converted

    try:
        return await asyncio.to_thread(convert) if len(content) > _LARGE_JSON_BYTES else convert()
    except ValueError as error:
        raise Malformed(str(error)) from error


def _response(status: int, message: Any, as_json: bool) -> web.Response:
    if as_json:
        return web.Response(status=status, body=otlp_json.encode(message), content_type=_JSON)
    return web.Response(status=status, body=message.SerializeToString(), content_type=_PROTOBUF)
