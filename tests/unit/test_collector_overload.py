"""Ten times more at once than the collector has memory for: it stays within it, and says to come again."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import threading
import time
from collections import Counter
from pathlib import Path

import grpc
import pytest
from collector_process import CollectorProcess
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from small_collector import PENDING_BYTES

from collector.counts import Counts
from collector.otlp import limits
from collector.otlp.limits import Budget, Overloaded
from collector.otlp.signals import TRACES
from vime_otel.data import otlp
from vime_otel.data.find_runs import list_runs

CLIENTS = 100
SPANS = 16_000
_TRACE = b"\xfe" * 16


def template() -> bytes:
    """A request of about 2 MiB, all of one trace; the trace id is to be replaced."""
    spans = [
        Span(trace_id=_TRACE, span_id=n.to_bytes(8, "big"), name="n" * 90, start_time_unix_nano=1, end_time_unix_nano=9)
        for n in range(1, SPANS + 1)
    ]
    return otlp.trace_request(otlp.resource({"service.name": "flood"}), spans).SerializeToString()


class Flood(threading.Thread):
    """A client that sends one request after the other, without a pause, whatever the answer."""

    def __init__(self, collector: CollectorProcess, content: bytes, until: float, over_grpc: bool) -> None:
        super().__init__(name="flood")
        self._content = content
        self._until = until
        self._collector = collector
        self._run = self._over_grpc if over_grpc else self._over_http
        self.answers: Counter[str] = Counter()

    def run(self) -> None:
        self._run()

    def _next(self) -> bytes | None:
        return self._content.replace(_TRACE, os.urandom(16)) if time.monotonic() < self._until else None

    def _over_http(self) -> None:
        host, port = self._collector.url.removeprefix("http://").split(":")
        while content := self._next():
            connection = http.client.HTTPConnection(host, int(port), timeout=60)
            try:
                connection.request("POST", TRACES.path, content, {"Content-Type": "application/x-protobuf"})
                answer = connection.getresponse()
                body = answer.read()
            except (BrokenPipeError, ConnectionResetError):
                # Refused while it still sent: it could not read why.
                self.answers["cut off"] += 1
                continue
            finally:
                connection.close()
            if answer.status == 200:
                self.answers["taken"] += 1
            else:
                assert (answer.status, answer.headers["Retry-After"]) == (503, "1"), body
                self.answers["refused" if Status.FromString(body).details[0].Is(RetryInfo.DESCRIPTOR) else "?"] += 1

    def _over_grpc(self) -> None:
        options = [("grpc.use_local_subchannel_pool", 1)]
        with grpc.insecure_channel(self._collector.grpc_address, options) as channel:
            export = channel.unary_unary(f"/{TRACES.grpc_service}/Export")
            while content := self._next():
                try:
                    export(content, timeout=60)
                    self.answers["taken"] += 1
                except grpc.RpcError as error:
                    if error.code() is not grpc.StatusCode.UNAVAILABLE:
                        raise
                    retry = dict(error.trailing_metadata())["google.rpc.retryinfo-bin"]
                    self.answers["refused" if RetryInfo.FromString(retry).retry_delay.seconds == 1 else "?"] += 1


@pytest.mark.parametrize("seconds", [4, pytest.param(60, marks=pytest.mark.long)])
def test_under_ten_times_too_much_memory_is_bounded_and_every_refusal_retryable(
    tmp_path: Path, seconds: int, capsys: pytest.CaptureFixture[str]
) -> None:
    content = template()
    assert CLIENTS * len(content) >= 10 * PENDING_BYTES
    with CollectorProcess(tmp_path / "runs", program=["-m", "small_collector"]) as collector:
        floods = [Flood(collector, content, time.monotonic() + seconds, n % 2 == 1) for n in range(CLIENTS)]
        for flood in floods:
            flood.start()
        for flood in floods:
            flood.join()
        memory = next(
            int(line.split()[1]) / 1024
            for line in Path(f"/proc/{collector.pid}/status").read_text().splitlines()
            if line.startswith("VmHWM")
        )
        assert collector.terminate() == 0
    counts = json.loads((tmp_path / "counts.json").read_text())
    answers = sum((flood.answers for flood in floods), Counter())
    with capsys.disabled():
        print(
            f"\n{CLIENTS} clients with {len(content) / 2**20:.1f} MiB each at a time for {seconds} s, room for"
            f" {PENDING_BYTES / 2**20:.0f} MiB: {dict(answers)}; the collector had {memory:.0f} MiB at most"
        )
    assert set(answers) <= {"taken", "refused", "cut off"}
    assert answers["taken"] > 0
    assert answers["refused"] > 0
    assert counts["accepted"] == counts["kept"] == answers["taken"] * SPANS
    assert set(counts["refused"]) == {"overload"}
    assert counts["refusals"] == answers["refused"] + answers["cut off"]
    assert counts["pending"] == [0, 0]
    assert memory < 400
    (run,) = list_runs(tmp_path / "runs")
    assert sum(run.calls("all").values()) == counts["kept"]
    assert run.header["intake"]["spans"]["kept"] == counts["kept"]


def test_room_is_given_in_the_order_of_asking() -> None:
    async def check() -> None:
        budget = Budget(Counts(), 100)
        order: list[int] = []

        async def use(number: int, size: int) -> None:
            with budget.room() as room:
                await room.take(size)
                order.append(number)
                await asyncio.sleep(0.01)

        await asyncio.gather(*(use(number, size) for number, size in enumerate((60, 60, 10, 100, 1))))
        assert order == [0, 1, 2, 3, 4]
        assert budget.counts.pending_bytes == 0

    asyncio.run(check())


def test_one_request_alone_may_be_larger_than_all_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "_LONGEST_WAIT_S", 0.05)

    async def check() -> None:
        budget = Budget(Counts(), 100)
        with budget.room() as room:
            await room.take(10)
            await room.take(1000)
            with budget.room() as other, pytest.raises(Overloaded):
                await other.take(1)
        with budget.room() as room:
            await room.take(100)
        assert budget.counts.pending_bytes == 0

    asyncio.run(check())


def test_room_that_is_granted_in_the_moment_of_giving_up_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    async def as_from_python_312(turn: asyncio.Future[None], seconds: float) -> None:
        while not turn.done():
            await asyncio.sleep(0)
        raise asyncio.TimeoutError

    monkeypatch.setattr(limits.asyncio, "wait_for", as_from_python_312)

    async def check() -> None:
        budget = Budget(Counts(), 100)

        async def wait() -> None:
            with budget.room() as other:
                await other.take(50)

        with budget.room() as room:
            await room.take(100)
            waiting = asyncio.ensure_future(wait())
            await asyncio.sleep(0)
        await waiting
        assert budget.counts.pending_bytes == 0

    asyncio.run(check())


def test_who_gives_up_waiting_leaves_no_trace() -> None:
    async def check() -> None:
        budget = Budget(Counts(), 100)
        with budget.room() as room:
            await room.take(100)

            async def wait() -> None:
                with budget.room() as other:
                    await other.take(50)

            waiting = [asyncio.ensure_future(wait()) for _ in range(3)]
            await asyncio.sleep(0)
            waiting[0].cancel()
            await asyncio.sleep(0)
        for task in waiting[1:]:
            await task
        assert (budget.counts.pending_bytes, budget.counts.pending_requests) == (0, 0)

    asyncio.run(check())
