"""A plain OTLP endpoint made of the official stubs: it keeps what it gets and knows nothing of us."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)


class OtlpSink(TraceServiceServicer):
    """A context manager: serves gRPC on `endpoint` and collects `requests`; those that `refuse` gives a status fail."""

    def __init__(self, port: int = 0) -> None:
        self.requests: list[ExportTraceServiceRequest] = []
        self._pool = ThreadPoolExecutor(2)
        self._server = grpc.server(self._pool)
        add_TraceServiceServicer_to_server(self, self._server)
        self.endpoint = f"http://127.0.0.1:{self._server.add_insecure_port(f'127.0.0.1:{port}')}"
        self.refuse: Callable[[ExportTraceServiceRequest], grpc.StatusCode | None] = lambda request: None
        self.metadata: list[dict[str, str]] = []

    def Export(self, request: Any, context: Any) -> ExportTraceServiceResponse:
        status = self.refuse(request)
        if status is not None:
            context.abort(status, "as the test wants it")
        self.metadata.append(dict(context.invocation_metadata()))
        self.requests.append(request)
        return ExportTraceServiceResponse()

    def __enter__(self) -> OtlpSink:
        self._server.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.stop(None).wait()
        self._pool.shutdown()

    def spans(self) -> list[tuple[dict[str, Any], Any]]:
        """(resource attributes, span) of everything received."""
        found = []
        for request in self.requests:
            for group in request.resource_spans:
                resource = {pair.key: _value(pair.value) for pair in group.resource.attributes}
                found += [(resource, span) for scope in group.scope_spans for span in scope.spans]
        return found


def span_attributes(span: Any) -> dict[str, Any]:
    """A span's attributes as plain values."""
    return {pair.key: _value(pair.value) for pair in span.attributes}


def _value(value: Any) -> Any:
    return getattr(value, value.WhichOneof("value"))
