"""Child processes end together with all that they started, and failed starts show their log."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import psutil
import pytest

from vime_otel.data.errors import VimeOtelError
from vime_otel.demo import stack as stack_module
from vime_otel.demo.processes import LoggedProcess, stop_all
from vime_otel.demo.stack import EngineStack

STUBBORN = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.fork()
print("up", flush=True)
time.sleep(600)
"""


def test_those_that_ignore_the_signal_are_killed_with_their_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vime_otel.demo.processes._TERMINATE_S", 0.3)
    process = LoggedProcess("stubborn", [sys.executable, "-c", STUBBORN], tmp_path / "log", {})
    deadline = time.monotonic() + 20
    while len(process.family()) < 2 or process.log_tail().count("up") < 2:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    family = process.family()
    stop_all([process])
    assert len(family) == 2
    assert psutil.wait_procs(family, timeout=10)[1] == []


def test_stopping_what_has_ended_is_harmless(tmp_path: Path) -> None:
    process = LoggedProcess("quick", [sys.executable, "-c", ""], tmp_path / "log", {})
    process.reap()
    stop_all([process])
    stop_all([])


def test_a_failed_start_names_the_log_and_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = [sys.executable, "-c", "import sys; sys.exit('no such model')"]
    monkeypatch.setattr(stack_module.EngineStack, "_engine_command", lambda *args: broken)
    with pytest.raises(VimeOtelError, match="no such model") as caught, EngineStack(tmp_path, model=tmp_path):
        pass
    assert str(tmp_path / "engine-0.log") in str(caught.value)
    assert "status 1" in str(caught.value)
