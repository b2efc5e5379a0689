"""The rules of OTLP as a table: each one over both transports, in both encodings, plain and gzip."""

from __future__ import annotations

import errno
import gzip
import json
import os
import resource
import socket
import struct
import subprocess
import threading
import time
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
import requests
from google.rpc.code_pb2 import INVALID_ARGUMENT, RESOURCE_EXHAUSTED, UNAUTHENTICATED, UNAVAILABLE
from opentelemetry._logs import SeverityNumber
from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter as GrpcLogExporter
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcSpanExporter
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter as HttpLogExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpSpanExporter
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import SimpleLogRecordProcessor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from otlp_client import WAYS, as_json, send
from running_collector import QUICK, RunningCollector, config, running, until

from collector.otlp import limits, otlp_http
from collector.otlp.signals import LOGS, METRICS, TRACES, Signal
from vime_otel.data import otlp
from vime_otel.data.find_runs import list_runs
from vime_otel.data.journal import JournalReader

CASES = Path(__file__).parents[3] / "shared" / "cases" / "otlp"
TOKEN = "a token of these tests"
BOTH = pytest.mark.parametrize("signal", [TRACES, LOGS], ids=["traces", "logs"])
EVERY_WAY = pytest.mark.parametrize("way", WAYS)


@pytest.fixture(scope="module")
def collector(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCollector]:
    # Nothing of it runs on threads that a single test would seem to leave behind.
    quiet = replace(QUICK, rolling=3600.0)
    with running(config(tmp_path_factory.mktemp("runs"), serves=True, patience=quiet)) as running_collector:
        yield running_collector


def spans(count: int = 3, service: str = "shop", **changes: Any) -> Any:
    """A trace of a service: a root, and children below it."""
    trace_id, root = os.urandom(16), os.urandom(8)
    made = [
        Span(
            trace_id=trace_id, span_id=root if not n else os.urandom(8), parent_span_id=root if n else b"",
            name=f"step {n}", start_time_unix_nano=1000, end_time_unix_nano=2000,
        )
        for n in range(count)
    ]  # fmt: skip
    for name, value in changes.items():
        setattr(made[0], name, value)
    return otlp.trace_request(otlp.resource({"service.name": service}), made)


def records(count: int = 3) -> Any:
    of = otlp.resource({"service.name": "shop"})
    return otlp.logs_request(of, [LogRecord(body=AnyValue(string_value=f"line {n}")) for n in range(count)])


@BOTH
@EVERY_WAY
def test_an_empty_request_is_a_success(collector: RunningCollector, way: str, signal: Signal) -> None:
    answer = send(collector, way, signal, signal.request_type())
    assert (answer.code, answer.rejected, answer.message) == (0, 0, "")


@EVERY_WAY
def test_a_full_success_leaves_partial_success_unset(collector: RunningCollector, way: str) -> None:
    answer = send(collector, way, TRACES, spans())
    assert (answer.code, answer.rejected, answer.message) == (0, 0, "")


@EVERY_WAY
def test_what_is_not_kept_is_told_in_partial_success(collector: RunningCollector, way: str) -> None:
    answer = send(collector, way, LOGS, records(3))
    assert (answer.code, answer.rejected) == (0, 3)
    assert answer.message == "3 log records belong to no recording that is open here (no recording named)"
    request = spans(2)
    request.resource_spans[0].resource.attributes.extend(otlp.attributes({otlp.RECORDING_ID: "0" * 16}))
    answer = send(collector, way, TRACES, request)
    assert (answer.code, answer.rejected) == (0, 2)
    assert "recording 0000000000000000" in answer.message


@EVERY_WAY
@pytest.mark.parametrize(
    "changes", [{"trace_id": b""}, {"trace_id": bytes(16)}, {"span_id": b""}, {"span_id": bytes(8)}]
)
def test_spans_without_ids_are_told_in_partial_success(
    collector: RunningCollector, way: str, changes: dict[str, bytes]
) -> None:
    answer = send(collector, way, TRACES, spans(3, **changes))
    assert (answer.code, answer.rejected, answer.message) == (0, 1, "1 spans are malformed")


@EVERY_WAY
def test_metrics_are_answered_politely(collector: RunningCollector, way: str) -> None:
    request = METRICS.request_type()
    metric = request.resource_metrics.add().scope_metrics.add().metrics.add(name="m")
    metric.gauge.data_points.add(as_int=3)
    metric.gauge.data_points.add(as_int=4)
    answer = send(collector, way, METRICS, request)
    assert (answer.code, answer.rejected) == (0, 2)
    assert answer.message == "this collector takes spans and log records, no metrics"
    assert send(collector, way, METRICS, METRICS.request_type()).message == ""


