"""The part of Perfetto's trace format that spans need, as protobuf classes made at import.

Numbers and types are those of `protos/perfetto/trace/perfetto_trace.proto` (v59); the format is one that only grows.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_PACKAGE = "vime_otel.perfetto"
_Field = descriptor_pb2.FieldDescriptorProto
_TYPES = {
    "int32": _Field.TYPE_INT32,
    "int64": _Field.TYPE_INT64,
    "uint32": _Field.TYPE_UINT32,
    "uint64": _Field.TYPE_UINT64,
    "string": _Field.TYPE_STRING,
}

_MESSAGES: dict[str, list[tuple[str, int, str, bool]]] = {
    "Trace": [("packet", 1, "TracePacket", True)],
    "TracePacket": [
        ("timestamp", 8, "uint64", False),
        ("trusted_packet_sequence_id", 10, "uint32", False),
        ("track_event", 11, "TrackEvent", False),
        ("interned_data", 12, "InternedData", False),
        ("sequence_flags", 13, "uint32", False),
        ("track_descriptor", 60, "TrackDescriptor", False),
    ],
    "TrackEvent": [
        ("debug_annotations", 4, "DebugAnnotation", True),
        ("type", 9, "int32", False),
        ("name_iid", 10, "uint64", False),
        ("track_uuid", 11, "uint64", False),
    ],
    "DebugAnnotation": [
        ("int_value", 4, "int64", False),
        ("string_value", 6, "string", False),
        ("name", 10, "string", False),
    ],
    "InternedData": [("event_names", 2, "EventName", True)],
    "EventName": [("iid", 1, "uint64", False), ("name", 2, "string", False)],
    "TrackDescriptor": [
        ("uuid", 1, "uint64", False),
        ("name", 2, "string", False),
        ("process", 3, "ProcessDescriptor", False),
        ("parent_uuid", 5, "uint64", False),
    ],
    "ProcessDescriptor": [("pid", 1, "int32", False), ("process_name", 6, "string", False)],
}
"""Name, number, type, and whether it repeats. `TrackEvent.type` is an enum, which looks the same on the wire."""

SLICE_BEGIN, SLICE_END = 1, 2
"""Values of `TrackEvent.type`."""

STATE_CLEARED, NEEDS_STATE = 1, 2
"""Values of `TracePacket.sequence_flags`: interned names begin here, and are needed here."""


def _classes() -> dict[str, type[Any]]:
    file = descriptor_pb2.FileDescriptorProto(name="vime_otel/perfetto.proto", package=_PACKAGE, syntax="proto2")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field_name, number, kind, repeats in fields:
            field = message.field.add(name=field_name, number=number)
            field.label = _Field.LABEL_REPEATED if repeats else _Field.LABEL_OPTIONAL
            if kind in _TYPES:
                field.type = _TYPES[kind]
            else:
                field.type, field.type_name = _Field.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")) for name in _MESSAGES
    }


_made = _classes()
Trace, TracePacket = _made["Trace"], _made["TracePacket"]
