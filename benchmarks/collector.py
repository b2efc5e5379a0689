"""`make bench-collector`: spans per CPU-second and peak memory of the collector and of rotel, in the same run.

rotel is an OpenTelemetry collector written in Rust; here it throws away what it takes (its black hole). Ours journals
every request, with a sync before each answer, sums it and checks it against the step's totals, which come before.
Both get the same requests over the same number of connections, in turns; CPU time is the process's own, of all its
threads. Ours is asked for its counts afterwards.

rotel is looked for as `rotel-agent` in the folder of the package `rotel`: install it into an environment of its own
(`python -m venv DIR && DIR/bin/pip install rotel`) and name that in VIME_OTEL_BENCH_ROTEL=DIR.
"""

from __future__ import annotations

import http.client
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import psutil
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from recorder_of_load import RecorderOfLoad
from span_load import SPANS, RecorderLoad, ServiceLoad

from vime_otel.demo.ports import free_port

ROUNDS = 7
REQUESTS = 200
CONNECTIONS = 4
LONG_SPANS = 10_000_000
PEER = "VIME_OTEL_BENCH_ROTEL"
_TRACES, _LOGS = "/v1/traces", "/v1/logs"
_METHODS = {
    _TRACES: "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
    _LOGS: "/opentelemetry.proto.collector.logs.v1.LogsService/Export",
}
_MIB = 1024 * 1024

Request = tuple[str, bytes]
"""(path, protobuf)."""


class Contender:
    """A collector in a process of its own, with its ports."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], grpc_port: int, http_port: int) -> None:
        self.name = name
        self.process = process
        self.grpc_port = grpc_port
        self.http_port = http_port
        self.rates: dict[str, list[float]] = {"HTTP": [], "gRPC": []}
        self._of = psutil.Process(process.pid)

    def cpu_seconds(self) -> float:
        """What it has used until now, once it is quiet."""
        used = self._used()
        while True:
            time.sleep(0.3)
            now = self._used()
            if now - used < 0.02:
                return now
            used = now

    def peak_mib(self) -> float:
        """The most memory that it had."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) / 1024
        raise RuntimeError("no VmHWM")

    def rss_mib(self) -> float:
        """The memory that it has."""
        return float(self._of.memory_info().rss / _MIB)

    def _used(self) -> float:
        """Of all threads, in the scheduler's nanoseconds: clock ticks are too coarse for a round."""
        threads = Path(f"/proc/{self.process.pid}/task").glob("*/schedstat")
        return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9


@contextmanager
def ours(folder: Path) -> Iterator[Contender]:
    """`vime-otel serve`."""
    ports = free_port(), free_port()
    args = ["serve", "--out", str(folder), "--grpc", f"127.0.0.1:{ports[0]}", "--http", f"127.0.0.1:{ports[1]}"]
    with _running("vime-otel", [sys.executable, "-m", "vime_otel", *args], *ports) as contender:
        yield contender


@contextmanager
def rotel(agent: Path, folder: Path) -> Iterator[Contender]:
    """rotel, into its black hole."""
    ports = free_port(), free_port()
    args = [
        "start", "--pid-file", str(folder / "rotel.pid"), "--exporter", "blackhole",
        "--otlp-grpc-endpoint", f"127.0.0.1:{ports[0]}", "--otlp-http-endpoint", f"127.0.0.1:{ports[1]}",
    ]  # fmt: skip
    with _running("rotel", [str(agent), *args], *ports) as contender:
        yield contender


@contextmanager
def _running(name: str, command: list[str], grpc_port: int, http_port: int) -> Iterator[Contender]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for port in (grpc_port, http_port):
            _wait_for(port, process)
        yield Contender(name, process, grpc_port, http_port)
    finally:
        process.terminate()
        process.wait()


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 30
    while process.poll() is None and time.monotonic() < deadline:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1)
        try:
            connection.connect()
            return
        except OSError:
            time.sleep(0.05)
        finally:
            connection.close()
    raise SystemExit(f"nothing listens on port {port}")