@BOTH
@EVERY_WAY
@pytest.mark.parametrize("content", [b"\xff\xff\xff", b"{", b'{"resourceSpans": 3, "resourceLogs": 3}'])
def test_bad_data_is_an_invalid_argument_and_not_to_be_retried(
    collector: RunningCollector, way: str, signal: Signal, content: bytes
) -> None:
    answer = send(collector, way, signal, content)
    assert (answer.code, answer.http_status) == (INVALID_ARGUMENT, 0 if way.startswith("grpc") else 400)
    assert answer.message
    assert answer.retry_seconds is None


@pytest.mark.parametrize("way", ["grpc", "http"])
def test_a_text_that_is_no_utf_8_is_bad_data(collector: RunningCollector, way: str) -> None:
    for bad in (spans(1, name="NAME"), spans(1, "NAME")):
        content = bad.SerializeToString()
        assert b"NAME" in content
        assert send(collector, way, TRACES, content.replace(b"NAME", b"\xff\xfe\xfd\xfc")).code == INVALID_ARGUMENT


@pytest.mark.parametrize("way", ["grpc", "http"])
def test_fields_that_nobody_knows_yet_are_passed_over(collector: RunningCollector, way: str) -> None:
    content = spans().SerializeToString() + b"\xca\x3e\x03new"  # field 1001
    assert send(collector, way, TRACES, content).code == 0


