"""The torch profiler on two real engines behind the real router."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from running_stack import RunningStack

from vime_otel.cli.main import main

pytestmark = pytest.mark.engine

STEPS = 3


def profile(capsys: pytest.CaptureFixture[str], stack: RunningStack, *words: str) -> tuple[int, dict[str, Any]]:
    """Exit status and JSON of `vime-otel profile` over both engines."""
    capsys.readouterr()
    status = main(["profile", *words, "--router", stack.router_url, "--json"])
    return status, json.loads(capsys.readouterr().out)


def run(
    capsys: pytest.CaptureFixture[str], stack: RunningStack, runs: Path, *options: str
) -> tuple[int, dict[str, Any]]:
    """A profile of STEPS steps, with two completions to each engine."""
    words = ["run", "--iterations", str(STEPS), "--requests", "2", "--trace-dir", str(stack.directory)]
    return profile(capsys, stack, *words, "--runs", str(runs), *options)


def assert_both_traces_whole(found: dict[str, Any], stack: RunningStack) -> None:
    """One trace from each engine, non-empty, of as many steps as were asked for, whose it is being known."""
    assert found["missing"] == []
    assert {entry["worker"] for entry in found["traces"]} == set(stack.worker_urls)
    for entry in found["traces"]:
        assert entry["status"] == "whole"
        assert Path(entry["source"]).parent == stack.torch_dirs[entry["worker"]]
        trace = json.loads(gzip.decompress((Path(found["run"]) / "torch" / entry["file"]).read_bytes()))
        names = [str(event.get("name")) for event in trace["traceEvents"]]
        assert sum(name.startswith("execute_") for name in names) >= STEPS
        assert any(name.startswith("aten::") for name in names)


def test_the_router_lists_both_engines_as_workers(
    engine_stack: RunningStack, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["workers", "--router", engine_stack.router_url, "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["workers"]
    assert {worker["url"] for worker in listed} == set(engine_stack.worker_urls)
    assert all(worker["healthy"] for worker in listed)


def test_a_run_ends_with_a_whole_trace_of_each_engine_and_again_at_once(
    engine_stack: RunningStack, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for _ in range(2):
        status, found = run(capsys, engine_stack, tmp_path)
        assert_both_traces_whole(found, engine_stack)
        assert status == 0


def test_a_forgotten_start_is_busy_and_restart_ends_it(
    engine_stack: RunningStack, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    try:
        status, started = profile(capsys, engine_stack, "start")
        assert (status, {worker["state"] for worker in started["workers"]}) == (0, {"started"})
        status, found = run(capsys, engine_stack, tmp_path)
        assert status == 1
        assert [missing["why"].split(":")[0] for missing in found["missing"]] == ["busy", "busy"]
        status, found = run(capsys, engine_stack, tmp_path, "--restart")
        assert_both_traces_whole(found, engine_stack)
        assert status == 0
    finally:
        status, stopped = profile(capsys, engine_stack, "stop")
    assert (status, {worker["state"] for worker in stopped["workers"]}) == (0, {"stopped"})