def find_rotel() -> Path | None:
    """rotel's program, or None with the reason printed."""
    folder = os.environ.get(PEER)
    if not folder:
        print(f"rotel is left out: {PEER} does not name an environment that has it (see the top of {__file__})")
        return None
    found = sorted(Path(folder).glob("lib/python*/site-packages/rotel/rotel-agent"))
    if not found:
        print(f"rotel is left out: there is no rotel-agent below {folder}; `{folder}/bin/pip install rotel` brings it")
        return None
    return found[0]


def send_over_grpc(contender: Contender, requests_: list[Request]) -> None:
    """Send all and wait for each answer; an answer that is no success ends the benchmark."""

    def send(part: list[Request]) -> None:
        options = [("grpc.use_local_subchannel_pool", 1)]
        with grpc.insecure_channel(f"127.0.0.1:{contender.grpc_port}", options) as channel:
            calls = {path: channel.unary_unary(method) for path, method in _METHODS.items()}
            for path, body in part:
                _check(calls[path](body, timeout=60))

    _in_threads(send, requests_)


def send_over_http(contender: Contender, requests_: list[Request]) -> None:
    """The same over HTTP."""
    headers = {"Content-Type": "application/x-protobuf"}

    def send(part: list[Request]) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", contender.http_port, timeout=60)
        for path, body in part:
            connection.request("POST", path, body, headers)
            answer = connection.getresponse()
            content = answer.read()
            if answer.status != 200:
                raise SystemExit(f"{contender.name} answers {answer.status}")
            _check(content)
        connection.close()

    _in_threads(send, requests_)


def _check(answer: bytes) -> None:
    if ExportTraceServiceResponse.FromString(answer).partial_success.rejected_spans:
        raise SystemExit(f"spans were rejected: {answer!r}")


