"""OTLP in: both transports, both encodings, the official exporters as clients, and what is malformed."""

from __future__ import annotations

import errno
import gzip
import json
import os
import socket
import threading
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import requests
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import TraceServiceStub
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from running_collector import ControlClient, RunningCollector, config, running, until
from simulated_recorder import Behaviour, SimulatedRecorder, closing_request, make_step, step_requests

from vime_otel.data.rundir import RunDirectory

CASES = Path(__file__).parents[3] / "shared" / "cases" / "otlp"
ENGINE = "00000000000000a1"
PROTOBUF = {"Content-Type": "application/x-protobuf"}
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def collector(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCollector]:
    with running(config(tmp_path_factory.mktemp("runs"))) as running_collector:
        yield running_collector


@pytest.fixture
def open_recording(tmp_path: Path) -> Iterator[tuple[RunningCollector, str]]:
    """A collector with a recording that waits for the data of engine ENGINE, and gets none from it."""
    with (
        running(config(tmp_path)) as collector,
        SimulatedRecorder(collector.url, ENGINE, 8001, Behaviour(most_steps=0, closing_event=False)) as engine,
    ):
        recording = ControlClient(collector.url).start(steps=2)
        until(lambda: engine.phase == "armed")
        yield collector, recording


def post(collector: RunningCollector, path: str, content: bytes, headers: dict[str, str]) -> requests.Response:
    return requests.post(f"{collector.url}{path}", data=content, headers=headers, timeout=20)


def finish(collector: RunningCollector, recording: str) -> RunDirectory:
    client = ControlClient(collector.url)
    client.call("DELETE", f"/recordings/{recording}")
    return RunDirectory(Path(client.finish(recording)["run"]))


@pytest.mark.parametrize("path", ["/v1/traces", "/v1/logs"])
def test_an_empty_request_is_a_success(collector: RunningCollector, path: str) -> None:
    for headers, content in ((PROTOBUF, b""), (JSON, b"{}")):
        answer = post(collector, path, content, headers)
        assert answer.status_code == 200
        assert answer.headers["Content-Type"] == headers["Content-Type"]
        assert answer.content in (b"", b"{}")


@pytest.mark.parametrize("path", ["/v1/traces", "/v1/logs"])
@pytest.mark.parametrize(
    ("headers", "content", "status"),
    [
        (PROTOBUF, b"\xff\xff\xff", 400),
        (JSON, b"[]", 400),
        (JSON, b'{"resourceSpans": 3, "resourceLogs": 3}', 400),
        (JSON, b"not json", 400),
        (PROTOBUF | {"Content-Encoding": "gzip"}, b"not gzip", 400),
        (PROTOBUF | {"Content-Encoding": "gzip"}, gzip.compress(b"abc")[:-9], 400),
        (PROTOBUF | {"Content-Encoding": "br"}, b"", 415),
        ({"Content-Type": "text/plain"}, b"", 415),
        (PROTOBUF | {"Content-Encoding": "gzip"}, gzip.compress(bytes(65 * 2**20)), 413),
    ],
)
def test_what_is_wrong_is_told_in_the_clients_own_type(
    collector: RunningCollector, path: str, headers: dict[str, str], content: bytes, status: int
) -> None:
    answer = post(collector, path, content, headers)
    assert answer.status_code == status
    if headers["Content-Type"] == "application/x-protobuf":
        assert answer.headers["Content-Type"] == "application/x-protobuf"
        assert Status.FromString(answer.content).message
    else:
        assert answer.json()["message"]


def test_only_post_is_taken(collector: RunningCollector) -> None:
    answer = requests.get(f"{collector.url}/v1/traces", timeout=10)
    assert (answer.status_code, answer.headers["Allow"]) == (405, "POST")
    assert "takes POST, not GET" in answer.json()["message"]


def test_too_large_is_cut_off_unread(collector: RunningCollector) -> None:
    host, port = collector.url.removeprefix("http://").split(":")
    head = f"POST /v1/traces HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/x-protobuf\r\n"
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(f"{head}Content-Length: {65 * 2**20}\r\n\r\n".encode())
        assert connection.recv(200).startswith(b"HTTP/1.1 413")


