"""Very many recorders that wait in long polls: what they cost at rest, and how far apart they start."""

from __future__ import annotations

import asyncio
import resource
import threading
import time
from pathlib import Path

import psutil
import pytest
from collector_process import CollectorProcess
from many_recorders import IDLE_WAIT_SECONDS, ManyRecorders
from running_collector import ControlClient, until

from vime_otel.data.rundir import RunDirectory


@pytest.mark.parametrize(
    ("count", "rest_seconds"), [(50, 1.0), pytest.param(1000, 2 * IDLE_WAIT_SECONDS, marks=pytest.mark.long)]
)
def test_many_recorders_wait_for_little_and_start_together(
    tmp_path: Path, count: int, rest_seconds: float, capsys: pytest.CaptureFixture[str]
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 3 * count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 3 * count), hard))
    with CollectorProcess(tmp_path / "runs") as collector:
        recorders, ended, loop = ManyRecorders(collector.url, count), asyncio.Event(), asyncio.new_event_loop()
        thread = threading.Thread(target=lambda: loop.run_until_complete(recorders.run(ended)), name="recorders")
        thread.start()
        try:
            client = ControlClient(collector.url)
            until(lambda: len(client.recorders()) == count, 60)
            at_rest = cpu_share(psutil.Process(collector.pid), rest_seconds)
            ended_recording = client.record(steps=1, wait_seconds=30, timeout_seconds=120)
        finally:
            loop.call_soon_threadsafe(ended.set)
            thread.join()
            loop.close()
    started = sorted(recorders.armed_at.values())
    skew = started[-1] - started[0]
    with capsys.disabled():
        print(
            f"\n{count} recorders in long polls: {at_rest:.1%} of a core at rest; the last one got its command"
            f" {skew * 1000:.0f} ms after the first"
        )
    assert ended_recording["complete"] is True, ended_recording["reasons"][:3]
    assert len(started) == count
    assert skew < 2.0
    assert at_rest < 0.2
    header = RunDirectory(Path(ended_recording["run"])).header
    assert header["spans"]["received"] == 20 * count


def cpu_share(process: psutil.Process, seconds: float) -> float:
    """How much of a core it uses while nothing happens."""

    def used() -> float:
        times = process.cpu_times()
        return float(times.user + times.system)

    began, before = time.monotonic(), used()
    until(lambda: time.monotonic() - began >= seconds, 2 * seconds)
    return (used() - before) / (time.monotonic() - began)
