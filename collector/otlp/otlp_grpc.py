"""OTLP over gRPC: the services of traces, logs and metrics, over the same consumer as HTTP."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

from ..auth import Token
from ..counts import GRPC
from ..journal.intake import Intake
from . import otlp_errors
from .door import Door, Refused
from .http_body import BodyTooLarge, BodyUnreadable
from .in_time import READ_SECONDS, in_time
from .inflate import GZIP, Inflation, Unreadable
from .limits import Budget, Room
from .signals import ANSWERED, MAX_REQUEST_BYTES, Signal

_READING_BYTES = 16 * 1024 * 1024
"""Set aside for a message whose length nobody knows before it is there: so many are read at a time as fit."""

_GZIP = b"\x1f\x8b"
"""How gzip begins. No protobuf message does: it would be a field of wire type 7."""

_CODES = {code.value[0]: code for code in grpc.StatusCode}
_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
    ("grpc.http2.max_frame_size", 1024 * 1024),
    ("grpc.so_reuseport", 0),
    # Else a connection that waits for its turn fills windows of megabytes.
    ("grpc.http2.bdp_probe", 0),
    # Inflated here instead, where it ends at the bound.
    ("grpc.per_message_decompression", 0),
    ("grpc.compression_enabled_algorithms_bitset", 0b101),
    # Clients may ping as often as they like: proxies on the way forget quiet connections.
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 1000),
    ("grpc.http2.max_ping_strikes", 0),
)


def make_server(intake: Intake, budget: Budget, token: Token) -> Any:
    """A grpc.aio server with all services, not yet bound to a port."""
    server = grpc.aio.server(options=_OPTIONS)
    door = Door(intake, budget, GRPC)
    # Requests stay bytes, so that the journal can take them as they came; and they are read when there is room,
    # which the wire, where streams of requests look the same, allows.
    server.add_generic_rpc_handlers(
        [
            grpc.method_handlers_generic_handler(
                signal.grpc_service,
                {
                    "Export": grpc.stream_unary_rpc_method_handler(
                        _handler(signal, door, token),
                        response_serializer=signal.response_type.SerializeToString,
                    )
                },
            )
            for signal in ANSWERED
        ]
    )
    return server


def _handler(signal: Signal, door: Door, token: Token) -> Callable[[Any, Any], Awaitable[Any]]:
    async def export(_: Any, context: Any) -> Any:
        async def read(room: Room) -> bytes:
            if not token.admits(None) and not token.admits(_authorization(context)):
                raise Refused(otlp_errors.UNAUTHORIZED, token.refusal)
            return await _read(context, room)

        try:
            outcome = await door.take(signal, read)
        except Refused as refused:
            return _refuse(context, refused)
        return signal.response(outcome.rejected, outcome.message)

    return export


def _authorization(context: Any) -> Any:
    return dict(context.invocation_metadata() or ()).get("authorization")


async def _read(context: Any, room: Room) -> bytes:
    await room.take(_READING_BYTES)
    with in_time(READ_SECONDS):
        content = await context.read()
    if content is grpc.aio.EOF:
        raise BodyUnreadable("the call has no message")
    if content.startswith(_GZIP):
        return await _inflated(content, room)
    await room.take(len(content))
    return bytes(content)


async def _inflated(content: bytes, room: Room) -> bytes:
    inflation, inflated = Inflation(GZIP), bytearray()
    try:
        for piece in inflation.feed(content):
            inflated += piece
            if len(inflated) > MAX_REQUEST_BYTES:
                raise BodyTooLarge(f"the message inflates to more than {MAX_REQUEST_BYTES} bytes")
            await room.take(len(content) + len(inflated))
        inflation.finish()
    except Unreadable as error:
        raise BodyUnreadable(f"the message is {error}") from error
    return bytes(inflated)


def _refuse(context: Any, refused: Refused) -> None:
    """End a call with an error; gRPC sends no response message then.

    `context.abort` would do it by an exception, whose cycles keep gRPC's poller thread after the server's end.
    """
    error, message = refused.error, str(refused)
    context.set_code(_CODES[error.code])
    context.set_details(message)
    trailers = [("grpc-status-details-bin", error.status(message).SerializeToString())]
    if error.retryable:
        # Python's exporter looks for it here, and nowhere else.
        trailers.append(("google.rpc.retryinfo-bin", otlp_errors.retry_info().SerializeToString()))
    context.set_trailing_metadata(tuple(trailers))