def test_a_gzip_stream_of_several_members_is_taken(collector: RunningCollector) -> None:
    content = gzip.compress(b"{") + gzip.compress(b" }")
    assert post(collector, "/v1/traces", content, JSON | {"Content-Encoding": "gzip"}).status_code == 200


def test_what_is_no_http_does_no_harm(collector: RunningCollector) -> None:
    host, port = collector.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(b"\x16\x03\x01 this is no HTTP\r\n\r\n")
        assert b"400" in connection.recv(200)
    assert post(collector, "/v1/traces", b"", PROTOBUF).status_code == 200


@pytest.mark.parametrize("name", ["proto-example-trace.json", "jaeger-otlp-in.json", "jaeger-ui-otlp-in-error.json"])
def test_foreign_spans_are_told_not_to_be_kept(collector: RunningCollector, name: str) -> None:
    if not CASES.is_dir():
        pytest.skip(f"{CASES} is not there")
    content = (CASES / name).read_bytes()
    spans = sum(len(scope["spans"]) for each in json.loads(content)["resourceSpans"] for scope in each["scopeSpans"])
    answer = post(collector, "/v1/traces", content, JSON)
    assert answer.status_code == 200
    partial = answer.json()["partialSuccess"]
    assert partial["rejectedSpans"] == str(spans)
    assert partial["errorMessage"] == f"{spans} spans belong to no recording that is open here (no recording named)"


def test_protobuf_and_json_gzip_and_plain_make_the_same(open_recording: tuple[RunningCollector, str]) -> None:
    collector, recording = open_recording
    steps = [make_step(recording, ENGINE, index, 1) for index in range(2)]
    sent = [request for step in steps for request in step_requests(recording, step)]
    sent.append(("/v1/logs", closing_request(recording, ENGINE, steps)))
    for number, (path, content) in enumerate(sent):
        if number % 3 == 0:
            headers = PROTOBUF
        elif number % 3 == 1:
            headers, content = PROTOBUF | {"Content-Encoding": "gzip"}, gzip.compress(content)
        else:
            headers, content = JSON, _as_otlp_json(path, content)
        answer = post(collector, path, content, headers)
        assert (answer.status_code, answer.content) == (200, b"{}" if headers is JSON else b"")
    run = finish(collector, recording)
    assert run.header["mismatched_steps"] == []
    assert run.header["spans"] == {"expected": 40, "received": 40, "duplicate": 0, "dropped": 0}
    assert run.header["totals"] == {"expected": 4, "received": 4, "duplicate": 0}
    assert run.rows == [step.row for step in steps]


def _as_otlp_json(path: str, content: bytes) -> bytes:
    """As another implementation writes it: ids in upper-case hexadecimal, fields that nobody knows."""
    from google.protobuf.json_format import MessageToDict

    from collector.otlp.signals import KEPT

    signal = next(signal for signal in KEPT if signal.path == path)
    tree = MessageToDict(signal.request_type.FromString(content), use_integers_for_enums=True)
    for resource in tree.get("resourceSpans", tree.get("resourceLogs", [])):
        resource["newField"] = {"traceId": 3}
        for scope in resource.get("scopeSpans", resource.get("scopeLogs", [])):
            for item in scope.get("spans", scope.get("logRecords", [])):
                for key in ("traceId", "spanId", "parentSpanId"):
                    if key in item:
                        item[key] = _hexadecimal(item[key]).upper()
                if "startTimeUnixNano" in item:
                    item["startTimeUnixNano"] = int(item["startTimeUnixNano"])
    return json.dumps(tree).encode()


def _hexadecimal(base64_text: str) -> str:
    import base64

    return base64.b64decode(base64_text).hex()


def test_a_request_of_several_recordings_is_taken_apart(open_recording: tuple[RunningCollector, str]) -> None:
    collector, recording = open_recording
    ours = ExportTraceServiceRequest.FromString(
        dict(step_requests(recording, make_step(recording, ENGINE, 0, 1)))["/v1/traces"]
    )
    strange = ExportTraceServiceRequest.FromString(
        dict(step_requests("0" * 16, make_step("0" * 16, ENGINE, 0, 1)))["/v1/traces"]
    )
    wrong_engine = ExportTraceServiceRequest.FromString(
        dict(step_requests(recording, make_step(recording, "../../../etc/x", 0, 1)))["/v1/traces"]
    )
    for each in (strange, wrong_engine):
        ours.MergeFrom(each)
    answer = post(collector, "/v1/traces", ours.SerializeToString(), PROTOBUF)
    partial = ExportTraceServiceResponse.FromString(answer.content).partial_success
    assert partial.rejected_spans == 8
    assert "recording 0000000000000000" in partial.error_message
    assert "engine ../../../etc/x" in partial.error_message
    assert finish(collector, recording).header["spans"]["received"] == 4


