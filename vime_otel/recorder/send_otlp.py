"""Sends a window's spans where the standard OTEL_EXPORTER_OTLP_* variables say, if they are set.

Goes through the SDK's own span type and exporters: slower than encoding directly, yet every
variable (endpoint, headers, TLS, compression, timeout) means just what it means elsewhere.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags

from vime_otel.data import otlp
from vime_otel.data.errors import Unavailable

from .assemble import AssembledStep, StepPart, assemble
from .resource import resource_attributes
from .window import Window

_SCOPE = InstrumentationScope(otlp.SCOPE)


def _setting(name: str) -> str | None:
    return os.environ.get(f"OTEL_EXPORTER_OTLP_TRACES_{name}") or os.environ.get(f"OTEL_EXPORTER_OTLP_{name}")


def endpoint() -> str:
    """Where the environment says that spans go; empty where it doesn't."""
    return _setting("ENDPOINT") or ""


def send_to_environment(window: Window, taken: int = 0, note: Callable[[int], None] = lambda taken: None) -> None:
    """Send the spans to the `endpoint`, one request a rank and step, but for the first `taken` of these.

    `note` is called with how many were taken by then. Without an endpoint nothing is sent. Raises Unavailable
    when it does not take a request.
    """
    if not endpoint():
        return
    exporter = _make_exporter()
    resources: dict[str, Resource] = {}
    number = 0
    try:
        for step in assemble(window):
            for part in step.parts:
                number += 1
                if number <= taken:
                    continue
                rank = part.totals.rank
                if rank not in resources:
                    known = {k: v for k, v in resource_attributes(window, rank).items() if v is not None}
                    resources[rank] = Resource(known)
                batch = list(_sdk_spans(window, step, part, resources[rank]))
                if batch and exporter.export(batch) is not SpanExportResult.SUCCESS:
                    raise Unavailable(f"the OTLP endpoint {endpoint()} did not take the spans of step {step.row.index}")
                note(number)
    finally:
        exporter.shutdown()


def _make_exporter() -> SpanExporter:
    if (_setting("PROTOCOL") or "grpc") == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter

        return GrpcExporter()
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter

    return HttpExporter()


def _sdk_spans(window: Window, step: AssembledStep, part: StepPart, resource: Resource) -> Iterator[ReadableSpan]:
    trace_id = int(step.row.trace_id, 16)

    def context(span_id: bytes) -> SpanContext:
        return SpanContext(trace_id, int.from_bytes(span_id, "big"), False, TraceFlags(TraceFlags.SAMPLED))

    spans = [step.root, *part.spans] if part is step.engine_part else part.spans
    for span in spans:
        values = otlp.span_attributes(span, step.row.kind)
        if span is step.root:
            values.update(otlp.root_attributes(window.command.recording, step.row, window.command.timing))
        if span is part.dropped_on:
            values[otlp.SPANS_DROPPED] = part.totals.spans_dropped
        yield ReadableSpan(
            name=span.name,
            context=context(span.span_id),
            parent=context(span.parent_span_id) if span.parent_span_id else None,
            resource=resource,
            attributes=values,
            kind=SpanKind.INTERNAL,
            start_time=span.start_unix_nano,
            end_time=span.end_unix_nano,
            instrumentation_scope=_SCOPE,
        )
