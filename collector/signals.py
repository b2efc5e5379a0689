"""The two OTLP signals that are taken, described so that everything else can treat them alike."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsServiceRequest,
    ExportLogsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from vime_otel.data import journal
from vime_otel.data.otlp import RECORDING_ID

MAX_REQUEST_BYTES = 64 * 1024 * 1024
"""The largest request that is accepted, after decompression."""


@dataclass(frozen=True)
class Signal:
    """One signal: where its requests come in and how their protobuf messages nest."""

    number: int
    name: str
    path: str
    grpc_service: str
    request_type: type[Any]
    response_type: type[Any]
    resources_field: str
    scopes_field: str
    items_field: str
    rejected_field: str

    def resources(self, request: Any) -> Any:
        """The request's repeated field of resources."""
        return getattr(request, self.resources_field)

    def items(self, resource: Any) -> Iterator[Any]:
        """The spans or log records of one resource."""
        for scope in getattr(resource, self.scopes_field):
            yield from getattr(scope, self.items_field)

    def count(self, resource: Any) -> int:
        """How many spans or log records one resource has."""
        return sum(len(getattr(scope, self.items_field)) for scope in getattr(resource, self.scopes_field))

    def response(self, rejected: int, message: str) -> Any:
        """The answer to a request; `partial_success` stays unset where all was taken."""
        response = self.response_type()
        if rejected:
            setattr(response.partial_success, self.rejected_field, rejected)
            response.partial_success.error_message = message
        return response


TRACES = Signal(
    number=journal.TRACES,
    name="spans",
    path="/v1/traces",
    grpc_service="opentelemetry.proto.collector.trace.v1.TraceService",
    request_type=ExportTraceServiceRequest,
    response_type=ExportTraceServiceResponse,
    resources_field="resource_spans",
    scopes_field="scope_spans",
    items_field="spans",
    rejected_field="rejected_spans",
)

LOGS = Signal(
    number=journal.LOGS,
    name="log records",
    path="/v1/logs",
    grpc_service="opentelemetry.proto.collector.logs.v1.LogsService",
    request_type=ExportLogsServiceRequest,
    response_type=ExportLogsServiceResponse,
    resources_field="resource_logs",
    scopes_field="scope_logs",
    items_field="log_records",
    rejected_field="rejected_log_records",
)

ALL = (TRACES, LOGS)


def recording_of(resource: Any) -> str:
    """The recording that a resource names; empty where it names none."""
    return text_attribute(resource.resource.attributes, RECORDING_ID)


def text_attribute(attributes: Any, key: str) -> str:
    """The attribute's text; empty where there is none."""
    for attribute in attributes:
        if attribute.key == key:
            return str(attribute.value.string_value)
    return ""