@pytest.mark.parametrize(
    ("part", "value"),
    [("body", {"stacks": ["a"], "inclusive_ns": [1, 2], "calls": [1]}), ("body", None), ("interval_ns", "long")],
)
def test_malformed_events_are_rejected_and_told(
    open_recording: tuple[RunningCollector, str], part: str, value: Any
) -> None:
    from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

    from vime_otel.data.otlp import any_value

    collector, recording = open_recording
    sent = list(step_requests(recording, make_step(recording, ENGINE, 0, 1)))
    for path, content in sent[:-1]:
        assert post(collector, path, content, PROTOBUF).content == b""
    request = ExportLogsServiceRequest.FromString(sent[-1][1])
    record = request.resource_logs[0].scope_logs[0].log_records[0]
    if part == "body":
        record.body.CopyFrom(any_value(value))
    else:
        next(each for each in record.attributes if each.key.endswith(part)).value.CopyFrom(any_value(value))
    answer = post(collector, "/v1/logs", request.SerializeToString(), PROTOBUF)
    partial = ExportLogsServiceResponse.FromString(answer.content).partial_success
    assert (partial.rejected_log_records, partial.error_message) == (1, "1 log records are malformed")
    reasons = finish(collector, recording).header["reasons"]
    assert "malformed and not in the totals: 1 log event" in reasons


@pytest.mark.parametrize("transport", ["grpc", "grpc-gzip", "http", "http-gzip"])
def test_the_official_exporters_are_served(open_recording: tuple[RunningCollector, str], transport: str) -> None:
    collector, recording = open_recording
    exporter: SpanExporter
    if transport.startswith("grpc"):
        exporter = GrpcExporter(
            endpoint=collector.collector.grpc_address,
            insecure=True,
            compression=grpc.Compression.Gzip if "gzip" in transport else None,
        )
    else:
        exporter = HttpExporter(
            endpoint=f"{collector.url}/v1/traces",
            compression=Compression.Gzip if "gzip" in transport else Compression.NoCompression,
        )
    results: list[SpanExportResult] = []
    provider = TracerProvider(
        resource=Resource({"vime.recording.id": recording, "service.instance.id": ENGINE, "vime.rank": 0})
    )
    provider.add_span_processor(SimpleSpanProcessor(_Noting(exporter, results)))
    with provider.get_tracer("test").start_as_current_span("outer", attributes={"vime.stack": "step;outer"}):
        pass
    provider.shutdown()
    assert results == [SpanExportResult.SUCCESS]
    assert finish(collector, recording).header["spans"]["received"] == 1


class _Noting(SpanExporter):
    """Passes on and notes the results."""

    def __init__(self, exporter: SpanExporter, results: list[SpanExportResult]) -> None:
        self._exporter = exporter
        self._results = results

    def export(self, spans: Any) -> SpanExportResult:
        kept: list[ReadableSpan] = list(spans)
        self._results.append(self._exporter.export(kept))
        return self._results[-1]

    def shutdown(self) -> None:
        self._exporter.shutdown()


