"""Mutated and random requests over both ports: no crash, no hang, no wrong count.

Case n is a function of n alone, so a failure names all that is needed to see it again: add it to KEPT_CASES.
"""

from __future__ import annotations

import gzip
import http.client
import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.message import DecodeError
from google.rpc.status_pb2 import Status
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from otlp_client import as_json
from running_collector import ControlClient, RunningCollector, config, running, until
from simulated_recorder import Behaviour, SimulatedRecorder, closing_request, make_step, step_requests

from collector.journal.replay import restore
from collector.journal.request_journal import KnownRequests
from collector.otlp import otlp_json
from collector.otlp.signals import KEPT, LOGS, TRACES, Signal
from collector.totals.sums import Sums
from vime_otel.data import otlp
from vime_otel.data.find_runs import list_runs
from vime_otel.data.journal import JournalReader
from vime_otel.data.rundir import RunDirectory

ENGINE = "00000000000000a1"
KEPT_CASES: tuple[int, ...] = ()
"""Cases that once failed."""

_EDGES = (b"\xff" * 10, b"\x80" * 9 + b"\x01", b"\x00", b"\x0a\xff\xff\xff\xff\x0f", b"\x1f\x8b\x08\x00", b"\n" * 200)


class Corpus:
    """Sound requests to begin with: a recorder's and other services'."""

    def __init__(self, recording: str) -> None:
        steps = [make_step(recording, ENGINE, index, 2) for index in range(3)]
        self.requests: list[tuple[Signal, bytes]] = [
            (TRACES if path == TRACES.path else LOGS, content)
            for step in steps
            for path, content in step_requests(recording, step)
        ]
        self.requests.append((LOGS, closing_request(recording, ENGINE, steps)))
        for service in ("shop", "bank"):
            span = Span(trace_id=b"t" * 16, span_id=b"s" * 8, name="n", start_time_unix_nano=1, end_time_unix_nano=9)
            child = Span(trace_id=b"t" * 16, span_id=b"c" * 8, parent_span_id=b"s" * 8, end_time_unix_nano=5)
            of = otlp.resource({"service.name": service, "a": [1, 2.5, {"b": None}]})
            self.requests.append((TRACES, otlp.trace_request(of, [span, child]).SerializeToString()))

    def case(self, number: int) -> tuple[Signal, bytes, str]:
        """A request, and the way it goes: `grpc`, `http`, `json`, each also with `-gzip`."""
        rnd = random.Random(number)
        signal, content = rnd.choice(self.requests)
        way = rnd.choice(("grpc", "http", "json")) + rnd.choice(("", "", "-gzip"))
        if way.startswith("json"):
            content = as_json(signal, signal.request_type.FromString(content))
        for _ in range(rnd.choice((0, 1, 1, 1, 2, 5))):
            content = rnd.choice(_MUTATIONS)(rnd, content, self.requests)
        if rnd.random() < 0.1:
            signal = rnd.choice(KEPT)
        return signal, content, way


def _flip(rnd: random.Random, content: bytes, _: Any) -> bytes:
    changed = bytearray(content or b"\0")
    for _ in range(rnd.choice((1, 1, 4, 30))):
        changed[rnd.randrange(len(changed))] ^= 1 << rnd.randrange(8)
    return bytes(changed)


def _cut(rnd: random.Random, content: bytes, _: Any) -> bytes:
    return content[: rnd.randrange(len(content) + 1)]


def _remove(rnd: random.Random, content: bytes, _: Any) -> bytes:
    at = rnd.randrange(len(content) + 1)
    return content[:at] + content[at + rnd.randrange(1, 60) :]


def _repeat(rnd: random.Random, content: bytes, _: Any) -> bytes:
    at = rnd.randrange(len(content) + 1)
    return content[:at] + content[max(0, at - rnd.randrange(200)) :]


def _insert(rnd: random.Random, content: bytes, _: Any) -> bytes:
    at = rnd.randrange(len(content) + 1)
    return content[:at] + rnd.choice((*_EDGES, rnd.randbytes(rnd.randrange(1, 40)))) + content[at:]


def _join(rnd: random.Random, content: bytes, requests: Sequence[tuple[Signal, bytes]]) -> bytes:
    return content + rnd.choice(requests)[1]


def _noise(rnd: random.Random, *_: Any) -> bytes:
    return rnd.randbytes(rnd.randrange(300))


_MUTATIONS: tuple[Callable[[random.Random, bytes, Any], bytes], ...] = (
    _flip, _flip, _flip, _cut, _remove, _repeat, _insert, _join, _noise,
)  # fmt: skip