def _in_threads(send: Callable[[list[Request]], None], requests_: list[Request]) -> None:
    failed: list[BaseException] = []

    def guarded(part: list[Request]) -> None:
        try:
            send(part)
        except BaseException as error:  # noqa: BLE001 - told by the main thread
            failed.append(error)

    threads = [threading.Thread(target=guarded, args=(requests_[n::CONNECTIONS],)) for n in range(CONNECTIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise SystemExit(f"sending failed: {failed[0]}")


def compare(agent: Path | None, folder: Path) -> None:
    """The rounds, in turns; prints the rates, and the ratios where there is a peer."""
    with ours(folder / "runs") as own, RecorderOfLoad(own.http_port) as recorder:
        load = RecorderLoad(recorder.recording)
        if agent is None:
            number = _rounds([own], load)
        else:
            with rotel(agent, folder) as peer:
                number = _rounds([own, peer], load)
                _print(peer)
                _print(own)
                for transport in own.rates:
                    ratio = statistics.median(own.rates[transport]) / statistics.median(peer.rates[transport])
                    suffix = "" if transport == "HTTP" else "_grpc"  # recorders send over HTTP
                    print(f"RATIO collector_vs_rotel{suffix}_rate {ratio:.3f}")
                print(f"RATIO collector_vs_rotel_memory {own.peak_mib() / peer.peak_mib():.3f}")
        if agent is None:
            _print(own)
        header = recorder.finish(number)
    _check_counts(header, number)


def _rounds(contenders: list[Contender], load: RecorderLoad) -> int:
    number = 0
    for round_ in range(ROUNDS + 1):
        for transport, send in (("HTTP", send_over_http), ("gRPC", send_over_grpc)):
            numbers = range(number, number + REQUESTS)
            send_over_http(contenders[0], [(_LOGS, load.totals(n)) for n in numbers])  # as a recorder does: first
            batch = [(_TRACES, load.spans(n)) for n in numbers]
            number += REQUESTS
            for contender in contenders if round_ % 2 else contenders[::-1]:
                before = contender.cpu_seconds()
                send(contender, batch)
                used = contender.cpu_seconds() - before
                if round_:  # the first one warms up
                    contender.rates[transport].append(REQUESTS * SPANS / used)
    return number


def _print(contender: Contender) -> None:
    for transport, rates in contender.rates.items():
        middle = statistics.median(rates)
        print(
            f"{contender.name:10} {transport}: {middle / 1e6:.3f} M spans per CPU-second"
            f" (median of {len(rates)} rounds, {min(rates) / 1e6:.3f} to {max(rates) / 1e6:.3f})"
        )
    print(f"{contender.name:10} peak memory {contender.peak_mib():.0f} MiB")


def _check_counts(header: dict[str, object], steps: int) -> None:
    spans, mismatched = header["intake"]["spans"], header["mismatched_steps"]  # type: ignore[index]
    expected = {"accepted": steps * SPANS, "kept": steps * SPANS, "duplicate": 0, "dropped": {}}
    if spans != expected or mismatched:
        raise SystemExit(f"the counts are wrong: {spans}, not {expected}; mismatched: {mismatched}")
    print(f"counts: {steps * SPANS:,} spans sent and kept, every step's spans add up to its totals")


def ten_million(folder: Path, what: str) -> None:
    """Many spans of one kind: the memory on the way, and the sums in the end."""
    steps = LONG_SPANS // SPANS
    with ours(folder / what) as own:
        began, cpu = time.monotonic(), own.cpu_seconds()
        memory = []
        if what == "own":
            with RecorderOfLoad(own.http_port) as recorder:
                load = RecorderLoad(recorder.recording)
                for first in range(0, steps, REQUESTS):
                    numbers = range(first, min(first + REQUESTS, steps))
                    send_over_grpc(own, [(_LOGS, load.totals(n)) for n in numbers])
                    send_over_grpc(own, [(_TRACES, load.spans(n)) for n in numbers])
                    memory.append(own.rss_mib())
                header = recorder.finish(steps)
            _check_counts(header, steps)
            run = next((folder / what).glob("*/decode.calls")).parent
            _check_folded(run / "decode", load.folded.calls, load.folded.self_ns(), steps)
        else:
            load_of_service = ServiceLoad()
            for first in range(0, steps, REQUESTS):
                numbers = range(first, min(first + REQUESTS, steps))
                send_over_grpc(own, [(_TRACES, load_of_service.spans(n)) for n in numbers])
                memory.append(own.rss_mib())
        cpu = own.cpu_seconds() - cpu
        peak = own.peak_mib()
    if what == "foreign":
        run = next((folder / what).glob("*/all.calls")).parent
        _check_folded(run / "all", load_of_service.calls, load_of_service.self_ns, steps)
        taken = json.loads((run / "recording.json").read_text())["intake"]["spans"]
        if taken["kept"] != steps * SPANS:
            raise SystemExit(f"the counts are wrong: {taken}")
    tenth, spans = memory[len(memory) // 10], steps * SPANS
    print(
        f"{spans:,} {what} spans in {time.monotonic() - began:.0f} s, {spans / cpu / 1e6:.3f} M spans per CPU-second,"
        f" sums exact; memory {tenth:.0f} MiB after a tenth, {memory[-1]:.0f} MiB after all, at most {peak:.0f} MiB"
    )
    print(f"RATIO ten_million_{what}_vs_one_million_memory {memory[-1] / tenth:.3f}")


def _check_folded(stem: Path, calls: dict[str, int], self_ns: dict[str, int], times: int) -> None:
    for suffix, expected in (
        ("calls", {stack: value * times for stack, value in calls.items()}),
        ("folded", {stack: (value * times + 500) // 1000 for stack, value in self_ns.items()}),
    ):
        lines = (line.rpartition(" ") for line in Path(f"{stem}.{suffix}").read_text().splitlines())
        if {stack: int(value) for stack, _, value in lines} != expected:
            raise SystemExit(f"the sums in {stem}.{suffix} are wrong")


def main() -> None:
    """Compare, then the long ones."""
    size = len(RecorderLoad("0" * 16).spans(0)) / SPANS
    print(
        f"{REQUESTS} requests a round of {SPANS} spans ({size:.0f} B a span, 300 stacks), {CONNECTIONS} connections, on"
        f" {platform.machine()} with {os.cpu_count()} cores, Python {platform.python_version()}"
    )
    with tempfile.TemporaryDirectory(prefix="bench-collector-") as name:
        compare(find_rotel(), Path(name))
        for what in ("own", "foreign"):
            ten_million(Path(name), what)


if __name__ == "__main__":
    main()