def test_grpc_tells_what_is_wrong(collector: RunningCollector) -> None:
    with grpc.insecure_channel(collector.collector.grpc_address) as channel:
        export = channel.unary_unary("/opentelemetry.proto.collector.trace.v1.TraceService/Export")
        with pytest.raises(grpc.RpcError) as malformed:
            export(b"\xff\xff\xff", timeout=10)
        assert malformed.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        with pytest.raises(grpc.RpcError) as unknown:
            channel.unary_unary("/opentelemetry.proto.collector.profiles.v1.ProfilesService/Export")(b"", timeout=10)
        assert unknown.value.code() is grpc.StatusCode.UNIMPLEMENTED
        assert TraceServiceStub(channel).Export(ExportTraceServiceRequest(), timeout=10) == ExportTraceServiceResponse()
    with grpc.insecure_channel(collector.collector.grpc_address, [("grpc.max_send_message_length", -1)]) as channel:
        export = channel.unary_unary("/opentelemetry.proto.collector.trace.v1.TraceService/Export")
        with pytest.raises(grpc.RpcError) as large:
            export(bytes(65 * 2**20), timeout=20)
        assert large.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_a_full_disk_is_retryable_over_both_transports(
    open_recording: tuple[RunningCollector, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    collector, recording = open_recording
    sent = list(step_requests(recording, make_step(recording, ENGINE, 0, 1)))

    def full(descriptor: int, buffers: list[bytes]) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch, grpc.insecure_channel(collector.collector.grpc_address) as channel:
        patch.setattr(os, "writev", full)
        for path, content in sent:
            answer = post(collector, path, content, PROTOBUF)
            assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
            assert_retryable(Status.FromString(answer.content), "can't write what came: No space left on device")
        export = channel.unary_unary("/opentelemetry.proto.collector.trace.v1.TraceService/Export")
        with pytest.raises(grpc.RpcError) as refused:
            export(sent[0][1], timeout=10)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        trailers = dict(refused.value.trailing_metadata())
        assert_retryable(Status.FromString(trailers["grpc-status-details-bin"]), "No space left on device")
        assert RetryInfo.FromString(trailers["google.rpc.retryinfo-bin"]).retry_delay.seconds == 1
    told = next(record for record in caplog.records if "can't be written" in record.getMessage())
    assert "spans.otlp can't be written (No space left on device): clients are asked to try again" in told.getMessage()
    assert collector.collector.counts.kept == Counter()
    for path, content in sent:
        assert post(collector, path, content, PROTOBUF).status_code == 200
    header = finish(collector, recording).header
    assert header["spans"] == {"expected": 0, "received": 20, "duplicate": 0, "dropped": 0}
    assert header["intake"]["spans"] == {"accepted": 20, "kept": 20, "duplicate": 0, "dropped": {}}


def assert_retryable(status: Status, message: str) -> None:
    assert message in status.message
    retry = RetryInfo()
    assert status.details[0].Unpack(retry)
    assert retry.retry_delay.seconds == 1


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    path=st.sampled_from(["/v1/traces", "/v1/logs"]),
    as_json=st.booleans(),
    compress=st.booleans(),
    content=st.one_of(
        st.binary(max_size=200),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.text(max_size=5),
            lambda inner: st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["resourceSpans", "scopeSpans", "spans", "resourceLogs", "scopeLogs", "logRecords", "resource",
                     "attributes", "key", "value", "traceId", "spanId", "links", "body", "intValue",
                     "kvlistValue", "values"]
                ),
                inner,
                max_size=4,
            ),
            max_leaves=12,
        ).map(lambda tree: json.dumps(tree).encode()),
    ),
)  # fmt: skip
def test_no_input_is_a_fault_of_the_collector(
    collector: RunningCollector, path: str, as_json: bool, compress: bool, content: bytes
) -> None:
    headers = dict(JSON if as_json else PROTOBUF)
    if compress:
        headers["Content-Encoding"] = "gzip"
        content = zlib.compress(content, wbits=31)
    answer = post(collector, path, content, headers)
    assert answer.status_code in (200, 400)


def test_many_clients_at_once_lose_nothing(open_recording: tuple[RunningCollector, str]) -> None:
    collector, recording = open_recording
    steps = [make_step(recording, ENGINE, index, 2) for index in range(12)]

    def send(some: list[Any]) -> None:
        for step in some:
            for path, content in step_requests(recording, step):
                assert post(collector, path, content, PROTOBUF).status_code == 200

    # Every step is sent by two clients.
    threads = [threading.Thread(target=send, args=(some,)) for some in (steps[:8], steps[4:], steps[:4] + steps[8:])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    header = finish(collector, recording).header
    assert header["spans"] == {"expected": 0, "received": 12 * 36, "duplicate": 12 * 36, "dropped": 0}
    assert header["totals"] == {"expected": 0, "received": 36, "duplicate": 36}
    assert header["mismatched_steps"] == []
