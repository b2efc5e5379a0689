"""Forwarding of journals to OTLP endpoints (the official stubs): whole, once, chosen, through outages and restarts."""

from __future__ import annotations

import errno
import itertools
import json
import random
import shutil
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from forwarding_runs import ENGINE, RECORDING, forwarding, made_ids, one_rank, received_ids, write_steps
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from otlp_sink import OtlpSink
from running_collector import until
from simulated_recorder import resource_of

from collector.forwarding import forward_journal
from collector.forwarding import forwarder as forwarder_module
from collector.forwarding.endpoint import Accepted, parse_endpoint
from collector.forwarding.forward_journal import Cursor, ForwardedJournal, cursor_name, read_cursor, write_cursor
from collector.forwarding.selection import TRACE_BYTES, Choice, Selection, count_spans
from vime_otel.data import otlp
from vime_otel.data.journal import LOGS, TRACES, Frame, JournalReader, JournalWriter
from vime_otel.data.run_files import JOURNAL_FILE
from vime_otel.demo.ports import free_port


class Taking:
    """A fake endpoint that takes everything."""

    def __init__(self, taken: list[ExportTraceServiceRequest]) -> None:
        self._taken = taken

    def send(self, request: ExportTraceServiceRequest) -> Accepted:
        self._taken.append(request)
        return Accepted()

    def close(self) -> None:
        pass


def test_a_growing_journal_is_followed_and_every_span_arrives_once(tmp_path: Path) -> None:
    with OtlpSink() as sink, forwarding(tmp_path, parse_endpoint(sink.endpoint)) as forwarder:
        for first in range(0, 30, 10):
            write_steps(tmp_path / "run", first, first + 10)
            expected = made_ids(0, first + 10, one_rank)
            until(lambda expected=expected: len(received_ids(sink)) >= len(expected))  # type: ignore[misc]
            assert received_ids(sink) == expected
        until(lambda: forwarder.counts.waiting_bytes == 0)
        assert (forwarder.counts.sent, forwarder.counts.refused) == (len(expected), 0)


def test_an_outage_and_restarts_lose_nothing_and_send_nothing_twice(tmp_path: Path) -> None:
    port = free_port()
    endpoint = parse_endpoint(f"http://127.0.0.1:{port}")
    run = tmp_path / "run"
    sinks = []
    for first in (0, 8, 16, 24):  # each life of the collector sees the endpoint come, go, and come back
        with forwarding(tmp_path, endpoint, drain_seconds=0.2) as forwarder:
            write_steps(run, first, first + 4)
            until(lambda: forwarder.trouble)
            if first != 16:  # in one life it does not come back
                with OtlpSink(port) as sink:
                    sinks.append(sink)
                    until(lambda: forwarder.counts.waiting_bytes == 0)
            write_steps(run, first + 4, first + 8)
            until(lambda: forwarder.trouble)
    with OtlpSink(port) as sink, forwarding(tmp_path, endpoint):
        sinks.append(sink)
        until(lambda: read_cursor(run, endpoint.url).offset == (run / JOURNAL_FILE).stat().st_size)  # type: ignore[union-attr]
    received = [span_id for each in sinks for span_id in received_ids(each)]
    assert sorted(received) == made_ids(0, 32, one_rank)
    assert len(sinks) == 4


def test_while_it_stops_what_is_left_is_sent(tmp_path: Path) -> None:
    with OtlpSink() as sink:
        with forwarding(tmp_path, parse_endpoint(sink.endpoint)):
            write_steps(tmp_path / "run", 0, 5)
        assert received_ids(sink) == made_ids(0, 5, one_rank)


