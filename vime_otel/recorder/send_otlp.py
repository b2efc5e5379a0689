"""Sends a window's spans where the standard OTEL_EXPORTER_OTLP_* variables say, if they are set.

Goes through the SDK's own span type and exporters: slower than encoding directly, yet every
variable (endpoint, headers, TLS, compression, timeout) means just what it means elsewhere.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags

from vime_otel.data import otlp
from vime_otel.data.errors import Unavailable
from vime_otel.data.texts import printable
from vime_otel.data.urls import otlp_over_http, shown

from .assemble import AssembledStep, StepPart, assemble
from .resource import resource_attributes
from .window import Window

_SCOPE = InstrumentationScope(otlp.SCOPE)
_GRPC, _HTTP = "grpc", "http/protobuf"
_TEXT_SHOWN = 200


class _LastWords(logging.Handler):
    """The latest complaint of the SDK's exporters: they tell nobody else why a request was not taken."""

    text = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Keep it, on one line and without passwords."""
        self.text = shown(printable(record.getMessage()))[:_TEXT_SHOWN]


_last_words = _LastWords(logging.WARNING)
logging.getLogger("opentelemetry.exporter.otlp").addHandler(_last_words)


def _setting(name: str) -> str:
    value = os.environ.get(f"OTEL_EXPORTER_OTLP_TRACES_{name}", "").strip()
    return value or os.environ.get(f"OTEL_EXPORTER_OTLP_{name}", "").strip()


def endpoint() -> str:
    """Where the environment says that spans go; empty where it names no place, or says that none are exported."""
    disabled = os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    exporters = os.environ.get("OTEL_TRACES_EXPORTER", "").strip().lower()
    return "" if disabled or exporters == "none" else _setting("ENDPOINT")


def send_to_environment(window: Window, taken: int = 0, note: Callable[[int], None] = lambda taken: None) -> None:
    """Send the spans to the `endpoint`, one request a rank and step, but for the first `taken` of these.

    `note` is called with how many were taken by then. Without an endpoint nothing is sent. Raises Unavailable
    when it does not take a request, or where a variable can't be used: what is kept goes when that is mended.
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
                    why = f": {_last_words.text}" if _last_words.text else ""
                    raise Unavailable(
                        f"the OTLP endpoint {shown(endpoint())} did not take the spans of step {step.row.index}{why}"
                    )
                note(number)
    finally:
        exporter.shutdown()


def _make_exporter() -> SpanExporter:
    protocol = _protocol()
    try:
        if protocol == _GRPC:
            from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter

            return GrpcExporter()
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter

        return HttpExporter()
    except Exception as error:
        what = shown(printable(str(error)))[:_TEXT_SHOWN]
        raise Unavailable(f"what OTEL_EXPORTER_OTLP_* say can't be used ({what}); mend it and start again") from error


def _protocol() -> str:
    """What is spoken where nothing is said: gRPC, or HTTP on its port and where the endpoint has a path."""
    protocol = _setting("PROTOCOL").lower()
    if not protocol:
        try:
            parts = urlsplit(endpoint())
            over_http = parts.scheme in ("http", "https") and otlp_over_http(parts)
        except ValueError:
            over_http = False
        return _HTTP if over_http else _GRPC
    if protocol not in (_GRPC, _HTTP):
        raise Unavailable(f"OTEL_EXPORTER_OTLP_PROTOCOL={protocol!r:.60} is neither {_GRPC} nor {_HTTP}")
    return protocol


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