def test_json_takes_ids_in_any_case_numbers_as_text_and_enums_as_integers(collector: RunningCollector) -> None:
    span = {
        "traceId": "5B8EFFF798038103d269b633813fc60c", "spanId": "EEE19B7EC3C1B174", "name": "n", "kind": 2,
        "startTimeUnixNano": 1544712660000000000, "endTimeUnixNano": "1544712661000000000", "newField": {"a": [1]},
    }  # fmt: skip
    body = {"resourceSpans": [{"resource": None, "scopeSpans": [{"spans": [span], "newField": 1}]}], "newField": "x"}
    answer = send(collector, "json", TRACES, json.dumps(body).encode())
    assert (answer.code, answer.rejected) == (0, 0)
    for wrong in ("5B8E", "zz8EFFF798038103d269b633813fc60c", 5):
        body["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["traceId"] = wrong  # type: ignore[index]
        answer = send(collector, "json", TRACES, json.dumps(body).encode())
        assert answer.code == INVALID_ARGUMENT
        assert "traceId" in answer.message


@pytest.mark.parametrize("way", ["grpc", "grpc-gzip", "http-gzip"])
def test_64_mib_are_taken_and_no_byte_more(collector: RunningCollector, way: str) -> None:
    assert send(collector, way, TRACES, _message(64 * 2**20)).code == 0
    answer = send(collector, way, TRACES, _message(64 * 2**20 + 1))
    assert (answer.code, answer.http_status) == (RESOURCE_EXHAUSTED, 0 if way.startswith("grpc") else 413)
    assert answer.retry_seconds is None


def _message(size: int) -> bytes:
    """A message of so many bytes, all of one unknown field: its tag of 2, its length of 4, and the rest."""
    rest = size - 6
    length = bytes([rest & 0x7F | 0x80, rest >> 7 & 0x7F | 0x80, rest >> 14 & 0x7F | 0x80, rest >> 21])
    return b"\xc2\x3e" + length + bytes(rest)


@pytest.mark.parametrize("way", ["grpc", "http", "json"])
def test_a_gzip_bomb_is_cut_off_while_it_inflates(collector: RunningCollector, way: str) -> None:
    bomb = gzip.compress(bytes(2**20), 9) * 900  # 900 MiB in less than 1 MiB
    before = psutil.Process().memory_info().rss
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if way == "grpc":
        with grpc.insecure_channel(collector.collector.grpc_address) as channel:
            export = channel.unary_unary(f"/{TRACES.grpc_service}/Export")
            with pytest.raises(grpc.RpcError) as refused:
                export(bomb, timeout=30)  # as one that says gzip and is it: both are inflated here
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    else:
        kind = "application/json" if way == "json" else "application/x-protobuf"
        answer = requests.post(
            f"{collector.url}{TRACES.path}",
            bomb,
            headers={"Content-Type": kind, "Content-Encoding": "gzip"},
            timeout=30,
        )
        assert answer.status_code == 413
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - max(peak, before)
    assert grown < 200 * 2**20


@pytest.mark.parametrize("kind", ["application/x-protobuf", "application/json"])
def test_deflate_is_taken_and_bounded_as_gzip_is(collector: RunningCollector, kind: str) -> None:
    headers = {"Content-Type": kind, "Content-Encoding": "deflate"}
    content = as_json(TRACES, spans()) if kind == "application/json" else spans().SerializeToString()
    for body, status in (
        (zlib.compress(content), 200),
        (zlib.compress(content)[:-3], 400),
        (content, 400),
        (zlib.compress(bytes(65 * 2**20)), 413),
    ):
        assert requests.post(f"{collector.url}{TRACES.path}", body, headers=headers, timeout=30).status_code == status


def test_a_body_that_does_not_come_gives_its_room_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp_http, "READ_SECONDS", 0.1)
    with running(config(tmp_path, serves=True)) as collector:
        host, port = collector.url.removeprefix("http://").split(":")
        head = f"POST {TRACES.path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            connection.sendall(f"{head}Content-Length: 60000000\r\n\r\n{{".encode())
            answer = connection.recv(1000)
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert b"Retry-After: 1" in answer
            counts = collector.collector.counts
            assert (counts.pending_bytes, counts.pending_requests) == (0, 0)


def test_an_endless_row_of_empty_gzip_members_is_cut_off(collector: RunningCollector) -> None:
    began = time.monotonic()
    headers = {"Content-Type": "application/x-protobuf", "Content-Encoding": "gzip"}
    content = gzip.compress(b"") * 200_000
    answer = requests.post(f"{collector.url}{TRACES.path}", content, headers=headers, timeout=30)
    assert answer.status_code == 400
    assert time.monotonic() - began < 10


@BOTH
@EVERY_WAY
def test_a_wrong_token_is_told(tmp_path: Path, way: str, signal: Signal) -> None:
    with running(config(tmp_path, token=TOKEN)) as collector:
        answer = send(collector, way, signal, signal.request_type(), token="wrong")
        assert (answer.code, answer.http_status) == (UNAUTHENTICATED, 0 if way.startswith("grpc") else 401)
        assert TOKEN not in answer.message
        assert send(collector, way, signal, signal.request_type(), token=TOKEN).code == 0


@EVERY_WAY
def test_a_full_disk_and_too_much_at_once_are_retryable(
    collector: RunningCollector, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int, buffers: list[bytes]) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "writev", full)
        answer = send(collector, way, TRACES, spans())
        assert (answer.code, answer.retry_seconds) == (UNAVAILABLE, 1)
        assert "No space left on device" in answer.message
    with monkeypatch.context() as patch:
        patch.setattr(limits, "_LONGEST_WAIT_S", 0.01)
        collector.collector.counts.pending_bytes += 2**40
        answer = send(collector, way, TRACES, spans())
        collector.collector.counts.pending_bytes -= 2**40
        assert (answer.code, answer.retry_seconds) == (UNAVAILABLE, 1)
        assert "more requests than it can take" in answer.message
    assert send(collector, way, TRACES, spans()).code == 0


@EVERY_WAY
def test_the_same_bytes_again_count_once(tmp_path: Path, way: str) -> None:
    request = spans()
    with running(config(tmp_path, serves=True)) as collector:
        for _ in range(3):
            assert send(collector, way, TRACES, request).code == 0
        assert collector.collector.counts.kept["spans"] == 3
        assert collector.collector.counts.duplicate["spans"] == 6
    (run,) = list_runs(tmp_path)
    assert run.header["intake"]["spans"] == {"accepted": 9, "kept": 3, "duplicate": 6, "dropped": {}}


def test_pings_are_answered_however_often_they_come(collector: RunningCollector) -> None:
    host, port = collector.collector.grpc_address.split(":")
    ping, goaway = 6, 7
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5))
        stream = connection.makefile("rb")
        acknowledged = 0
        for number in range(50):
            connection.sendall(b"\0\0\x08" + bytes([ping]) + bytes(5) + struct.pack(">Q", number))
            while acknowledged <= number:
                head = stream.read(9)
                kind, flags = head[3], head[4]
                assert kind != goaway
                stream.read(int.from_bytes(head[:3], "big"))
                acknowledged += kind == ping and flags == 1