def test_while_it_stops_an_endpoint_that_is_busy_is_tried_again(tmp_path: Path) -> None:
    asked = itertools.count(1)

    def busy(request: ExportTraceServiceRequest) -> grpc.StatusCode | None:
        stopping = forwarder._stopping.is_set()
        return grpc.StatusCode.UNAVAILABLE if not stopping or next(asked) < 4 else None

    with OtlpSink() as sink:
        sink.refuse = busy
        with forwarding(tmp_path, parse_endpoint(sink.endpoint), drain_seconds=30) as forwarder:
            write_steps(tmp_path / "run", 0, 5)
            until(lambda: forwarder.trouble)
        assert received_ids(sink) == made_ids(0, 5, one_rank)
        assert not forwarder.counts.waiting_bytes


@pytest.mark.parametrize(("drain", "patience"), [(0.5, 60.0), (60.0, 0.5)])
def test_the_end_waits_no_longer_for_an_endpoint_than_it_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drain: float, patience: float
) -> None:
    monkeypatch.setattr(forwarder_module, "PATIENCE_SECONDS", patience)
    endpoint = parse_endpoint(f"http://127.0.0.1:{free_port()}")
    with forwarding(tmp_path, endpoint, drain_seconds=drain) as forwarder:
        write_steps(tmp_path / "run", 0, 1)
        until(lambda: forwarder.trouble)
        began = time.monotonic()
    assert time.monotonic() - began < 20
    assert forwarder.counts.waiting_bytes


@pytest.mark.parametrize("damage", ["a journal that can't be read", "a cursor that can't be written"])
def test_a_run_that_the_disk_refuses_holds_up_no_other_and_goes_on_when_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    """The one that is refused is looked at first."""
    write_steps(tmp_path / "bad", 0, 3)
    refusing = threading.Event()
    refusing.set()
    real_look, real_write, asked = ForwardedJournal.look, forwarder_module.write_cursor, itertools.count()

    def look(self: ForwardedJournal, settled: bool = False) -> None:
        if damage.startswith("a journal"):
            refuse(self.run)
        real_look(self, settled)

    def write(run: Path, cursor: Cursor) -> None:
        if damage.startswith("a cursor"):
            refuse(run)
        real_write(run, cursor)

    def refuse(run: Path) -> None:
        if run.name == "bad" and refusing.is_set():
            raise OSError(errno.EIO, "Input/output error", f"another name each time {next(asked)}")

    with OtlpSink() as sink:
        endpoint = parse_endpoint(sink.endpoint)
        for name in ("bad", "good"):
            (tmp_path / name).mkdir(exist_ok=True)
            write_cursor(tmp_path / name, Cursor(endpoint.url))
        monkeypatch.setattr(ForwardedJournal, "look", look)
        monkeypatch.setattr(forwarder_module, "write_cursor", write)
        with forwarding(tmp_path, endpoint, names=("bad", "good")):
            until(lambda: next(asked) > 10)
            write_steps(tmp_path / "good", 3, 6)
            until(lambda: set(made_ids(3, 6, one_rank)) <= set(received_ids(sink)))
            refusing.clear()
            until(lambda: received_ids(sink) == made_ids(0, 6, one_rank))
        size = (tmp_path / "bad" / JOURNAL_FILE).stat().st_size
        assert read_cursor(tmp_path / "bad", endpoint.url).offset == size  # type: ignore[union-attr]
    assert caplog.text.count(f"bad waits to be forwarded to {endpoint.url}: Input/output error\n") == 1


def test_what_was_read_before_the_disk_refused_is_counted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run").mkdir()
    writer = JournalWriter(tmp_path / "run" / JOURNAL_FILE)
    writer.append(TRACES, part_of_step("0", 6000).SerializeToString())
    writer.close()
    journal = ForwardedJournal(tmp_path / "run", Choice(), Cursor("http://127.0.0.1:1"))
    taken: list[Any] = []

    class Refusing(JournalReader):
        def __iter__(self) -> Iterator[Frame]:
            yield from super().__iter__()
            raise OSError(errno.EIO, "Input/output error")

    journal.look(settled=True)
    with monkeypatch.context() as patch:
        patch.setattr(forward_journal, "JournalReader", Refusing)
        for _ in range(3):
            with pytest.raises(OSError, match="Input/output error"):
                journal.send_next(Taking(taken))
    assert journal.send_next(Taking(taken)) is not None
    assert (journal.cursor.sent, journal.cursor.over_limit) == (6000, 0)


