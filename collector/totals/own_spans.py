"""What the sums need of a recorder's spans, read off their bytes.

A span with its attributes costs Python a microsecond and more as protobuf objects. Encoders write fields in the
order of their numbers, so the few that are needed stand at places that can be reckoned; a span that is written
otherwise is read as the message that it is. What is read here is only compared with a step's totals.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from operator import itemgetter
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from opentelemetry.proto.common.v1.common_pb2 import KeyValue

from vime_otel.data.otlp import COUNTED_NS, STACK

_Field = descriptor_pb2.FieldDescriptorProto
_COUNTED = b"\n\x0f" + COUNTED_NS.encode()
_ATTRIBUTE = b"\n\x0a" + STACK.encode() + b"\x12"
"""How the attribute of the stack begins: its key (field 1, 10 bytes), and the tag of its value."""

_TRACE_BYTES = 20
"""Trace id (field 1, 16 bytes) and the tag and length of the span id (field 2, 8 bytes)."""

_span_id_of = itemgetter(slice(_TRACE_BYTES, _TRACE_BYTES + 8))

_NAME_AT, _NAME = 28, struct.Struct("<H8xBB")
"""Behind the ids: the parent's id (field 4), the tag and length of the name (field 5)."""

_TIMES = struct.Struct("<BBBQBQBB")
"""Behind the name: kind (field 6), start and end (fields 7, 8), tag and length of the first attribute (field 9)."""

_ATTRIBUTE_AT = _NAME_AT + _NAME.size + _TIMES.size
"""Where the first attribute is, of a span without a name."""

_PARENT_TAG, _NAME_TAG = 0x0822, 0x2A
_KIND_TAG, _START_TAG, _END_TAG, _ATTRIBUTE_TAG = 0x30, 0x39, 0x41, 0x4A
_MORE = 0x80
"""This bit of a length says that another byte of it follows."""


@dataclass(slots=True)
class TraceSpans:
    """The spans of one trace in one request, in three parallel lists.

    A stack is there as its encoded attribute, or None where a span has none; durations are in nanoseconds.
    """

    ids: list[bytes] = field(default_factory=list)
    stacks: list[bytes | None] = field(default_factory=list)
    durations: list[int] = field(default_factory=list)


@lru_cache(maxsize=2**15)
def stack_text(attribute: bytes) -> str:
    """The stack of an encoded attribute."""
    text: str = KeyValue.FromString(attribute).value.string_value
    return text


def span_bytes(payload: bytes) -> Iterator[list[Sequence[bytes]]]:
    """The encoded spans of each scope of each resource of a request."""
    for resource in _Request.FromString(payload).resource_spans:
        yield [scope.spans for scope in resource.scope_spans]


def span_ids(spans: Sequence[Any], encoded: Iterable[bytes]) -> dict[bytes, list[bytes]]:
    """The span ids of a scope by trace id; `encoded` are the same spans' bytes."""
    contents = list(encoded)
    head = contents[0][:_TRACE_BYTES] if contents else b""
    # Mostly all spans are of one trace. What the least and the greatest begin with, all in between begin with.
    if _is_head(head) and min(contents).startswith(head) and max(contents).startswith(head):
        return {_trace_of(head): list(map(_span_id_of, contents))}
    found: dict[bytes, list[bytes]] = {}
    for span in spans:
        found.setdefault(span.trace_id, []).append(span.span_id)
    return found


def counts_otherwise(payload: bytes) -> bool:
    """Whether some span of a request may count something else than its length."""
    return _COUNTED in payload


def read_spans(scopes: Iterable[Any], encoded: Sequence[Sequence[bytes]] | None) -> dict[bytes, TraceSpans]:
    """The spans of one resource's scopes by trace id; `encoded` are the same spans' bytes, None for those to be read
    as messages."""
    found: dict[bytes, TraceSpans] = {}
    for number, scope in enumerate(scopes):
        if encoded is None:
            for span in scope.spans:
                _read_message(span, found)
        else:
            _read_encoded(scope.spans, encoded[number], found)
    return found


def _read_encoded(spans: Sequence[Any], encoded: Sequence[bytes], found: dict[bytes, TraceSpans]) -> None:
    # The collector's busiest loop: what it calls is bound outside, what it compares are integers.
    name_of, times_of, times_bytes = _NAME.unpack_from, _TIMES.unpack_from, _TIMES.size
    head = b"\0"
    for number, content in enumerate(encoded):
        if not content.startswith(head):
            head = content[:_TRACE_BYTES]
            if not _is_head(head):
                head = b"\0"
                _read_message(spans[number], found)
                continue
            trace = found.setdefault(_trace_of(head), TraceSpans())
            add_id, add_stack, add_duration = trace.ids.append, trace.stacks.append, trace.durations.append
        try:
            parent, name, name_length = name_of(content, _NAME_AT)
            key = _ATTRIBUTE_AT + name_length
            kind, _, begin, start, finish, end, attribute, length = times_of(content, key - times_bytes)
            if length >= _MORE:
                length = length & 0x7F | content[key] << 7
                key += 1
        except (struct.error, IndexError):
            _read_message(spans[number], found)
            continue
        if (
            parent != _PARENT_TAG
            or name != _NAME_TAG
            or name_length >= _MORE
            or kind != _KIND_TAG
            or begin != _START_TAG
            or finish != _END_TAG
            or attribute != _ATTRIBUTE_TAG
            or not content.startswith(_ATTRIBUTE, key)
        ):
            _read_message(spans[number], found)
            continue
        add_id(content[_TRACE_BYTES:_NAME_AT])
        add_stack(content[key : key + length])
        add_duration(end - start)


def _is_head(head: bytes) -> bool:
    return head[:2] == b"\n\x10" and head[18:] == b"\x12\x08"


def _trace_of(head: bytes) -> bytes:
    return head[2:18]


def _read_message(span: Any, found: dict[bytes, TraceSpans]) -> None:
    trace = found.setdefault(span.trace_id, TraceSpans())
    stack, total_ns = None, span.end_time_unix_nano - span.start_time_unix_nano
    for attribute in span.attributes:
        if attribute.key == STACK:
            stack = attribute.SerializeToString()
        elif attribute.key == COUNTED_NS:
            total_ns = attribute.value.int_value
    trace.ids.append(span.span_id)
    trace.stacks.append(stack)
    trace.durations.append(total_ns)


def _view() -> Any:
    """ExportTraceServiceRequest, but with spans left as bytes."""
    file = descriptor_pb2.FileDescriptorProto(name="vime_otel/span_bytes.proto", package="vime_otel", syntax="proto3")
    for name, field_name, number, kind, of in (
        ("Scope", "spans", 2, _Field.TYPE_BYTES, None),
        ("Resource", "scope_spans", 2, _Field.TYPE_MESSAGE, ".vime_otel.Scope"),
        ("Request", "resource_spans", 1, _Field.TYPE_MESSAGE, ".vime_otel.Resource"),
    ):
        file.message_type.add(name=name).field.add(
            name=field_name, number=number, type=kind, type_name=of, label=_Field.LABEL_REPEATED
        )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("vime_otel.Request"))


_Request = _view()
