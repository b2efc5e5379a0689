"""What endpoints are: their URLs, what is spoken with them, what their answers mean, and what goes wrong there."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from aiohttp import web
from certificates import make_authority
from forwarding_runs import forwarding, made_ids, one_rank, write_steps
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from otlp_sink import OtlpSink
from running_collector import config, running, until
from standins import closed_port_url, serving_in_thread

from collector.forwarding.endpoint import Refused, parse_endpoint
from collector.forwarding.forward_journal import cursor_name
from vime_otel.data import settings
from vime_otel.data.errors import Unavailable, UsageError


class HttpSink:
    """An OTLP endpoint over HTTP; `answers` come first."""

    def __init__(self, answers: list[web.Response] | None = None) -> None:
        self.answers = answers or []
        self.headers: list[dict[str, str]] = []
        self.ids: list[bytes] = []

    async def take(self, request: web.Request) -> web.StreamResponse:
        self.headers.append(dict(request.headers))
        if self.answers:
            return self.answers.pop(0)
        for group in ExportTraceServiceRequest.FromString(await request.read()).resource_spans:
            self.ids += [span.span_id for scope in group.scope_spans for span in scope.spans]
        return web.Response()


def test_over_http_it_tries_again_as_told_and_sends_headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(settings.FORWARD_HEADERS.name, "x-scope=all, 127.0.0.1/Authorization=Basic%20abc%3D, other/x=y")
    answers = [
        web.Response(status=503, headers={"Retry-After": "0"}),
        web.Response(status=429),
        web.Response(status=401),
    ]
    sink = HttpSink(answers)
    with serving_in_thread({"POST /otlp/v1/traces": sink.take}) as (url,):
        with forwarding(tmp_path, parse_endpoint(f"{url}/otlp")) as forwarder:
            write_steps(tmp_path / "run", 0, 2)
            until(lambda: sorted(sink.ids) == made_ids(0, 2, one_rank))
        assert forwarder.counts.failed_requests == 3
    assert sink.headers[-1]["Authorization"] == "Basic abc="
    assert sink.headers[-1]["x-scope"] == "all"
    assert "x" not in sink.headers[-1]


def test_over_http_a_refusal_and_a_partial_success_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    partial = ExportTraceServiceResponse()
    partial.partial_success.rejected_spans = 3
    partial.partial_success.error_message = "too old"
    answers = [web.Response(status=400, text="no"), web.Response(body=partial.SerializeToString())]
    sink = HttpSink(answers)
    write_steps(tmp_path / "run", 0, 1)
    with serving_in_thread({"POST /v1/traces": sink.take}) as (url,):
        with forwarding(tmp_path, parse_endpoint(f"{url}/v1/traces")) as forwarder:
            each = len(made_ids(0, 1, one_rank))
            until(lambda: forwarder.counts.refused == each)
            write_steps(tmp_path / "run", 1, 2)
            until(lambda: forwarder.counts.refused == each + 3)
        assert forwarder.counts.sent == each - 3
    assert "answers 400: no" in caplog.text
    assert "left out 3 spans of run: too old" in caplog.text


@pytest.mark.parametrize("transport", ["http", "grpc"])
def test_tls_is_spoken_and_the_right_authority_asked_for(
    transport: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = make_authority(tmp_path)
    files = authority.issue(tmp_path, "localhost", "127.0.0.1")
    request = ExportTraceServiceRequest()
    with contextlib.ExitStack() as stack:
        url = stack.enter_context(_tls_sink(transport, files))
        with pytest.raises(Unavailable):
            parse_endpoint(url).connect().send(request)
        monkeypatch.setenv(settings.CA.name, str(authority.file))
        assert parse_endpoint(url).connect().send(request).rejected == 0


@contextlib.contextmanager
def _tls_sink(transport: str, files: Any) -> Iterator[str]:
    with running(config(files.certificate.parent / "runs", tls=files)) as collector:
        grpc_url = f"https://{collector.collector.grpc_address}"
        yield f"{collector.url}/v1/traces" if transport == "http" else grpc_url


# -- how endpoints are named ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "over_grpc", "secure", "target"),
    [
        ("http://tempo:4317", True, False, "tempo:4317"),
        ("http://tempo:4317/", True, False, "tempo:4317"),
        ("http://jaeger:4318", False, False, "http://jaeger:4318/v1/traces"),
        ("http://jaeger:4318/v1/traces", False, False, "http://jaeger:4318/v1/traces"),
        ("https://gateway.example/otlp", False, True, "https://gateway.example/otlp/v1/traces"),
        ("https://tempo.example:4317", True, True, "tempo.example:4317"),
        ("http://127.0.0.1:5000", True, False, "127.0.0.1:5000"),
        ("http://127.0.0.1:5000/v1/traces", False, False, "http://127.0.0.1:5000/v1/traces"),
        ("https://tempo", True, True, "tempo:4317"),
        ("http://[::1]:4317", True, False, "[::1]:4317"),
    ],
)
def test_urls_say_what_is_spoken(url: str, over_grpc: bool, secure: bool, target: str) -> None:
    endpoint = parse_endpoint(url)
    assert (endpoint.over_grpc, endpoint.secure, endpoint.target) == (over_grpc, secure, target)


@pytest.mark.parametrize(
    "url",
    ["", "tempo:4317", "ftp://tempo:4317", "http://", "http://a b:4317", "http://h:x", "http://h:99999", "grpc://h",
     "http://h:4318?x=1", "http://h:0"],
)  # fmt: skip
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(UsageError):
        parse_endpoint(url)


@pytest.mark.parametrize(
    ("answer", "why"),
    [(b"", "it closed the connection without an answer"), (b"\0\0\x18\x04", "it does not speak HTTP")],
)
def test_what_is_no_http_server_is_told_in_few_words(answer: bytes, why: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/v1/traces"

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        sender = parse_endpoint(url).connect()
        with pytest.raises(Unavailable) as told:
            sender.send(ExportTraceServiceRequest())
        sender.close()
        thread.join()
    assert str(told.value) == f"{url} can't be reached: {why}"


def test_an_endpoint_that_is_away_is_told_in_few_words() -> None:
    url = f"{closed_port_url()}/v1/traces"
    sender = parse_endpoint(url).connect()
    with pytest.raises(Unavailable) as told:
        sender.send(ExportTraceServiceRequest())
    sender.close()
    assert str(told.value) == f"{url} can't be reached: connection refused"


def test_a_password_in_a_url_is_refused_and_not_repeated() -> None:
    with pytest.raises(UsageError, match="VIME_OTEL_FORWARD_HEADERS") as told:
        parse_endpoint("http://user:hunter2@host:4318")
    assert "hunter2" not in str(told.value)


@pytest.mark.parametrize(
    "text", ["no-equals-sign", "=value", "a=b,c", "host/=v", "näme=v", "a=%ff%0a", "a b=v", "a!=v", "a:=v", "x-bin=v"]
)
def test_headers_that_can_not_be_sent_are_refused_without_their_values(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(settings.FORWARD_HEADERS.name, f"authorization=hunter2,{text}")
    with pytest.raises(UsageError) as told:
        parse_endpoint("http://host:4318")
    assert "hunter2" not in str(told.value)


def test_headers_are_in_no_log_and_no_cursor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv(settings.FORWARD_HEADERS.name, "authorization=hunter2")
    with OtlpSink() as sink:
        endpoint = parse_endpoint(sink.endpoint)
        with forwarding(tmp_path, endpoint) as forwarder:
            sink.refuse = lambda request: grpc.StatusCode.UNAUTHENTICATED
            write_steps(tmp_path / "run", 0, 1)
            until(lambda: forwarder.trouble)
            sink.refuse = lambda request: None
            until(lambda: sink.requests)
        assert sink.metadata[-1]["authorization"] == "hunter2"
    assert "hunter2" not in caplog.text
    assert "hunter2" not in (tmp_path / "run" / cursor_name(endpoint.url)).read_text()


def test_http_where_grpc_was_meant_is_told() -> None:
    with serving_in_thread({}) as (url,), pytest.raises(Unavailable, match=f"speaks HTTP and no gRPC.*{url}/v1/traces"):
        parse_endpoint(url).connect().send(ExportTraceServiceRequest())


def test_a_refusal_for_good_is_an_error_of_its_own() -> None:
    with serving_in_thread({"POST /v1/traces": HttpSink([web.Response(status=413)]).take}) as (url,):
        sender = parse_endpoint(f"{url}/v1/traces").connect()
        with pytest.raises(Refused, match="413"):
            sender.send(ExportTraceServiceRequest())
        sender.close()