def test_other_runs_stay_and_of_one_that_is_opened_again_goes_what_is_added(tmp_path: Path) -> None:
    write_steps(tmp_path / "other", 0, 2)
    write_steps(tmp_path / "again", 2, 4)
    with OtlpSink() as sink, forwarding(tmp_path, parse_endpoint(sink.endpoint), names=("run", "again")):
        write_steps(tmp_path / "again", 4, 5)
        write_steps(tmp_path / "run", 5, 6)
        until(lambda: received_ids(sink) == made_ids(4, 6, one_rank))


def test_each_endpoint_has_a_cursor_of_its_own(tmp_path: Path) -> None:
    port = free_port()
    away = parse_endpoint(f"http://127.0.0.1:{port}")
    with OtlpSink() as sink, forwarding(tmp_path, parse_endpoint(sink.endpoint)), forwarding(tmp_path, away):
        write_steps(tmp_path / "run", 0, 3)
        expected = made_ids(0, 3, one_rank)
        until(lambda: received_ids(sink) == expected)
        with OtlpSink(port) as late:
            until(lambda: received_ids(late) == expected)
    assert len(list((tmp_path / "run").glob("forward-*.json"))) == 2


def test_all_ranks_go_where_that_is_asked_for(tmp_path: Path) -> None:
    write_steps(tmp_path / "run", 0, 3, ranks=3)
    with OtlpSink() as sink, forwarding(tmp_path, parse_endpoint(sink.endpoint), Choice(all_ranks=True)):
        until(lambda: len(received_ids(sink)) == len(made_ids(0, 3, lambda rank: True, 3)))


def test_a_sample_takes_whole_steps_of_one_rank_and_about_as_many_as_asked(tmp_path: Path) -> None:
    write_steps(tmp_path / "run", 0, 400)
    choice = Choice(sample=0.1)
    with OtlpSink() as sink, forwarding(tmp_path, parse_endpoint(sink.endpoint), choice) as forwarder:
        until(lambda: forwarder.counts.sent and not forwarder.counts.waiting_bytes)
    whole = Counter(span.trace_id for _, span in sink.spans())
    assert 20 <= len(whole) <= 65
    assert set(whole.values()) == {len(made_ids(0, 1, one_rank))}
    assert {resource.get("vime.rank") for resource, _ in sink.spans()} == {None, 0}
    roots = [span for _, span in sink.spans() if not span.parent_span_id]
    assert len(roots) == len(whole)


def test_two_collectors_choose_the_same_steps() -> None:
    traces = [random.Random(number).randbytes(16) for number in range(2000)]
    taken = [trace for trace in traces if Choice(0.25).takes_trace(trace)]
    assert 400 < len(taken) < 600
    assert set(taken) <= {trace for trace in traces if Choice(0.5).takes_trace(trace)}, "a larger share has them all"
    assert not any(Choice(0.0).takes_trace(trace) for trace in traces)


def part_of_step(rank: str, spans: int, name_bytes: int = 400) -> ExportTraceServiceRequest:
    """One rank's spans of one step, about `name_bytes` each."""
    messages = [
        Span(trace_id=b"t" * 16, span_id=number.to_bytes(8, "big"), name="n" * name_bytes) for number in range(spans)
    ]
    return otlp.trace_request(resource_of(RECORDING, ENGINE, rank), messages)


def test_no_trace_reaches_tempos_limit_and_its_root_is_never_what_is_left_out() -> None:
    selection = Selection(Choice(all_ranks=True))
    groups = [group for rank in range(8) for group in selection.of(part_of_step(str(rank), 6000))]
    assert count_spans(groups) == 6000
    assert selection.over_limit == 7 * 6000
    root = selection.of(part_of_step("engine", 4))
    assert count_spans(root) == 4
    assert sum(group.ByteSize() for group in [*groups, *root]) < 5_000_000 - 64_000
    assert sum(group.ByteSize() for group in groups) <= TRACE_BYTES + 1000


