"""The codec of a recording's spans and events, and OTLP's JSON form."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from simulated_recorder import make_step

from collector.otlp import otlp_json
from collector.otlp.signals import LOGS, TRACES
from vime_otel.data import otlp
from vime_otel.data.recording import ENGINE_PART

CASES = Path(__file__).parents[3] / "shared" / "cases" / "otlp"
RECORDING = "feedfacefeedface"
ENGINE = "00000000000000a1"

_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.binary()
)
_KEYS = st.text(st.characters(exclude_categories=["Cs"]))
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(_KEYS, inner.filter(lambda v: v is not None), max_size=4)
    ),
    max_leaves=20,
)


@given(_VALUES)
def test_any_plain_value_survives_the_wire(value: Any) -> None:
    message = AnyValue.FromString(otlp.any_value(value).SerializeToString())
    read = otlp.plain_value(message)
    assert read == value
    assert type(read) is type(value)


def test_what_has_no_form_is_refused() -> None:
    with pytest.raises(TypeError, match="has no OTLP form"):
        otlp.any_value(object())


def test_ids_are_the_same_for_every_rank_and_differ_for_every_step() -> None:
    digest = hashlib.sha256(f"{RECORDING}/{ENGINE}/7".encode()).digest()
    assert otlp.step_ids(RECORDING, ENGINE, 7) == (digest[:16], digest[16:24])
    ids = {otlp.step_ids(r, e, i) for r in ("a" * 16, "b" * 16) for e in (ENGINE, "c" * 16) for i in range(50)}
    assert len(ids) == 200


@pytest.mark.parametrize("position", [0, 1, 2])
def test_totals_survive_the_wire(position: int) -> None:
    step = make_step(RECORDING, ENGINE, 4, 2)
    totals = step.parts[position].totals
    row = step.row if totals.rank == ENGINE_PART else None
    record = otlp.totals_record(totals, row, *otlp.step_ids(RECORDING, totals.engine, totals.index), 5)
    read = otlp.read_totals(type(record).FromString(record.SerializeToString()), ENGINE)
    assert (read.totals, read.row) == (totals, row)
    assert record.event_name == "vime.step.folded"
    assert (record.trace_id, record.span_id) == otlp.step_ids(RECORDING, ENGINE, 4)


def test_a_span_says_by_itself_where_it_belongs() -> None:
    step = make_step(RECORDING, ENGINE, 0, 1)
    span = step.parts[0].spans[4]
    message = otlp.span_message(span, step.trace_id, "prefill", {"vime.module": "model.layers.3", "none": None})
    assert (message.trace_id, message.span_id, message.parent_span_id) == (
        step.trace_id,
        span.span_id,
        span.parent_span_id,
    )
    assert message.end_time_unix_nano - message.start_time_unix_nano == span.duration_ns
    assert otlp.plain_attributes(message.attributes) == {
        "vime.stack": span.stack,
        "vime.step.kind": "prefill",
        "vime.module": "model.layers.3",
    }
    assert otlp.root_attributes(RECORDING, step.row, "sync")["vime.step.interval_ns"] == step.row.interval_ns


def test_the_specifications_own_json_example() -> None:
    if not CASES.is_dir():
        pytest.skip(f"{CASES} is not there")
    request = otlp_json.decode(TRACES, (CASES / "proto-example-trace.json").read_bytes())
    (resource,) = request.resource_spans
    (span,) = TRACES.items(resource)
    assert otlp.plain_attributes(resource.resource.attributes) == {"service.name": "my.service"}
    assert span.trace_id.hex().upper() == "5B8EFFF798038103D269B633813FC60C"
    assert span.span_id.hex().upper() == "EEE19B7EC3C1B174"
    assert span.parent_span_id.hex().upper() == "EEE19B7EC3C1B173"
    assert (span.name, span.kind) == ("I'm a server span", 2)
    assert (span.start_time_unix_nano, span.end_time_unix_nano) == (1544712660000000000, 1544712661000000000)


def span_json(**fields: Any) -> bytes:
    return json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [fields]}]}]}).encode()


def span_of(content: bytes) -> Any:
    return next(TRACES.items(otlp_json.decode(TRACES, content).resource_spans[0]))


def test_json_ids_in_any_case_and_numbers_as_text_or_number() -> None:
    span = span_of(
        span_json(
            traceId="AbcdefABCDEF01234567890123456789",
            spanId="00000000000000aF",
            startTimeUnixNano=1,
            endTimeUnixNano="18446744073709551615",
            kind=1,
            links=[{"traceId": "0" * 32, "spanId": "1" * 16, "unknown": {}}],
            fieldOfTheFuture=[1],
            attributes=[{"key": "k", "value": {"intValue": "-9223372036854775808"}}],
        )
    )
    assert span.trace_id.hex() == "abcdefabcdef01234567890123456789"
    assert span.span_id == b"\0" * 7 + b"\xaf"
    assert (span.start_time_unix_nano, span.end_time_unix_nano) == (1, 2**64 - 1)
    assert span.links[0].span_id == b"\x11" * 8
    assert otlp.plain_attributes(span.attributes) == {"k": -(2**63)}


def test_json_names_in_another_spelling_are_unknown_fields() -> None:
    assert span_of(span_json(trace_id="0" * 32, span_id="1" * 16, name="n")).trace_id == b""
    request = otlp_json.decode(TRACES, b'{"resource_spans": [{"scope_spans": [{"spans": [{"name": "n"}]}]}]}')
    assert not request.resource_spans


@pytest.mark.parametrize(
    "fields",
    [
        {"traceId": "xyz"},
        {"traceId": "0" * 31},
        {"traceId": "0" * 30},
        {"spanId": " " * 16},
        {"spanId": 7},
        {"links": [{"traceId": "no"}]},
        {"startTimeUnixNano": "soon"},
        {"startTimeUnixNano": -1},
        {"endTimeUnixNano": 2**64},
        {"kind": {}},
        {"attributes": {"key": "k"}},
        {"name": 3},
    ],
)
def test_json_of_the_wrong_shape_is_a_value_error(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="is not"):
        span_of(span_json(**fields))


def test_json_nested_without_end_is_a_value_error() -> None:
    deep = b'{"resourceLogs": [{"scopeLogs": [{"logRecords": [{"body": %s}]}]}]}'
    value = b'{"arrayValue": {"values": [' * 400 + b"]}}" * 400
    with pytest.raises(ValueError, match="is not"):
        otlp_json.decode(LOGS, deep % value)


def test_answers_in_json_have_numbers_as_text() -> None:
    assert json.loads(otlp_json.encode(TRACES.response(3, "why"))) == {
        "partialSuccess": {"rejectedSpans": "3", "errorMessage": "why"}
    }
    assert otlp_json.encode(LOGS.response(0, "")) == b"{}"
