"""What the collector tells of itself: metrics, health, and its log."""

from __future__ import annotations

import errno
import io
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
import requests
from otlp_sink import OtlpSink
from prometheus_client.parser import text_string_to_metric_families
from running_collector import ControlClient, config, running, until
from simulated_recorder import SimulatedRecorder

from collector import logs
from collector.faults import log_refusal
from collector.forwarding.endpoint import parse_endpoint
from collector.logs import Logfmt, RateLimit

TOKEN = "s3cret-of-these-tests"


def samples(url: str, token: str = "") -> dict[tuple[str, ...], float]:
    """Every sample of /metrics by its name and its labels' values in order, read by Prometheus' own parser."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    answer = requests.get(f"{url}/metrics", headers=headers, timeout=10)
    assert answer.status_code == 200
    assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    return {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def test_the_counts_of_a_recording_reconcile_and_have_the_collectors_names(tmp_path: Path) -> None:
    with OtlpSink() as sink:
        endpoint = parse_endpoint(sink.endpoint)
        with (
            running(config(tmp_path, forward=(endpoint,), max_disk=2**40)) as collector,
            SimulatedRecorder(collector.url),
        ):
            assert ControlClient(collector.url).record(steps=3)["complete"]
            until(lambda: samples(collector.url)["otelcol_exporter_sent_spans_total", endpoint.url])
            until(lambda: samples(collector.url)["vime_otel_forward_waiting_bytes", endpoint.url] == 0)
            found = samples(collector.url)
    spans = found["otelcol_receiver_accepted_spans_total", "http", "otlp"]
    assert spans > 0
    assert found["vime_otel_kept_items_total", "spans"] == spans
    assert found["otelcol_receiver_accepted_log_records_total", "http", "otlp"] == 3 * 2 + 1
    assert found["otelcol_exporter_sent_spans_total", endpoint.url] == spans == len(sink.spans())
    assert found["otelcol_exporter_send_failed_spans_total", endpoint.url] == 0
    assert found["vime_otel_recordings", "done"] == 1
    assert found["vime_otel_recorders",] == 1
    assert found["vime_otel_journal_bytes_total",] > 0
    assert found["otelcol_process_memory_rss_bytes",] > 10e6
    assert found["otelcol_process_cpu_seconds_total",] > 0
    assert found["otelcol_process_uptime_seconds_total",] > 0
    assert found["vime_otel_runs_bytes",] >= 0


def test_metrics_ask_for_the_token_and_health_does_not(tmp_path: Path) -> None:
    with running(config(tmp_path, token=TOKEN)) as collector:
        assert requests.get(f"{collector.url}/metrics", timeout=10).status_code == 401
        assert samples(collector.url, TOKEN)["otelcol_receiver_accepted_spans_total", "grpc", "otlp"] == 0
        for path in ("/healthz", "/readyz"):
            answer = requests.get(f"{collector.url}{path}", timeout=10)
            assert (answer.status_code, answer.text) == (200, "ok\n")


def test_a_refused_request_is_counted_with_its_reason(tmp_path: Path) -> None:
    with running(config(tmp_path)) as collector:
        headers = {"Content-Type": "application/x-protobuf"}
        assert requests.post(f"{collector.url}/v1/traces", b"\xff", headers=headers, timeout=10).status_code == 400
        assert samples(collector.url)["vime_otel_refused_requests_total", "http", "malformed", "spans"] == 1


def test_a_request_without_the_token_is_counted_over_either_transport(tmp_path: Path) -> None:
    with running(config(tmp_path, token=TOKEN)) as collector:
        assert requests.post(f"{collector.url}/v1/logs", timeout=10).status_code == 401
        with grpc.insecure_channel(collector.collector.grpc_address) as channel:
            export = channel.unary_unary("/opentelemetry.proto.collector.logs.v1.LogsService/Export")
            with pytest.raises(grpc.RpcError):
                export(b"", timeout=10)
        found = samples(collector.url, TOKEN)
        for transport in ("http", "grpc"):
            assert found["vime_otel_refused_requests_total", transport, "log_records", "unauthenticated"] == 1


def test_where_runs_can_not_be_written_it_is_healthy_and_not_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(config(tmp_path)) as collector:
        monkeypatch.setattr("collector.health.os.access", lambda *of: False)  # root may write anywhere
        assert requests.get(f"{collector.url}/healthz", timeout=10).status_code == 200
        answer = requests.get(f"{collector.url}/readyz", timeout=10)
        assert (answer.status_code, answer.text) == (503, "the folder of the runs can't be written\n")


def test_while_the_disk_refuses_what_comes_it_is_not_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, buffers: list[bytes]) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with running(config(tmp_path, serves=True)) as collector:

        def post(trace_id: str) -> int:
            span = {"traceId": trace_id * 32, "spanId": "1" * 16}
            body = {"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}
            return requests.post(f"{collector.url}/v1/traces", json=body, timeout=10).status_code

        def ready() -> tuple[int, str]:
            answer = requests.get(f"{collector.url}/readyz", timeout=10)
            return answer.status_code, answer.text

        with monkeypatch.context() as patch:
            patch.setattr(os, "writev", full)
            assert post("a") == 503
            assert ready() == (503, "the disk refuses what comes\n")
        assert post("b") == 200
        assert ready() == (200, "ok\n")
        # What keeps clients away must not depend on clients.
        with monkeypatch.context() as patch:
            patch.setattr(os, "writev", full)
            assert post("c") == 503
        monkeypatch.setattr("collector.journal.commits._REFUSAL_SECONDS", 0.0)
        assert ready() == (200, "ok\n")


def test_services_that_fold_today_are_counted(tmp_path: Path) -> None:
    with running(config(tmp_path, serves=True)) as collector:
        for service in ("shop", "till"):
            resource = {"attributes": [{"key": "service.name", "value": {"stringValue": service}}]}
            span = {"traceId": "a" * 32, "spanId": "1" * 16}
            body = {"resourceSpans": [{"resource": resource, "scopeSpans": [{"spans": [span]}]}]}
            assert requests.post(f"{collector.url}/v1/traces", json=body, timeout=10).status_code == 200
        found = samples(collector.url)
    assert found["vime_otel_foreign_services",] == 2
    assert found["vime_otel_foreign_open_spans",] == 2


def test_refused_requests_are_in_the_log_without_what_was_shown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with running(config(tmp_path, token=TOKEN)) as collector:
        right = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/x-protobuf"}
        requests.post(f"{collector.url}/v1/traces", b"\xff", headers=right, timeout=10)
        requests.post(f"{collector.url}/v1/logs", headers={"Authorization": "Bearer of-another"}, timeout=10)
    assert "a request with spans over http was refused (malformed): the message is not an OTLP request" in caplog.text
    assert "a request over http was refused (unauthenticated): /v1/logs from 127.0.0.1" in caplog.text
    assert TOKEN not in caplog.text
    assert "of-another" not in caplog.text


def test_beginning_and_end_of_a_recording_are_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with running(config(tmp_path)) as collector:
        nobody = ControlClient(collector.url).record(wait_seconds=0)["id"]
        with SimulatedRecorder(collector.url):
            recording = ControlClient(collector.url).record(steps=2)
            until(lambda: " is complete" in caplog.text)
    assert f"recording {nobody} failed: no engine to record within 0 s" in caplog.text
    assert f"recording {recording['id']}: 1 engine told to record" in caplog.text
    assert f"recording {recording['id']} is complete: {recording['run']}" in caplog.text


# -- the log ----------------------------------------------------------------------------------


@pytest.fixture
def log() -> Iterator[tuple[logging.Logger, io.StringIO]]:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(Logfmt(["", TOKEN]))
    handler.addFilter(RateLimit())
    logger = logging.getLogger("collector.test")
    logger.addHandler(handler)
    logger.propagate = False
    yield logger, stream
    logger.removeHandler(handler)
    logger.propagate = True


def test_a_line_is_logfmt_whatever_is_in_the_message(log: tuple[logging.Logger, io.StringIO]) -> None:
    logger, stream = log
    logger.warning('it said "no"\nlevel=error fake=%s', "\x1b[31m\\")
    (line,) = stream.getvalue().splitlines()
    assert line.startswith("time=20")
    assert line.endswith(r'level=warning logger=collector.test message="it said \"no\"\nlevel=error fake=\u001b[31m\\"')


def test_a_secret_is_shown_in_no_part_of_a_line(log: tuple[logging.Logger, io.StringIO]) -> None:
    logger, stream = log
    try:
        raise ValueError(f"Bearer {TOKEN}")
    except ValueError:
        logger.error("refused %s", TOKEN, exc_info=sys.exc_info())
    assert TOKEN not in stream.getvalue()
    assert "***" in stream.getvalue()
    assert len(stream.getvalue().splitlines()) == 1


def test_the_same_warning_is_told_once_in_a_while_with_how_many_there_were(
    log: tuple[logging.Logger, io.StringIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    logger, stream = log
    now = [100.0]
    monkeypatch.setattr(logs.time, "monotonic", lambda: now[0])
    for number in range(50):
        logger.warning("the disk refuses %d", number)
    logger.warning("another kind")
    now[0] += logs.SAME_SECONDS
    logger.warning("the disk refuses %d", 50)
    first, other, later = stream.getvalue().splitlines()
    assert 'message="the disk refuses 0"' in first
    assert "another kind" in other
    assert later.endswith('message="the disk refuses 50" suppressed=49')


def test_refusals_are_limited_by_reason_and_other_information_is_not(log: tuple[logging.Logger, io.StringIO]) -> None:
    logger, stream = log
    logger.setLevel(logging.INFO)
    for number in range(50):
        log_refusal(logger, "a request", "malformed", str(number))
        log_refusal(logger, "a request", "overload", "100 % taken")
        logger.info("removed %d", number)
    assert stream.getvalue().count("malformed") == 1
    assert stream.getvalue().count("(overload): 100 % taken") == 1
    assert stream.getvalue().count("removed") == 50


def test_of_warnings_that_are_all_different_no_more_is_remembered_than_a_bound() -> None:
    limit = RateLimit()
    for number in range(3000):
        record = logging.LogRecord("x", logging.WARNING, "", 0, f"kind {number}", (), None)
        assert limit.filter(record)
    assert len(limit._last) <= 1000
