"""OTLP's signals, described so that everything else can treat them alike: two are taken, metrics are answered."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsServiceRequest,
    ExportLogsServiceResponse,
)
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
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
    """In journals; 0 for what goes into none."""
    name: str
    path: str
    grpc_service: str
    request_type: type[Any]
    response_type: type[Any]
    resources_field: str
    scopes_field: str
    items_field: str
    rejected_field: str

    @property
    def key(self) -> str:
        """Its items' name as counts have it."""
        return self.name.replace(" ", "_")

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

METRICS = Signal(
    number=0,
    name="metrics",
    path="/v1/metrics",
    grpc_service="opentelemetry.proto.collector.metrics.v1.MetricsService",
    request_type=ExportMetricsServiceRequest,
    response_type=ExportMetricsServiceResponse,
    resources_field="resource_metrics",
    scopes_field="scope_metrics",
    items_field="metrics",
    rejected_field="rejected_data_points",
)

KEPT = (TRACES, LOGS)
BY_NUMBER = {signal.number: signal for signal in KEPT}
ANSWERED = (TRACES, LOGS, METRICS)


def data_points(request: Any) -> int:
    """How many data points a request of METRICS has."""
    metrics = (metric for resource in METRICS.resources(request) for metric in METRICS.items(resource))
    kinds = ((metric, metric.WhichOneof("data")) for metric in metrics)
    return sum(len(getattr(metric, kind).data_points) for metric, kind in kinds if kind)


def recording_of(resource: Any) -> str:
    """The recording that a resource names; empty where it names none."""
    return text_attribute(resource.resource.attributes, RECORDING_ID)


def text_attribute(attributes: Any, key: str) -> str:
    """The attribute's text; empty where there is none."""
    for attribute in attributes:
        if attribute.key == key:
            return str(attribute.value.string_value)
    return ""
