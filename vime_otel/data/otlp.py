"""The OTLP side of a recording: names, ids, and the codec for spans, totals and the closing event.

docs/formats.md lists every name used here. Protobuf classes come from opentelemetry-proto.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span as SpanMessage

from .recording import ENGINE_PART, StepRow, StepTotals
from .spans import Span

SCOPE = "vime_otel"
RECORDING_ID = "vime.recording.id"
RANK = "vime.rank"
STAGE = "vime.stage"
ENGINE_LABEL = "vime.engine.label"
INSTANCE_ID = "service.instance.id"
STACK = "vime.stack"
MODULE = "vime.module"
STEP_KIND = "vime.step.kind"
SPANS_MADE = "vime.spans.made"
SPANS_DROPPED = "vime.spans.dropped"
COUNTED_NS = "vime.counted_ns"
HOST_START = "vime.host.start_unix_nano"
HOST_DURATION = "vime.host.duration_ns"
STEP_EVENT = "vime.step.folded"
CLOSING_EVENT = "vime.recording.closed"

MAX_REQUEST_BYTES = 4 * 1024 * 1024
"""A request that we send stays below this: gRPC's default limit for received messages."""

MAX_PAYLOAD_BYTES = MAX_REQUEST_BYTES - 64 * 1024
"""What its spans or records may take of it; the rest is for the resource."""

MAX_SPANS_PER_RANK_STEP = 8000

SPAN_BYTES = 240
"""A span on the wire without its texts, at the most."""

_ROW_ATTRIBUTES = (
    ("vime.step.mixed", "mixed"),
    ("vime.step.execution", "execution"),
    ("vime.step.start_unix_nano", "start_unix_nano"),
    ("vime.step.duration_ns", "duration_ns"),
    ("vime.step.interval_ns", "interval_ns"),
    ("vime.step.context_tokens", "context_tokens"),
    ("vime.step.generation_tokens", "generation_tokens"),
    ("vime.step.requests", "requests"),
    ("vime.step.resumed", "resumed"),
    ("vime.step.speculative_tokens", "speculative_tokens"),
)


def step_ids(recording_id: str, engine: str, index: int) -> tuple[bytes, bytes]:
    """(trace id, root span id) of a step: every rank computes the same ones, nobody coordinates."""
    digest = hashlib.sha256(f"{recording_id}/{engine}/{index}".encode()).digest()
    return digest[:16], digest[16:24]


def group_ids(recording_id: str, group: str, wave: int, step: int) -> tuple[bytes, bytes]:
    """(trace id, root span id) of a lockstep step, likewise the same for all engines of the group."""
    digest = hashlib.sha256(f"{recording_id}/{group}/{wave}/{step}".encode()).digest()
    return digest[:16], digest[16:24]


def any_value(value: Any) -> AnyValue:
    """The protobuf form of a str, bool, int, float, bytes, None, sequence or mapping."""
    message = AnyValue()
    if value is None:
        return message
    if isinstance(value, bool):
        message.bool_value = value
    elif isinstance(value, int):
        message.int_value = value
    elif isinstance(value, float):
        message.double_value = value
    elif isinstance(value, str):
        message.string_value = value
    elif isinstance(value, bytes):
        message.bytes_value = value
    elif isinstance(value, Mapping):
        message.kvlist_value.values.extend(attributes(value))
        message.kvlist_value.SetInParent()
    elif isinstance(value, Iterable):
        message.array_value.values.extend(any_value(item) for item in value)
        message.array_value.SetInParent()
    else:
        raise TypeError(f"{type(value).__name__} has no OTLP form")
    return message


def plain_value(message: AnyValue) -> Any:
    """What `any_value` was given; sequences come back as lists."""
    which = message.WhichOneof("value")
    if which is None:
        return None
    if which == "array_value":
        return [plain_value(item) for item in message.array_value.values]
    if which == "kvlist_value":
        return plain_attributes(message.kvlist_value.values)
    return getattr(message, which)


def attributes(values: Mapping[str, Any]) -> list[KeyValue]:
    """Attributes from plain values; None is left out."""
    return [KeyValue(key=key, value=any_value(value)) for key, value in values.items() if value is not None]


def plain_attributes(messages: Iterable[KeyValue]) -> dict[str, Any]:
    """Plain values from attributes."""
    return {message.key: plain_value(message.value) for message in messages}


def span_attributes(span: Span, kind: str) -> dict[str, Any]:
    """The attributes of every span."""
    values: dict[str, Any] = {STACK: span.stack, STEP_KIND: kind}
    if span.module:
        values[MODULE] = span.module
    if span.counted_ns is not None:
        values[COUNTED_NS] = span.counted_ns
    if span.host is not None:
        values[HOST_START], values[HOST_DURATION] = span.host[0], span.host[1] - span.host[0]
    return values


