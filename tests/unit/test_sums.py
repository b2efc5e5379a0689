"""The sums of a recording: duplicates, order, the check of spans against totals, what is missing."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from simulated_recorder import Step, closing_request, make_step, resource_of, step_requests

from collector.journal.replay import restore
from collector.journal.request_journal import KnownRequests
from collector.otlp.signals import KEPT, LOGS, TRACES, Signal
from collector.totals import own_spans, span_check
from collector.totals import sums as sums_module
from collector.totals.own_spans import TraceSpans, read_spans, span_bytes
from collector.totals.span_check import NOTHING_CHECKED, Checked, SpanCheck
from collector.totals.sums import Sums
from collector.totals.tally import MALFORMED, NOT_KEPT, Tally
from vime_otel.data import otlp
from vime_otel.data.folded import Folded
from vime_otel.data.journal import JournalReader, JournalWriter
from vime_otel.data.recording import StepTotals

RECORDING = "feedfacefeedface"
ENGINE = "00000000000000a1"
OTHER = "00000000000000b2"
MALFORMED_ONE = Tally(dropped=Counter({MALFORMED: 1}))


def steps_of(engine: str = ENGINE, count: int = 3, ranks: int = 2) -> list[Step]:
    return [make_step(RECORDING, engine, index, ranks) for index in range(count)]


def everything(steps: list[Step]) -> list[tuple[str, bytes]]:
    engines = dict.fromkeys(step.row.engine for step in steps)
    requests = [request for step in steps for request in step_requests(RECORDING, step)]
    for engine in engines:
        own = [step for step in steps if step.row.engine == engine]
        requests.append(("/v1/logs", closing_request(RECORDING, engine, own)))
    return requests


def sums_of(requests: list[tuple[str, bytes]]) -> Sums:
    sums = Sums(RECORDING)
    for path, content in requests:
        signal = next(signal for signal in KEPT if signal.path == path)
        sums.add(signal, signal.request_type.FromString(content), content)
    return sums


def add(sums: Sums, signal: Signal, request: Any) -> Tally:
    return sums.add(signal, request, request.SerializeToString())


def checked(requests: Iterable[tuple[str, bytes]]) -> Checked:
    check = SpanCheck()
    for path, content in requests:
        signal = next(signal for signal in KEPT if signal.path == path)
        check.add(signal, signal.request_type.FromString(content), content)
    return check.result()


def summed(totals: Iterable[StepTotals]) -> dict[tuple[str, str, int, str], Folded]:
    found: dict[tuple[str, str, int, str], Folded] = {}
    for part in totals:
        part.add_to(found.setdefault((part.engine, part.rank, part.stage, part.kind), Folded()))
    return found


def facts(sums: Sums) -> dict[str, Any]:
    return {
        "totals": (summed(sums.summed_totals()), sums.received_totals),
        "rows": sums.rows,
        "spans": sums.received_spans,
        "closings": sums.closings,
        "missing": {engine: sums.missing(engine) for engine in (ENGINE, OTHER)},
    }


def test_everything_arrives() -> None:
    steps = steps_of()
    sums = sums_of(everything(steps))
    assert sums.missing(ENGINE) == []
    assert checked(everything(steps)) == NOTHING_CHECKED
    assert summed(sums.summed_totals()) == summed(part.totals for step in steps for part in step.parts)
    assert sums.received_totals == 9
    assert sums.rows == {(ENGINE, step.row.index): step.row for step in steps}
    assert sums.received_spans == sum(len(part.spans) for step in steps for part in step.parts)
    assert (sums.duplicate_spans, sums.duplicate_totals, sums.malformed) == (0, 0, 0)


@pytest.mark.parametrize("seed", range(20))
def test_order_and_repetition_change_nothing(seed: int) -> None:
    requests = everything([*steps_of(), *steps_of(OTHER, 2, 1)])
    expected = facts(sums_of(requests))
    shuffler = random.Random(seed)
    repeated = requests + shuffler.choices(requests, k=10)
    shuffler.shuffle(repeated)
    sums = sums_of(repeated)
    assert facts(sums) == expected
    assert sums.duplicate_spans + sums.duplicate_totals > 0


def test_a_span_retried_in_another_request_counts_once() -> None:
    step = make_step(RECORDING, ENGINE, 0, 1)
    part = step.parts[0]
    of = resource_of(RECORDING, ENGINE, "0")
    messages = [otlp.span_message(span, step.trace_id, "decode", {}) for span in part.spans]
    sums = Sums(RECORDING)
    add(sums, TRACES, otlp.trace_request(of, messages[:10]))
    add(sums, TRACES, otlp.trace_request(of, messages[5:]))
    assert (sums.received_spans, sums.duplicate_spans) == (16, 5)


def test_the_first_totals_count() -> None:
    step = make_step(RECORDING, ENGINE, 0, 1)
    first = step.parts[0].totals
    second = replace(first, inclusive_ns=tuple(value + 1 for value in first.inclusive_ns))
    sums = Sums(RECORDING)
    for totals in (first, second, first):
        add(sums, LOGS, _totals_request(totals))
    assert summed(sums.summed_totals()) == summed([first])
    assert sums.duplicate_totals == 2


def _totals_request(totals: StepTotals) -> Any:
    record = otlp.totals_record(totals, None, *otlp.step_ids(RECORDING, totals.engine, totals.index), 1)
    return otlp.logs_request(resource_of(RECORDING, totals.engine, totals.rank), [record])


@pytest.mark.parametrize("spans_first", [True, False])
@pytest.mark.parametrize("what", ["time", "calls", "stack"])
def test_spans_that_do_not_add_up_are_named(spans_first: bool, what: str) -> None:
    step = make_step(RECORDING, ENGINE, 0, 1)
    part = step.parts[0]
    totals = part.totals
    if what == "time":
        totals = replace(totals, inclusive_ns=(totals.inclusive_ns[0] + 1, *totals.inclusive_ns[1:]))
    elif what == "calls":
        totals = replace(totals, calls=(totals.calls[0] + 1, *totals.calls[1:]))
    else:
        totals = replace(totals, stacks=("step;else", *totals.stacks[1:]))
    messages = [otlp.span_message(span, step.trace_id, "decode", {}) for span in part.spans]
    additions = [
        (TRACES, otlp.trace_request(resource_of(RECORDING, ENGINE, "0"), messages)),
        (LOGS, _totals_request(totals)),
    ]
    check = SpanCheck()
    for signal, request in additions if spans_first else additions[::-1]:
        assert not check.result().mismatched
        check.add(signal, request, request.SerializeToString())
    assert check.result().mismatched == {(ENGINE, "0", 0)}


def test_dropped_spans_are_no_mismatch() -> None:
    step = make_step(RECORDING, ENGINE, 0, 1)
    part = step.parts[0]
    messages = [otlp.span_message(span, step.trace_id, "decode", {}) for span in part.spans[:10]]
    totals = _totals_request(replace(part.totals, spans_dropped=6)).SerializeToString()
    spans = otlp.trace_request(resource_of(RECORDING, ENGINE, "0"), messages).SerializeToString()
    assert checked([(LOGS.path, totals), (TRACES.path, spans)]) == NOTHING_CHECKED


def test_the_root_is_left_out_of_the_check() -> None:
    step = make_step(RECORDING, ENGINE, 1, 1)
    own = step.parts[-1]
    assert own.spans[0].duration_ns != own.totals.inclusive_ns[0]  # duration and interval
    assert checked(everything([step])) == NOTHING_CHECKED


def test_what_is_missing_is_said() -> None:
    requests = everything(steps_of(count=2, ranks=1))
    assert sums_of(requests[:-1]).missing(ENGINE) == ["its closing event did not arrive, so more may be missing"]
    no_first_spans = [requests[1], *requests[2:]]
    assert sums_of(no_first_spans).missing(ENGINE) == ["16 of 32 spans of rank 0 arrived"]
    no_own_totals = [request for number, request in enumerate(requests) if number != 3]
    assert sums_of(no_own_totals).missing(ENGINE) == ["1 of 2 step totals of the engine process arrived"]


@pytest.mark.parametrize(
    "body", [None, "text", {}, {"parts": [{}]}, {"parts": [{"rank": 0, "stage": "x"}]}, {"parts": 3}]
)
def test_a_malformed_closing_event_is_counted(body: Any) -> None:
    sums = Sums(RECORDING)
    record = otlp.closing_record({}, 1)
    record.body.CopyFrom(otlp.any_value(body))
    assert add(sums, LOGS, otlp.logs_request(resource_of(RECORDING, ENGINE, "engine"), [record])) == MALFORMED_ONE
    assert not sums.closings


@pytest.mark.parametrize(
    ("key", "value"),
    [("vime.step.index", -5), ("vime.step.index", None), ("vime.spans.made", "many"), ("vime.rank", float("inf"))],
)
def test_malformed_totals_are_counted(key: str, value: Any) -> None:
    request = _totals_request(make_step(RECORDING, ENGINE, 0, 1).parts[0].totals)
    for attribute in request.resource_logs[0].scope_logs[0].log_records[0].attributes:
        if attribute.key == key:
            attribute.value.CopyFrom(otlp.any_value(value))
    sums = Sums(RECORDING)
    assert add(sums, LOGS, request) == MALFORMED_ONE
    assert sums.empty


def test_other_log_records_are_passed_over() -> None:
    record = otlp.closing_record({}, 1)
    record.event_name = "something.else"
    sums = Sums(RECORDING)
    tally = add(sums, LOGS, otlp.logs_request(resource_of(RECORDING, ENGINE, "0"), [record]))
    assert tally == Tally(dropped=Counter({NOT_KEPT: 1}))


def test_a_torn_journal_gives_what_is_whole_and_tells_the_rest(tmp_path: Path) -> None:
    requests = everything(steps_of())
    journal = JournalWriter(tmp_path / "spans.otlp")
    for path, content in requests:
        journal.append(next(signal.number for signal in KEPT if signal.path == path), content)
    journal.close()
    whole, torn_bytes = replay(tmp_path / "spans.otlp")
    assert (facts(whole), torn_bytes) == (facts(sums_of(requests)), 0)
    with open(tmp_path / "spans.otlp", "r+b") as file:
        file.truncate((tmp_path / "spans.otlp").stat().st_size - 7)
    torn, torn_bytes = replay(tmp_path / "spans.otlp")
    assert torn_bytes == 9 + len(requests[-1][1]) - 7
    assert facts(torn) == facts(sums_of(requests[:-1]))


def replay(journal: Path) -> tuple[Sums, int]:
    reader, sums = JournalReader(journal), Sums(RECORDING)
    restore(reader, sums, KnownRequests())
    return sums, reader.torn_bytes


@pytest.mark.parametrize("change", [{"kind": "warm-up"}, {"trace_id": b""}])
def test_totals_of_no_kind_or_trace_are_malformed(change: dict[str, Any]) -> None:
    totals = replace(make_step(RECORDING, ENGINE, 0, 1).parts[0].totals, kind=change.get("kind", "decode"))
    request = _totals_request(totals)
    request.resource_logs[0].scope_logs[0].log_records[0].trace_id = change.get("trace_id", bytes(16))
    sums = Sums(RECORDING)
    assert add(sums, LOGS, request) == MALFORMED_ONE
    assert sums.empty


def test_a_step_whose_spans_are_all_here_keeps_none_of_their_ids() -> None:
    sums = sums_of(everything(steps_of(count=50)))
    assert sums._open_ids == 0
    assert not sums._open
    assert not sums._expected


def test_too_many_spans_of_open_steps_are_given_up_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sums_module, "MOST_OPEN_IDS", 40)
    monkeypatch.setattr(span_check, "MOST_OPEN_IDS", 40)
    spans = [request for request in everything(steps_of(count=4)) if request[0] == TRACES.path]
    totals = [request for request in everything(steps_of(count=4)) if request[0] == LOGS.path]
    sums = sums_of(spans + totals)
    assert sums.received_spans == 4 * 36
    assert sums._open_ids <= 40
    assert sums.missing(ENGINE) == []
    assert checked(spans + totals).given_up > 0


# What a recorder's spans have, so that they are read off their bytes.
COMMON: dict[str, Any] = {"parent_span_id": b"p" * 8, "kind": 1, "start_time_unix_nano": 5, "end_time_unix_nano": 25}


@pytest.mark.parametrize(
    "change", ["none", "order", "long", "short", "no stack", "counted", "long ids", "padded length"]
)
def test_spans_are_read_alike_off_their_bytes_and_as_messages(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However an encoder writes a span, what is read off its bytes is what the message says."""
    span = Span(trace_id=b"t" * 16, span_id=b"s" * 8, name="attn", **COMMON)
    stack = {"long": "step;" * 40, "short": "s"}.get(change, "step;attn")
    if change != "no stack":
        span.attributes.extend(otlp.attributes({otlp.STACK: stack}))
    if change == "counted":
        span.attributes.extend(otlp.attributes({otlp.COUNTED_NS: 7}))
    if change == "long ids":
        span.span_id = b"s" * 9
    content = span.SerializeToString()
    if change == "order":  # the times at the end: encoders may
        content = content[:46] + content[64:] + content[46:64]
    if change == "padded length":
        at = content.index(b"\n\nvime.stack") - 1
        content = content[:at] + bytes([content[at] | 0x80, 0]) + content[at + 1 :]
    assert Span.FromString(content) == span
    scope = b"\x12" + bytes([len(content) % 128 + 128, len(content) // 128]) + content
    resource = b"\x12" + bytes([len(scope) % 128 + 128, len(scope) // 128]) + scope
    payload = b"\x0a" + bytes([len(resource) % 128 + 128, len(resource) // 128]) + resource
    request = TRACES.request_type.FromString(payload)
    (encoded,) = span_bytes(payload)
    expected = read_spans(request.resource_spans[0].scope_spans, None)
    with monkeypatch.context() as patch:
        patch.setattr(own_spans, "_read_message", Mock(side_effect=own_spans._read_message))
        as_bytes = None if own_spans.counts_otherwise(payload) else encoded
        assert read_spans(request.resource_spans[0].scope_spans, as_bytes) == expected
        assert own_spans._read_message.called == (change in ("order", "no stack", "long ids", "counted"))
    assert own_spans.span_ids(request.resource_spans[0].scope_spans[0].spans, encoded[0]) == {b"t" * 16: [span.span_id]}
    assert expected == {
        b"t" * 16: TraceSpans(
            [span.span_id],
            [None if change == "no stack" else span.attributes[0].SerializeToString()],
            [7 if change == "counted" else 20],
        )
    }


def test_a_name_that_looks_like_an_attribute_does_no_harm() -> None:
    name = "9xxxxxxxxAxxxxxxxxJ0\n\nvime.stack\x12\x05\n\x03abc"
    span = Span(trace_id=b"t" * 16, span_id=b"s" * 8, name=name, **COMMON)
    span.attributes.extend(otlp.attributes({otlp.STACK: "step;attn"}))
    request = otlp.trace_request(resource_of(RECORDING, ENGINE, "0"), [span])
    (encoded,) = span_bytes(request.SerializeToString())
    found = read_spans(request.resource_spans[0].scope_spans, encoded)
    assert found == read_spans(request.resource_spans[0].scope_spans, None)
