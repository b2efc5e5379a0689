"""Profiling a fleet of simulated workers, many of which are in trouble."""

from __future__ import annotations

import json
import random
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from standins import answer, serving_in_thread

FLEET = Path(__file__).parents[1] / "fleet.py"
EXPECTED = {
    "healthy": "started",
    "slow": "started",
    "busy": "busy",
    "no_route": "no route",
    "broken": "refused",
    "half_closed": "unreachable",
    "silent": "timed out",
    "dead": "unreachable",
}
TIMEOUT_S = 5.0
"""Slow workers answer within, silent ones don't."""


class Fleet:
    """The simulated workers' URLs by behaviour, and what they saw."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.urls: dict[str, list[str]] = self._line()["urls"]

    def start_skew_s(self) -> float:
        """Between the first and the last start that came in."""
        assert self._process.stdin is not None
        print("report", file=self._process.stdin, flush=True)
        starts = self._line()["starts"]
        return float(max(starts) - min(starts))

    def _line(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        found: dict[str, Any] = json.loads(self._process.stdout.readline())
        return found


@contextmanager
def running_fleet(counts: dict[str, int]) -> Iterator[Fleet]:
    command = [sys.executable, str(FLEET), *(f"{behaviour}:{count}" for behaviour, count in counts.items())]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        try:
            yield Fleet(process)
        finally:
            process.stdin.close()
            process.wait(20)


@pytest.mark.parametrize("size", [60, pytest.param(1000, marks=pytest.mark.long)])
def test_a_fleet_of_simulated_workers_gets_the_right_outcome_each(size: int) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(8192, resource.getrlimit(resource.RLIMIT_NOFILE)[1]),) * 2)
    few = size // 20
    counts = {behaviour: few for behaviour in EXPECTED} | {"healthy": size - 7 * few}
    with running_fleet(counts) as fleet:
        behaviours = {url: behaviour for behaviour, urls in fleet.urls.items() for url in urls}
        listed = [{"url": url, "worker_type": "regular", "is_healthy": True} for url in behaviours]
        random.Random(size).shuffle(listed)
        with serving_in_thread({"GET /workers": answer(body={"workers": listed})}) as (router,):
            command = ["profile", "start", "--router", router, "--timeout", str(TIMEOUT_S)]
            command += ["--max-seconds", "1", "--json"]
            began = time.monotonic()
            done = subprocess.run(
                [sys.executable, "-m", "vime_otel", *command], capture_output=True, text=True, check=False
            )
            took = time.monotonic() - began
        skew = fleet.start_skew_s()
    workers = json.loads(done.stdout)["workers"]
    assert {worker["url"]: worker["state"] for worker in workers} == {
        url: EXPECTED[behaviour] for url, behaviour in behaviours.items()
    }
    assert done.returncode == 1
    assert all(worker["detail"] for worker in workers if not worker["ok"])
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(f"{size} workers: {took:.1f} s, start skew {skew:.2f} s, peak memory {peak:.0f} MiB")