def root_attributes(recording_id: str, row: StepRow, timing: str) -> dict[str, Any]:
    """The attributes of a step's root span beyond those of every span."""
    return {
        RECORDING_ID: recording_id,
        "vime.step.index": row.index,
        "vime.step.mixed": row.mixed,
        "vime.step.execution": row.execution,
        "vime.step.timing": timing,
        "vime.step.interval_ns": row.interval_ns,
        "vime.step.overlapped": row.overlapped,
        "vime.step.context_tokens": row.context_tokens,
        "vime.step.generation_tokens": row.generation_tokens,
        "vime.step.requests": row.requests,
        "vime.step.resumed": row.resumed,
        "vime.step.speculative_tokens": row.speculative_tokens,
    }


def span_message(span: Span, trace_id: bytes, kind: str, extra: Mapping[str, Any]) -> SpanMessage:
    """One span on the wire, with the attributes of every span and `extra`."""
    message = SpanMessage(
        trace_id=trace_id,
        span_id=span.span_id,
        parent_span_id=span.parent_span_id,
        name=span.name,
        kind=SpanMessage.SPAN_KIND_INTERNAL,
        start_time_unix_nano=span.start_unix_nano,
        end_time_unix_nano=span.end_unix_nano,
    )
    for key, value in span_attributes(span, kind).items():
        pair = message.attributes.add()
        pair.key = key
        if isinstance(value, str):
            pair.value.string_value = value
        else:
            pair.value.int_value = value
    if extra:
        message.attributes.extend(attributes(extra))
    return message


def resource(values: Mapping[str, Any]) -> Resource:
    """A resource from plain values."""
    return Resource(attributes=attributes(values))


def trace_request(of: Resource, spans: Iterable[SpanMessage]) -> ExportTraceServiceRequest:
    """A request with the spans of one resource."""
    request = ExportTraceServiceRequest()
    group = request.resource_spans.add()
    group.resource.CopyFrom(of)
    scope = group.scope_spans.add()
    scope.scope.CopyFrom(InstrumentationScope(name=SCOPE))
    scope.spans.extend(spans)
    return request


def logs_request(of: Resource, records: Iterable[LogRecord]) -> ExportLogsServiceRequest:
    """A request with the log records of one resource."""
    request = ExportLogsServiceRequest()
    group = request.resource_logs.add()
    group.resource.CopyFrom(of)
    scope = group.scope_logs.add()
    scope.scope.CopyFrom(InstrumentationScope(name=SCOPE))
    scope.log_records.extend(records)
    return request


def totals_record(
    totals: StepTotals, row: StepRow | None, trace_id: bytes, root_id: bytes, time_unix_nano: int
) -> LogRecord:
    """The `vime.step.folded` event. The engine's own part carries the step's row, a rank's does not."""
    values: dict[str, Any] = {
        "vime.step.index": totals.index,
        STEP_KIND: totals.kind,
        RANK: None if totals.rank == ENGINE_PART else int(totals.rank),
        STAGE: None if totals.rank == ENGINE_PART else totals.stage,
        SPANS_MADE: totals.spans_made,
        SPANS_DROPPED: totals.spans_dropped,
    }
    if row is not None:
        values.update({name: getattr(row, source) for name, source in _ROW_ATTRIBUTES})
    return LogRecord(
        time_unix_nano=time_unix_nano,
        event_name=STEP_EVENT,
        trace_id=trace_id,
        span_id=root_id,
        attributes=attributes(values),
        body=any_value({"stacks": totals.stacks, "inclusive_ns": totals.inclusive_ns, "calls": totals.calls}),
    )


@dataclass(frozen=True)
class ReadTotals:
    """A decoded `vime.step.folded` event; `row` is there for an engine's own part only."""

    totals: StepTotals
    row: StepRow | None


def read_totals(record: LogRecord, engine: str) -> ReadTotals:
    """Decode a `vime.step.folded` event. Raises ValueError when something is missing or of unequal length."""
    values = plain_attributes(record.attributes)
    body = plain_value(record.body)
    try:
        rank = values.get(RANK)
        totals = StepTotals(
            engine=engine,
            rank=ENGINE_PART if rank is None else str(int(rank)),
            stage=-1 if rank is None else int(values.get(STAGE, 0)),
            index=int(values["vime.step.index"]),
            kind=str(values[STEP_KIND]),
            stacks=tuple(map(str, body["stacks"])),
            inclusive_ns=tuple(map(int, body["inclusive_ns"])),
            calls=tuple(map(int, body["calls"])),
            spans_made=int(values[SPANS_MADE]),
            spans_dropped=int(values[SPANS_DROPPED]),
        )
        if not len(totals.stacks) == len(totals.inclusive_ns) == len(totals.calls):
            raise ValueError("its lists are of unequal length")
        row = None
        if rank is None:
            row = StepRow(
                engine=engine,
                index=totals.index,
                kind=totals.kind,
                trace_id=record.trace_id.hex(),
                **{source: values[name] for name, source in _ROW_ATTRIBUTES if name in values},
            )
    except (KeyError, TypeError) as error:
        raise ValueError(f"a {STEP_EVENT} event is malformed: {error!r}") from error
    return ReadTotals(totals, row)


def closing_record(body: Mapping[str, Any], time_unix_nano: int) -> LogRecord:
    """The `vime.recording.closed` event that ends one engine's part; docs/formats.md lists the body."""
    return LogRecord(time_unix_nano=time_unix_nano, event_name=CLOSING_EVENT, body=any_value(body))
