"""OTLP over gRPC: TraceService and LogsService, over the same consumer as HTTP."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from .auth import Token
from .faults import log_fault
from .intake import Intake
from .signals import ALL, MAX_REQUEST_BYTES, Signal

_log = logging.getLogger(__name__)


def make_server(intake: Intake, token: Token) -> Any:
    """A grpc.aio server with both services, not yet bound to a port."""
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", MAX_REQUEST_BYTES), ("grpc.so_reuseport", 0)])
    # Requests stay bytes, so that the journal can take them as they came.
    server.add_generic_rpc_handlers(
        [
            grpc.method_handlers_generic_handler(
                signal.grpc_service,
                {
                    "Export": grpc.unary_unary_rpc_method_handler(
                        _handler(signal, intake, token),
                        response_serializer=signal.response_type.SerializeToString,
                    )
                },
            )
            for signal in ALL
        ]
    )
    return server


def _handler(signal: Signal, intake: Intake, token: Token) -> Callable[[bytes, Any], Awaitable[Any]]:
    async def export(content: bytes, context: Any) -> Any:
        metadata = dict(context.invocation_metadata() or ())
        if not token.admits(metadata.get("authorization")):
            return _refuse(context, grpc.StatusCode.UNAUTHENTICATED, token.refusal)
        try:
            outcome = intake.take(signal, signal.request_type.FromString(content), content)
        except DecodeError as error:
            return _refuse(context, grpc.StatusCode.INVALID_ARGUMENT, f"the message is not an OTLP request: {error}")
        except OSError as error:
            _log.error("the journal can't be written, so a request was refused: %s", error)
            what = f"the collector can't write what came: {error.strerror or error}"
            return _refuse(context, grpc.StatusCode.UNAVAILABLE, what)
        except Exception as error:  # noqa: BLE001 - no request may end the process
            log_fault(_log, signal.grpc_service, error)
            return _refuse(context, grpc.StatusCode.INTERNAL, f"a fault of the collector: {type(error).__name__}")
        return signal.response(outcome.rejected, outcome.message)

    return export


def _refuse(context: Any, code: grpc.StatusCode, message: str) -> None:
    """End a call with an error; gRPC sends no response message then.

    `context.abort` would do it by an exception, whose cycles keep gRPC's poller thread after the server's end.
    """
    context.set_code(code)
    context.set_details(message)