class Fuzzer:
    """Sends cases and keeps account of what the collector should have counted."""

    def __init__(self, collector: RunningCollector, corpus: Corpus) -> None:
        self._corpus = corpus
        host, port = collector.url.removeprefix("http://").split(":")
        self._http = http.client.HTTPConnection(host, int(port), timeout=20)
        self._channels = {
            compression: grpc.insecure_channel(collector.collector.grpc_address, compression=compression)
            for compression in (grpc.Compression.NoCompression, grpc.Compression.Gzip)
        }
        self.accepted: Counter[str] = Counter()
        self.dropped: Counter[str] = Counter()
        self.answers: Counter[str] = Counter()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()
        for channel in self._channels.values():
            channel.close()

    def send(self, number: int) -> None:
        """Send case `number` and check its answer."""
        signal, content, way = self._corpus.case(number)
        transport, _, compression = way.partition("-")
        items = _items(signal, content, transport == "json")
        if transport == "grpc":
            rejected = self._over_grpc(signal, content, bool(compression))
        else:
            rejected = self._over_http(signal, content, transport == "json", bool(compression))
        assert (rejected is None) == (items is None), f"case {number}: {items} items, {rejected} rejected"
        self.answers["refused" if items is None else "taken"] += 1
        if items is not None and rejected is not None:
            assert 0 <= rejected <= items, f"case {number}"
            self.accepted[signal.key] += items
            self.dropped[signal.key] += rejected

    def _over_grpc(self, signal: Signal, content: bytes, compress: bool) -> int | None:
        channel = self._channels[grpc.Compression.Gzip if compress else grpc.Compression.NoCompression]
        try:
            answer = channel.unary_unary(f"/{signal.grpc_service}/Export")(content, timeout=20)
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.INVALID_ARGUMENT:
                raise
            return None
        return int(getattr(signal.response_type.FromString(answer).partial_success, signal.rejected_field))

    def _over_http(self, signal: Signal, content: bytes, is_json: bool, compress: bool) -> int | None:
        headers = {"Content-Type": "application/json" if is_json else "application/x-protobuf"}
        if compress:
            headers["Content-Encoding"], content = "gzip", gzip.compress(content, 1)
        self._http.request("POST", signal.path, content, headers)
        answer = self._http.getresponse()
        body = answer.read()
        assert answer.status in (200, 400), (answer.status, body)
        if answer.status == 400:
            assert is_json or Status.FromString(body).message
            return None
        response = otlp_json.json_format.Parse(body, signal.response_type()) if is_json else None
        response = response or signal.response_type.FromString(b"" if is_json else body)
        return int(getattr(response.partial_success, signal.rejected_field))


def _items(signal: Signal, content: bytes, is_json: bool) -> int | None:
    """How many items the official classes find in a request; None where it is none."""
    try:
        request = otlp_json.decode(signal, content) if is_json else signal.request_type.FromString(content)
    except (ValueError, DecodeError):
        return None
    return sum(map(signal.count, signal.resources(request)))


@pytest.mark.parametrize("cases", [2_000, pytest.param(100_000, marks=pytest.mark.long)])
def test_no_request_is_a_fault_or_counted_wrongly(tmp_path: Path, cases: int) -> None:
    with (
        running(config(tmp_path, serves=True)) as collector,
        SimulatedRecorder(collector.url, ENGINE, 8001, Behaviour(most_steps=0, closing_event=False)) as engine,
    ):
        client = ControlClient(collector.url)
        recording = client.start(steps=2, timeout_seconds=36_000)
        until(lambda: engine.phase == "armed")
        fuzzer = Fuzzer(collector, Corpus(recording))
        try:
            for number in (*KEPT_CASES, *range(cases)):
                fuzzer.send(number)
        finally:
            fuzzer.close()
        counts = collector.collector.counts
        for signal in KEPT:
            accepted = sum(value for (of, _), value in counts.accepted.items() if of == signal.key)
            dropped = sum(value for (of, _), value in counts.dropped.items() if of == signal.key)
            assert accepted == fuzzer.accepted[signal.key]
            assert accepted == counts.kept[signal.key] + counts.duplicate[signal.key] + dropped
            assert dropped == fuzzer.dropped[signal.key]
        assert {reason for _, _, reason in counts.refused} == {"malformed"}
        assert counts.pending_requests == counts.pending_bytes == 0
        kept = counts.kept["spans"]
        client.call("DELETE", f"/recordings/{recording}")
        run = RunDirectory(Path(client.finish(recording)["run"]))
    assert min(fuzzer.answers.values()) > cases // 10
    of_services = [each for each in list_runs(tmp_path) if "service" in each.header]
    assert kept == run.header["spans"]["received"] + sum(each.header["intake"]["spans"]["kept"] for each in of_services)
    reader, sums = JournalReader(run.path / "spans.otlp"), Sums(recording)
    restore(reader, sums, KnownRequests())
    assert sums.received_spans == run.header["spans"]["received"]
    assert reader.torn_bytes == 0
    for each in of_services:
        assert min(each.self_us("all").values()) >= 0
