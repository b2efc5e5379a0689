"""For every test: nothing is left behind, neither threads nor child processes nor environment variables."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from hypothesis import settings

# The same 100 cases every time, or, with --hypothesis-profile=long, 2,000 new ones.
settings.register_profile("slice", derandomize=True, deadline=None, max_examples=100)
settings.register_profile("long", deadline=None, max_examples=2000)
settings.load_profile("slice")

_PATIENCE_S = 5.0
_PYTESTS_OWN = "PYTEST_CURRENT_TEST"


@pytest.fixture(autouse=True)
def nothing_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves threads, child processes or changed environment variables.

    Tests marked `engine` may run vLLM in their own process, which sets variables and keeps daemon threads;
    of these only what would keep a process alive counts.
    """
    engine = request.node.get_closest_marker("engine") is not None
    env, threads, children = _environment(), set(threading.enumerate()), set(_children())
    yield

    def left() -> list[str]:
        new_threads = [t for t in threading.enumerate() if t not in threads and not (engine and t.daemon)]
        new_children = [child for child in _children() if child not in children]
        return [f"thread {t.name}" for t in new_threads] + [_describe(child) for child in new_children]

    problems = _settled(left)
    if not engine:
        now = _environment()
        problems += [f"variable {name}" for name in sorted(env.keys() | now.keys()) if env.get(name) != now.get(name)]
    if problems:
        pytest.fail(f"left behind: {'; '.join(problems)}")


def _settled(left: Callable[[], list[str]]) -> list[str]:
    """What is still left once things had time to end."""
    deadline = time.monotonic() + _PATIENCE_S
    while (found := left()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != _PYTESTS_OWN}


def _children() -> list[psutil.Process]:
    """Child processes but Python's own resource tracker, which lives as long as its parent."""
    found = []
    # psutil's own way reads every process of the machine, three times a test.
    for listed in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(FileNotFoundError, psutil.NoSuchProcess):
            found += [psutil.Process(int(pid)) for pid in listed.read_text().split()]
    return [child for child in found if "resource_tracker" not in _describe(child)]


def _describe(process: psutil.Process) -> str:
    try:
        return f"process {process.pid} ({' '.join(process.cmdline()) or process.status()})"
    except psutil.NoSuchProcess:
        return f"process {process.pid}"
