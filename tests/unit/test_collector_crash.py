"""A collector that is killed at any moment, under load, or has no disk: what it acknowledged is there once."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import grpc
import psutil
import pytest
import requests
from collector_process import CollectorProcess
from google.rpc.status_pb2 import Status
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from running_collector import ControlClient, until
from simulated_recorder import Behaviour, SimulatedRecorder, closing_request, make_step, step_requests

from vime_otel.data import otlp
from vime_otel.data.find_runs import list_runs
from vime_otel.data.run_files import OPEN_FILE
from vime_otel.data.rundir import RunDirectory

ENGINE = "00000000000000a1"
RANKS = 2
SPANS_A_STEP = 36
SERVICES = {
    "/v1/traces": "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
    "/v1/logs": "/opentelemetry.proto.collector.logs.v1.LogsService/Export",
}


def foreign_request(number: int) -> bytes:
    """A trace of three spans of another service, all its own."""
    trace_id, ids = number.to_bytes(16, "big"), [bytes([place]) + number.to_bytes(7, "big") for place in (1, 2, 3)]
    spans = [
        Span(trace_id=trace_id, span_id=ids[0], name="request", start_time_unix_nano=1000, end_time_unix_nano=9000),
        Span(trace_id=trace_id, span_id=ids[1], parent_span_id=ids[0], name="query",
             start_time_unix_nano=2000, end_time_unix_nano=5000),
        Span(trace_id=trace_id, span_id=ids[2], parent_span_id=ids[1], name="fetch",
             start_time_unix_nano=3000, end_time_unix_nano=4000),
    ]  # fmt: skip
    return otlp.trace_request(otlp.resource({"service.name": "shop"}), spans).SerializeToString()


class Client(threading.Thread):
    """Sends steps, each request until it is acknowledged, over HTTP or gRPC; some it sends again, all the same."""

    def __init__(self, collector: CollectorProcess, recording: str, indices: range, over_grpc: bool) -> None:
        super().__init__(name=f"client {indices}")
        self._collector = collector
        self._recording = recording
        self._indices = indices
        self._random = random.Random(indices.start)
        self._send = self._over_grpc if over_grpc else self._over_http
        self.ended = threading.Event()
        self.steps = 0
        self.tries = 0
        self.acknowledged = 0

    def run(self) -> None:
        with requests.Session() as self._session, grpc.insecure_channel(self._collector.grpc_address) as self._channel:
            for index in self._indices:
                step = make_step(self._recording, ENGINE, index, RANKS)
                foreign = ("/v1/traces", foreign_request(index + 1))
                for path, content in (*step_requests(self._recording, step), foreign):
                    for _ in range(1 + (self._random.random() < 0.1)):
                        while not self._send(path, content):
                            self.tries += 1
                            time.sleep(0.02)
                        self.acknowledged += 1
                self.steps += 1
                if self.ended.is_set():
                    return

    def _over_http(self, path: str, content: bytes) -> bool:
        try:
            answer = self._session.post(
                f"{self._collector.url}{path}", content, headers={"Content-Type": "application/x-protobuf"}, timeout=10
            )
        except requests.RequestException:
            return False
        assert answer.status_code in (200, 503), answer.text
        assert answer.status_code != 200 or answer.content == b"", answer.content
        return answer.status_code == 200

    def _over_grpc(self, path: str, content: bytes) -> bool:
        try:
            answer = self._channel.unary_unary(SERVICES[path])(content, timeout=10)
        except grpc.RpcError as error:
            if error.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                raise
            return False
        assert answer == b"", answer
        return True


@pytest.mark.parametrize("kills", [3, pytest.param(50, marks=pytest.mark.long)])
def test_killed_at_any_moment_it_loses_nothing_and_counts_nothing_twice(tmp_path: Path, kills: int) -> None:
    rnd = random.Random(kills)
    with (
        CollectorProcess(tmp_path / "runs") as collector,
        SimulatedRecorder(collector.url, ENGINE, 8001, Behaviour(most_steps=0, closing_event=False)) as engine,
    ):
        control = ControlClient(collector.url)
        recording = control.start(steps=2, timeout_seconds=3600)
        until(lambda: engine.phase == "armed")
        clients = [Client(collector, recording, range(n * 10**5, (n + 1) * 10**5), n % 2 == 1) for n in range(4)]
        for client in clients:
            client.start()
        for _ in range(kills):
            so_far = sum(client.acknowledged for client in clients)
            until(lambda least=so_far + 20: sum(client.acknowledged for client in clients) >= least, 60)
            time.sleep(rnd.random() * 0.3)
            collector.kill()
            collector.start()
        for client in clients:
            client.ended.set()
        for client in clients:
            client.join()
        steps = [
            make_step(recording, ENGINE, index, RANKS)
            for client in clients
            for index in client._indices[: client.steps]
        ]
        closing = closing_request(recording, ENGINE, steps)
        requests.post(
            f"{collector.url}/v1/logs", closing, headers={"Content-Type": "application/x-protobuf"}, timeout=9
        )
        control.call("DELETE", f"/recordings/{recording}")
        run = RunDirectory(Path(control.finish(recording)["run"]))
        assert collector.terminate() == 0
    check_foreign(collector.runs, len(steps))
    expected = {part.totals.key: part.totals for step in steps for part in step.parts}
    assert {part.key: part for part in run.totals()} == expected
    header = run.header
    spans = SPANS_A_STEP * len(steps)
    assert (header["spans"]["expected"], header["spans"]["received"]) == (spans, spans)
    assert (header["totals"]["expected"], header["totals"]["received"]) == (len(expected), len(expected))
    assert header["mismatched_steps"] == []
    for of in header["intake"].values():
        assert of["accepted"] == of["kept"] + of["duplicate"] + sum(of["dropped"].values())
        assert of["dropped"] == {}
    assert header["intake"]["spans"]["kept"] == spans
    assert header["notes"].count("the collector ended abruptly while this was recorded, and was started again") == 1
    assert sum(client.tries for client in clients) > 0
    assert not (run.path / OPEN_FILE).exists()


def check_foreign(runs: Path, traces: int) -> None:
    (run,) = [run for run in list_runs(runs) if run.header.get("service") == "shop"]
    assert run.steps == {"all": traces}
    assert run.calls("all") == {"request": traces, "request;query": traces, "request;query;fetch": traces}
    assert run.self_us("all") == {
        "request": 5 * traces, "request;query": 2 * traces, "request;query;fetch": traces,
    }  # fmt: skip
    taken = run.header["intake"]["spans"]
    assert taken["kept"] == 3 * traces
    assert taken["accepted"] == taken["kept"] + taken["duplicate"]
    assert run.header["traces"] == {"folded": traces, "orphans": 0, "overlapping": 0}


def test_a_recording_that_was_open_is_ended_by_the_next_collector(tmp_path: Path) -> None:
    with CollectorProcess(tmp_path / "runs") as collector:
        with SimulatedRecorder(collector.url, ENGINE, 8001, Behaviour(most_steps=0, closing_event=False)) as engine:
            recording = ControlClient(collector.url).start(steps=2, timeout_seconds=3600)
            until(lambda: engine.phase == "armed")
            for path, content in step_requests(recording, make_step(recording, ENGINE, 0, 1)):
                answer = requests.post(
                    f"{collector.url}{path}", content, headers={"Content-Type": "application/x-protobuf"}, timeout=10
                )
                assert answer.status_code == 200
        collector.kill()
        (journal,) = collector.runs.glob("*/spans.otlp")
        with open(journal, "ab") as file:
            file.write(b"\x01\x02\x03")
        assert list_runs(collector.runs) == []
        collector.start()
        assert collector.terminate() == 0
    (run,) = list_runs(collector.runs)
    assert run.id == recording
    assert run.header["complete"] is False
    assert run.header["spans"]["received"] == 20
    assert len(run.rows) == 1
    assert "3 bytes at the end of the journal were torn; nothing in them had been acknowledged" in run.header["notes"]
    assert any("vanished" in reason for reason in run.header["reasons"])
    assert "3 bytes at the end of the journal were torn" in collector.log.read_text()


def test_a_disk_that_is_full_for_a_while_is_told_and_recovers(tmp_path: Path) -> None:
    headers = {"Content-Type": "application/x-protobuf"}
    with CollectorProcess(tmp_path / "runs") as collector:
        process = psutil.Process(collector.pid)

        def post(number: int) -> requests.Response:
            return requests.post(f"{collector.url}/v1/traces", foreign_request(number), headers=headers, timeout=10)

        for number in range(1, 31):  # the journal is to be larger than the log, which has the same limit
            assert post(number).status_code == 200
        (journal,) = collector.runs.glob("*/spans.otlp")
        unlimited = process.rlimit(psutil.RLIMIT_FSIZE)
        process.rlimit(psutil.RLIMIT_FSIZE, (journal.stat().st_size + 50, unlimited[1]))
        for _ in range(3):
            refused = post(99)
            assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")
            assert "can't write what came: File too large" in Status.FromString(refused.content).message
        process.rlimit(psutil.RLIMIT_FSIZE, unlimited)
        assert post(99).status_code == 200
        assert post(99).status_code == 200
        assert collector.terminate() == 0
    (run,) = list_runs(collector.runs)
    assert run.calls("all")["request"] == 31
    assert run.header["intake"]["spans"] == {"accepted": 96, "kept": 93, "duplicate": 3, "dropped": {}}
    assert collector.log.read_text().count("clients are asked to try again") == 1


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff", b'{"format": 2}'])
def test_what_is_damaged_never_blocks_the_start(tmp_path: Path, content: bytes) -> None:
    folder = tmp_path / "runs" / "20261130T000000Z-00000000"
    folder.mkdir(parents=True)
    (folder / OPEN_FILE).write_bytes(content)
    with CollectorProcess(tmp_path / "runs") as collector:
        assert collector.terminate() == 0
    assert f"{OPEN_FILE} can't be read, so its recording is not ended" in collector.log.read_text()