@pytest.mark.parametrize("transport", ["grpc", "http"])
def test_the_official_exporters_try_again_and_arrive_once(
    tmp_path: Path, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = iter([True] * 2)
    real = os.writev

    def sometimes(descriptor: int, buffers: list[bytes]) -> int:
        if next(failures, False):
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(descriptor, buffers)

    with running(config(tmp_path, serves=True)) as collector:
        monkeypatch.setattr(os, "writev", sometimes)
        exporter: Any
        if transport == "grpc":
            exporter = GrpcSpanExporter(endpoint=collector.collector.grpc_address, insecure=True)
        else:
            exporter = HttpSpanExporter(endpoint=f"{collector.url}/v1/traces")
        provider = TracerProvider()
        provider.add_span_processor(BatchSpanProcessor(exporter))
        tracer = provider.get_tracer("test")
        with tracer.start_as_current_span("outer"), tracer.start_as_current_span("inner"):
            pass
        provider.shutdown()
        assert collector.collector.counts.refused["spans", transport, "disk"] == 2
    (run,) = list_runs(tmp_path)
    assert run.calls("all") == {"outer": 1, "outer;inner": 1}
    assert run.header["intake"]["spans"]["kept"] == 2


@pytest.mark.parametrize("transport", ["grpc", "http"])
def test_the_official_log_exporters_are_served(collector: RunningCollector, transport: str) -> None:
    before = collector.collector.counts.accepted["log_records", transport]
    exporter: Any
    if transport == "grpc":
        exporter = GrpcLogExporter(endpoint=collector.collector.grpc_address, insecure=True)
    else:
        exporter = HttpLogExporter(endpoint=f"{collector.url}/v1/logs")
    provider = LoggerProvider()
    provider.add_log_record_processor(SimpleLogRecordProcessor(exporter))
    provider.get_logger("test").emit(body="a line", severity_number=SeverityNumber.INFO)
    provider.shutdown()
    until(lambda: collector.collector.counts.accepted["log_records", transport] == before + 1)


@pytest.mark.parametrize("name", ["proto-example-trace.json", "jaeger-otlp-in.json", "jaeger-ui-otlp-in-error.json"])
@pytest.mark.parametrize("compress", [False, True])
def test_curl_and_the_published_examples(tmp_path: Path, name: str, compress: bool) -> None:
    if not CASES.is_dir():
        pytest.skip(f"{CASES} is not there")
    content = (CASES / name).read_bytes()
    body = tmp_path / "body"
    body.write_bytes(gzip.compress(content) if compress else content)
    given = [span for r in json.loads(content)["resourceSpans"] for s in r["scopeSpans"] for span in s["spans"]]
    with running(config(tmp_path / "runs", serves=True)) as collector:
        command = [
            "curl",
            "-sS",
            "-w",
            " %{http_code}",
            "--data-binary",
            f"@{body}",
            "-H",
            "Content-Type: application/json",
        ]
        command += ["-H", "Content-Encoding: gzip"] if compress else []
        out = subprocess.run(
            [*command, f"{collector.url}/v1/traces"], capture_output=True, text=True, check=True
        ).stdout
        assert out == "{} 200"
    (run,) = list_runs(tmp_path / "runs")
    assert sum(run.calls("all").values()) == len({span["spanId"] for span in given})
    assert run.header["intake"]["spans"]["accepted"] == len(given)
    assert run.header["traces"]["folded"] == 1


@pytest.mark.parametrize("way", ["grpc", "http-gzip"])
def test_a_large_request_is_taken_in_pieces_and_known_when_it_comes_again(tmp_path: Path, way: str) -> None:
    big = spans(30_000, "n" * 100)
    big.resource_spans.add().CopyFrom(spans(30_000).resource_spans[0])
    for span in (span for r in big.resource_spans for span in r.scope_spans[0].spans):
        span.attributes.append(KeyValue(key="k", value=AnyValue(string_value="v" * 100)))
    with running(config(tmp_path, serves=True)) as collector:
        for _ in range(2):
            assert send(collector, way, TRACES, big).code == 0
        counts = collector.collector.counts
        assert (counts.kept["spans"], counts.duplicate["spans"]) == (60_000, 60_000)
    for run in list_runs(tmp_path):
        frames = list(JournalReader(run.path / "spans.otlp"))
        assert len(frames) > 3
        assert max(frame.size for frame in frames) < 3 * 2**20
        assert sum(run.calls("all").values()) == 30_000


def test_a_huge_json_request_does_not_keep_the_others_waiting(tmp_path: Path) -> None:
    big = spans(6_000)
    for span in big.resource_spans[0].scope_spans[0].spans:
        span.attributes.append(KeyValue(key="k", value=AnyValue(string_value="v" * 50)))
    with running(config(tmp_path, serves=True)) as collector:
        answers: list[int] = []
        sender = threading.Thread(target=lambda: answers.append(send(collector, "json", TRACES, big).code))
        sender.start()
        waits = []
        while sender.is_alive():
            began = time.monotonic()
            requests.get(f"{collector.url}/control/v1/recorders", timeout=20)
            waits.append(time.monotonic() - began)
        sender.join()
    assert answers == [0]
    assert max(waits) < 2.0
    assert len(waits) > 3
