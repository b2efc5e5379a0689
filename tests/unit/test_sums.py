"""The sums of a recording: duplicates, order, the check of spans against totals, what is missing."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from simulated_recorder import Step, closing_request, make_step, resource_of, step_requests

from collector.replay import replay
from collector.signals import ALL, LOGS, TRACES
from collector.sums import Sums
from vime_otel.data import otlp
from vime_otel.data.journal import JournalWriter
from vime_otel.data.recording import StepTotals

RECORDING = "feedfacefeedface"
ENGINE = "00000000000000a1"
OTHER = "00000000000000b2"


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
        signal = next(signal for signal in ALL if signal.path == path)
        sums.add(signal, signal.request_type.FromString(content))
    return sums


def facts(sums: Sums) -> dict[str, Any]:
    return {
        "totals": sums.totals,
        "rows": sums.rows,
        "spans": sums.received_spans,
        "mismatched": sums.mismatched,
        "closings": sums.closings,
        "missing": {engine: sums.missing(engine) for engine in (ENGINE, OTHER)},
    }


def test_everything_arrives() -> None:
    steps = steps_of()
    sums = sums_of(everything(steps))
    assert sums.missing(ENGINE) == []
    assert not sums.mismatched
    assert sums.totals == {part.totals.key: part.totals for step in steps for part in step.parts}
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
    sums.add(TRACES, otlp.trace_request(of, messages[:10]))
    sums.add(TRACES, otlp.trace_request(of, messages[5:]))
    assert (sums.received_spans, sums.duplicate_spans) == (16, 5)


def test_the_first_totals_count() -> None:
    step = make_step(RECORDING, ENGINE, 0, 1)
    first = step.parts[0].totals
    second = replace(first, inclusive_ns=tuple(value + 1 for value in first.inclusive_ns))
    sums = Sums(RECORDING)
    for totals in (first, second, first):
        sums.add(LOGS, _totals_request(totals))
    assert sums.totals == {first.key: first}
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
    sums = Sums(RECORDING)
    for signal, request in additions if spans_first else additions[::-1]:
        assert not sums.mismatched
        sums.add(signal, request)
    assert sums.mismatched == {(ENGINE, "0", 0)}


def test_dropped_spans_are_no_mismatch() -> None:
    step = make_step(RECORDING, ENGINE, 0, 1)
    part = step.parts[0]
    sums = Sums(RECORDING)
    sums.add(LOGS, _totals_request(replace(part.totals, spans_dropped=6)))
    messages = [otlp.span_message(span, step.trace_id, "decode", {}) for span in part.spans[:10]]
    sums.add(TRACES, otlp.trace_request(resource_of(RECORDING, ENGINE, "0"), messages))
    assert not sums.mismatched


def test_the_root_is_left_out_of_the_check() -> None:
    step = make_step(RECORDING, ENGINE, 1, 1)
    own = step.parts[-1]
    assert own.spans[0].duration_ns != own.totals.inclusive_ns[0]  # duration and interval
    assert not sums_of(everything([step])).mismatched


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
    assert sums.add(LOGS, otlp.logs_request(resource_of(RECORDING, ENGINE, "engine"), [record])) == 1
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
    assert sums.add(LOGS, request) == 1
    assert sums.empty


def test_other_log_records_are_passed_over() -> None:
    record = otlp.closing_record({}, 1)
    record.event_name = "something.else"
    sums = Sums(RECORDING)
    assert sums.add(LOGS, otlp.logs_request(resource_of(RECORDING, ENGINE, "0"), [record])) == 0


def test_a_torn_journal_gives_what_is_whole_and_tells_the_rest(tmp_path: Path) -> None:
    requests = everything(steps_of())
    journal = JournalWriter(tmp_path / "spans.otlp")
    for path, content in requests:
        journal.append(next(signal.number for signal in ALL if signal.path == path), content)
    journal.close()
    whole = replay(tmp_path / "spans.otlp", RECORDING)
    assert (facts(whole.sums), whole.torn_bytes) == (facts(sums_of(requests)), 0)
    with open(tmp_path / "spans.otlp", "r+b") as file:
        file.truncate((tmp_path / "spans.otlp").stat().st_size - 7)
    torn = replay(tmp_path / "spans.otlp", RECORDING)
    assert torn.torn_bytes == 9 + len(requests[-1][1]) - 7
    assert facts(torn.sums) == facts(sums_of(requests[:-1]))


@pytest.mark.parametrize("change", [{"kind": "warm-up"}, {"trace_id": b""}])
def test_totals_of_no_kind_or_trace_are_malformed(change: dict[str, Any]) -> None:
    totals = replace(make_step(RECORDING, ENGINE, 0, 1).parts[0].totals, kind=change.get("kind", "decode"))
    request = _totals_request(totals)
    request.resource_logs[0].scope_logs[0].log_records[0].trace_id = change.get("trace_id", bytes(16))
    sums = Sums(RECORDING)
    assert sums.add(LOGS, request) == 1
    assert sums.empty
