"""The torch profiler on two real engines behind the real router."""

from __future__ import annotations

import asyncio
import gzip
import json
import time
from pathlib import Path

import pytest
from running_stack import PROFILED_STEPS, RunningStack

from collector.http_client import new_session
from collector.traffic import TrafficResult, send_completions
from vime_otel.cli.main import main

pytestmark = pytest.mark.engine

FILES_S = 60.0


def outcomes(capsys: pytest.CaptureFixture[str], action: str, stack: RunningStack) -> dict[str, str]:
    """What `vime-otel profile` says of each worker."""
    capsys.readouterr()
    status = main(["profile", action, "--router", stack.router_url, "--json"])
    workers = json.loads(capsys.readouterr().out)["workers"]
    assert status == (0 if all(worker["ok"] for worker in workers) else 1)
    return {worker["url"]: worker["state"] for worker in workers}


def give_work(stack: RunningStack, tokens: int) -> list[TrafficResult]:
    async def run() -> list[TrafficResult]:
        async with new_session() as session:
            sending = (send_completions(session, url, 2, "say something", tokens) for url in stack.worker_urls)
            return list(await asyncio.gather(*sending))

    return asyncio.run(run())


def whole_traces(directory: Path) -> list[Path]:
    """The traces in a directory that can be read to their end."""
    found = []
    for path in directory.glob("**/*.pt.trace.json.gz"):
        try:
            json.loads(gzip.decompress(path.read_bytes()))
        except (EOFError, ValueError, OSError):
            continue
        found.append(path)
    return found


def test_the_router_lists_both_engines_as_workers(
    engine_stack: RunningStack, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["workers", "--router", engine_stack.router_url, "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["workers"]
    assert {worker["url"] for worker in listed} == set(engine_stack.worker_urls)
    assert all(worker["healthy"] for worker in listed)


def test_start_reaches_both_engines_and_both_write_a_trace(
    engine_stack: RunningStack, capsys: pytest.CaptureFixture[str]
) -> None:
    urls = engine_stack.worker_urls
    try:
        assert outcomes(capsys, "start", engine_stack) == dict.fromkeys(urls, "started")
        assert outcomes(capsys, "start", engine_stack) == dict.fromkeys(urls, "busy")
        assert give_work(engine_stack, tokens=2 * PROFILED_STEPS) == [TrafficResult(2, 0)] * 2
        deadline = time.monotonic() + FILES_S
        while not all(whole_traces(directory) for directory in engine_stack.torch_dirs.values()):
            assert time.monotonic() < deadline, [list(d.glob("**/*")) for d in engine_stack.torch_dirs.values()]
            time.sleep(0.2)
    finally:
        stopped = outcomes(capsys, "stop", engine_stack)
    assert stopped == dict.fromkeys(urls, "stopped")
