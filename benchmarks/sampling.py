"""`make bench-sampling`: continuous recording, one step in K, under steady traffic for some minutes.

Two engines of a kind, one without a recorder and one that samples its steps for a `vime-otel serve`, take turns with
the same requests. Told are the time per token of the one against the other, the memory of the sampling engine's
processes and of the collector from beginning to end, and how far the rolling recording's picture is from that of a
plain recording.

Usage: sampling.py [MINUTES] [K]
"""

from __future__ import annotations

import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import requests

from vime_otel.data.rundir import RunDirectory
from vime_otel.data.summary import top_frames
from vime_otel.demo.ports import free_port
from vime_otel.demo.stack import EngineStack
from vime_otel.recorder.worker import RECORDER_FRAME

MINUTES = 10.0
EVERY = 100
REQUESTS = 4
TOKENS = 200
PLAIN_STEPS = 300
RESAMPLES = 4_000
SHARE_SHOWN = 0.02
"""Frames with less self time than this share of a step are not compared."""


def time_per_token_ms(url: str) -> float:
    """Some requests that decode together: milliseconds from start to end, by the tokens of each."""
    body = {"prompt": "steady traffic", "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
    body["model"] = requests.get(f"{url}/v1/models", timeout=30).json()["data"][0]["id"]

    def complete(number: int) -> None:
        requests.post(f"{url}/v1/completions", json=body, timeout=120).raise_for_status()

    start = time.monotonic()
    with ThreadPoolExecutor(REQUESTS) as pool:
        list(pool.map(complete, range(REQUESTS)))
    return (time.monotonic() - start) / TOKENS * 1000


def memory_mib(roots: Iterable[psutil.Process]) -> float:
    """What the processes and all below them hold of their own."""
    processes = [process for root in roots for process in [root, *root.children(recursive=True)]]
    return sum(process.memory_full_info().uss for process in processes) / 2**20


def listener(port: int) -> psutil.Process:
    """The process that listens on a port of this machine."""
    for connection in psutil.net_connections("tcp"):
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid:
            return psutil.Process(connection.pid)
    raise SystemExit(f"nobody listens on port {port}")


def interval(values: list[float]) -> tuple[float, float]:
    """A bootstrap 95 % interval of the median."""
    resampler = random.Random(0)
    medians = sorted(statistics.median(resampler.choices(values, k=len(values))) for _ in range(RESAMPLES))
    return medians[int(0.025 * RESAMPLES)], medians[int(0.975 * RESAMPLES)]


def shares(run: RunDirectory) -> tuple[dict[str, float], float]:
    """Share of self time of a decode step's frames, less what the recorder itself did; and the share of that."""
    frames = top_frames(run.self_us("decode"), run.calls("decode"), run.steps["decode"], limit=10_000)
    own = sum(frame.share for frame in frames if frame.frame == RECORDER_FRAME)
    return {frame.frame: frame.share / (1 - own) for frame in frames if frame.frame != RECORDER_FRAME}, own


def main() -> None:
    minutes = float(sys.argv[1]) if len(sys.argv) > 1 else MINUTES
    every = int(sys.argv[2]) if len(sys.argv) > 2 else EVERY
    http, grpc = free_port(), free_port()
    with tempfile.TemporaryDirectory() as folder:
        directory, runs = Path(folder), Path(folder) / "runs"
        command = [sys.executable, "-m", "vime_otel", "serve", "--out", str(runs)]
        command += ["--http", f"127.0.0.1:{http}", "--grpc", f"127.0.0.1:{grpc}"]
        env = {"VIME_OTEL_COLLECTOR": f"http://127.0.0.1:{http}", "VIME_OTEL_SAMPLE_EVERY": str(every)}
        with (
            (directory / "serve.log").open("wb") as log,
            subprocess.Popen(command, stdout=log, stderr=log) as collector,
            EngineStack(directory / "absent", engines=1, env={"VLLM_PLUGINS": ""}) as absent,
            EngineStack(directory / "sampling", engines=1, env=env) as sampling,
        ):
            try:
                measure(minutes, every, absent.worker_urls[0], sampling.worker_urls[0], collector.pid)
                plain = plain_recording(http, sampling.worker_urls[0], runs)
            finally:
                collector.send_signal(signal.SIGTERM)
                collector.wait()
        (rolling,) = [RunDirectory(path.parent) for path in runs.glob("*-rolling/recording.json")]
        compare(rolling, plain)


def measure(minutes: float, every: int, absent: str, sampling: str, collector_pid: int) -> None:
    """Steady traffic to both, in turns."""
    ratios: list[float] = []
    engine, collector = listener(int(sampling.rpartition(":")[2])), psutil.Process(collector_pid)
    memory: list[tuple[float, float]] = []
    for url in (absent, sampling):
        time_per_token_ms(url)
    end = time.monotonic() + minutes * 60
    while time.monotonic() < end:
        first, second = (absent, sampling) if len(ratios) % 2 else (sampling, absent)
        times = {first: time_per_token_ms(first), second: time_per_token_ms(second)}
        ratios.append(times[sampling] / times[absent])
        memory.append((memory_mib([engine]), memory_mib([collector])))
    low, high = interval(ratios)
    print(
        f"one step in {every}, {minutes:g} minutes, {len(ratios)} rounds of {REQUESTS} × {TOKENS} tokens on each engine"
    )
    print(f"RATIO sampling_vs_absent_time {statistics.median(ratios):.3f} (95 % interval {low:.3f} to {high:.3f})")
    third = max(len(memory) // 3, 1)
    for name, values in zip(("engine", "collector"), zip(*memory, strict=True), strict=True):
        early, late = statistics.median(values[:third]), statistics.median(values[-third:])
        print(f"memory of the {name}: {early:.0f} MiB in the first third, {late:.0f} MiB in the last")
        print(f"RATIO {name}_late_vs_early_memory {late / early:.3f}")


def plain_recording(http: int, url: str, runs: Path) -> RunDirectory:
    """A plain recording of the sampling engine under the same traffic."""
    command = [sys.executable, "-m", "vime_otel", "collect", "--collector", f"http://127.0.0.1:{http}"]
    command += ["--worker", url, "--steps", str(PLAIN_STEPS), "--label", "plain"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as collect:
        while collect.poll() is None:
            time_per_token_ms(url)
    (path,) = runs.glob("*-plain/recording.json")
    return RunDirectory(path.parent)


def compare(rolling: RunDirectory, plain: RunDirectory) -> None:
    """How the picture of the samples differs from that of the plain recording."""
    (sampled, own), (recorded, _) = shares(rolling), shares(plain)
    print(f"{rolling.steps} sampled steps against {plain.steps} of a plain recording, shares of self time, decode:")
    for frame in sorted(recorded, key=lambda frame: -recorded[frame]):
        if recorded[frame] >= SHARE_SHOWN:
            print(f"  {recorded[frame]:6.1%} plain  {sampled.get(frame, 0.0):6.1%} sampled  {frame}")
    difference = sum(abs(sampled.get(frame, 0.0) - recorded.get(frame, 0.0)) for frame in {*sampled, *recorded}) / 2
    print(f"the recorder itself is {own:.1%} of a sampled step, and left out above")
    print(f"in all, {difference:.1%} of a step's time lies in other frames ({len(set(sampled) ^ set(recorded))} frames")
    print(f"  stand in one of the pictures only: {', '.join(sorted(set(sampled) ^ set(recorded))) or 'none'})")


if __name__ == "__main__":
    main()