def test_what_is_over_the_limit_is_counted_in_the_cursor(tmp_path: Path) -> None:
    writer_run = tmp_path / "run"
    writer_run.mkdir()
    writer = JournalWriter(writer_run / JOURNAL_FILE)
    for rank in ("0", "1"):
        writer.append(TRACES, part_of_step(rank, 6000).SerializeToString())
    writer.close()
    with OtlpSink() as sink:
        endpoint = parse_endpoint(sink.endpoint)
        with forwarding(tmp_path, endpoint, Choice(all_ranks=True)) as forwarder:
            until(lambda: forwarder.counts.sent == 6000 and not forwarder.counts.waiting_bytes)
        assert forwarder.counts.over_limit == 6000
        cursor = read_cursor(writer_run, endpoint.url)
        assert cursor is not None
        assert (cursor.sent, cursor.over_limit) == (6000, 6000)


def test_no_request_reaches_four_mebibytes_however_large_one_came_in(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    writer = JournalWriter(run / JOURNAL_FILE)
    spans = [Span(trace_id=n.to_bytes(16, "big"), span_id=n.to_bytes(8, "big"), name="n" * 1000) for n in range(9000)]
    writer.append(TRACES, otlp.trace_request(otlp.resource({"service.name": "other"}), spans).SerializeToString())
    writer.close()
    with OtlpSink() as sink, forwarding(tmp_path, parse_endpoint(sink.endpoint)):
        until(lambda: len(sink.spans()) >= 9000)
    assert len(sink.spans()) == len({span.span_id for _, span in sink.spans()}) == 9000
    sizes = [request.ByteSize() for request in sink.requests]
    assert max(sizes) < otlp.MAX_REQUEST_BYTES
    assert len(sizes) == 3, "and each is as full as it may be"


def test_many_small_requests_become_few(tmp_path: Path) -> None:
    write_steps(tmp_path / "run", 0, 100)
    with OtlpSink() as sink, forwarding(tmp_path, parse_endpoint(sink.endpoint)):
        until(lambda: received_ids(sink) == made_ids(0, 100, one_rank))
    assert len(sink.requests) <= 3


def test_what_an_endpoint_refuses_for_good_is_counted_and_holds_up_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with OtlpSink() as sink, forwarding(tmp_path, parse_endpoint(sink.endpoint)) as forwarder:
        sink.refuse = lambda request: grpc.StatusCode.INVALID_ARGUMENT
        write_steps(tmp_path / "run", 0, 2)
        refused = len(made_ids(0, 2, one_rank))
        until(lambda: forwarder.counts.refused == refused)
        sink.refuse = lambda request: None
        write_steps(tmp_path / "run", 2, 3)
        until(lambda: received_ids(sink) == made_ids(2, 3, one_rank))
    assert "INVALID_ARGUMENT: as the test wants it" in caplog.text


@pytest.mark.parametrize("status", ["UNAVAILABLE", "DEADLINE_EXCEEDED", "UNAUTHENTICATED", "UNIMPLEMENTED"])
def test_what_may_be_mended_is_waited_for(status: str, tmp_path: Path) -> None:
    with OtlpSink() as sink, forwarding(tmp_path, parse_endpoint(sink.endpoint)) as forwarder:
        sink.refuse = lambda request: grpc.StatusCode[status]
        write_steps(tmp_path / "run", 0, 2)
        until(lambda: forwarder.counts.failed_requests >= 2)
        sink.refuse = lambda request: None
        until(lambda: received_ids(sink) == made_ids(0, 2, one_rank))
        assert forwarder.counts.refused == 0


def test_a_torn_tail_is_waited_for_and_stops_no_other_run(tmp_path: Path) -> None:
    with OtlpSink() as sink, forwarding(tmp_path, parse_endpoint(sink.endpoint), names=("run", "next")):
        write_steps(tmp_path / "run", 0, 2)
        path = tmp_path / "run" / JOURNAL_FILE
        whole = path.read_bytes()
        path.write_bytes(whole[:-3])
        write_steps(tmp_path / "next", 2, 3)
        until(lambda: set(made_ids(2, 3, one_rank)) <= set(received_ids(sink)))
        path.write_bytes(whole)
        until(lambda: received_ids(sink) == made_ids(0, 3, one_rank))


def test_where_a_sent_end_was_cut_off_the_next_whole_frames_are_found_again(tmp_path: Path) -> None:
    run = tmp_path / "run"
    write_steps(run, 0, 2)
    whole = (run / JOURNAL_FILE).stat().st_size
    write_steps(run, 2, 3)
    with OtlpSink() as sink, forwarding(tmp_path, parse_endpoint(sink.endpoint)) as forwarder:
        until(lambda: received_ids(sink) == made_ids(0, 3, one_rank))
        until(lambda: not forwarder.counts.waiting_bytes)
        with open(run / JOURNAL_FILE, "r+b") as file:
            file.truncate(whole)
        writer = JournalWriter(run / JOURNAL_FILE)
        writer.append(LOGS, b"\0" * 1001)  # frames end elsewhere now
        writer.close()
        write_steps(run, 3, 8)
        until(lambda: set(made_ids(5, 8, one_rank)) <= set(received_ids(sink)))


def test_what_was_written_a_moment_ago_may_still_be_taken_back(tmp_path: Path) -> None:
    write_steps(tmp_path / "run", 0, 1)
    journal = ForwardedJournal(tmp_path / "run", Choice(), Cursor("http://127.0.0.1:1"))
    taken: list[Any] = []
    journal.look()
    assert journal.send_next(Taking(taken)) is None
    journal.look()
    assert journal.send_next(Taking(taken)) is not None
    assert len(taken) == 1


def test_a_run_that_is_removed_meanwhile_stops_nothing(tmp_path: Path) -> None:
    port = free_port()
    with forwarding(tmp_path, parse_endpoint(f"http://127.0.0.1:{port}"), names=("a", "b")) as forwarder:
        write_steps(tmp_path / "a", 0, 1)
        until(lambda: forwarder.trouble)
        shutil.rmtree(tmp_path / "a")
        write_steps(tmp_path / "b", 1, 2)
        with OtlpSink(port) as sink:
            until(lambda: set(made_ids(1, 2, one_rank)) <= set(received_ids(sink)))


def test_a_cursor_of_version_one_is_read_and_another_one_is_not(tmp_path: Path) -> None:
    url = "http://tempo:4317"
    path = tmp_path / "forward-bc3f62bd.json"
    stored = {"to": url, "offset": 8123, "sent": 60, "refused": 1, "over_limit": 2, "format": 1}
    path.write_text(json.dumps(stored))
    assert cursor_name(url) == path.name
    assert read_cursor(tmp_path, url) == Cursor(url, 8123, 60, 1, 2)
    for broken in (json.dumps(stored | {"format": 2}), "{", json.dumps({"offset": 1})):
        path.write_text(broken)
        assert read_cursor(tmp_path, url) is None


def test_of_many_runs_only_a_few_are_remembered(tmp_path: Path) -> None:
    names = tuple(f"run-{number:02d}" for number in range(30))
    with OtlpSink() as sink, forwarding(tmp_path, parse_endpoint(sink.endpoint), names=names) as forwarder:
        for number, name in enumerate(names):
            write_steps(tmp_path / name, number, number + 1)
        until(lambda: received_ids(sink) == made_ids(0, 30, one_rank))
        write_steps(tmp_path / names[0], 30, 31)
        until(lambda: received_ids(sink) == made_ids(0, 31, one_rank))
    assert sum(each._selection is not None for each in forwarder._journals.values()) <= 20
