"""What is asked of an engine in the middle of a window: told once, and passed on as it was."""

from __future__ import annotations

import inspect
from typing import Any, cast

import pytest

from vime_otel.recorder.engine import EngineRecorder
from vime_otel.recorder.vllm_engine import _Events


class Watcher:
    """Stands for the engine's recorder."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.failures: list[BaseException] = []
        self.fails = False

    def on_event(self, name: str) -> None:
        if self.fails:
            raise RuntimeError("no")
        self.told.append(name)

    def watch_failed(self, error: BaseException) -> None:
        self.failures.append(error)


class Engine:
    """Calls of an engine, one of which makes another."""

    def __init__(self, watcher: Watcher) -> None:
        events = _Events(cast(EngineRecorder, watcher))
        self.pause = events.telling(self._pause, "pause_scheduler")
        self.sleep = events.telling(self._sleep, "sleep")
        self.abort = events.telling(self._abort, "abort_requests")
        self.rpc = events.telling(self._rpc, "collective_rpc")

    def _pause(self, mode: str = "abort") -> str:
        return mode

    def _sleep(self, level: int = 1) -> str:
        return f"{level} {self.pause('keep')}"

    def _abort(self, request_ids: list[str]) -> int:
        return len(request_ids)

    def _rpc(self, method: str, timeout: float | None = None, args: tuple[Any, ...] = ()) -> None:
        raise ValueError(f"{method} failed")


def test_only_the_call_from_outside_is_told() -> None:
    watcher = Watcher()
    engine = Engine(watcher)
    assert engine.sleep(2) == "2 keep"
    assert engine.pause() == "abort"
    assert engine.abort(["a", "b"]) == 2
    assert watcher.told == ["sleep(2)", "pause_scheduler()", "abort_requests(2)"]


def test_the_signature_is_the_methods_own_since_vllm_decodes_arguments_by_it() -> None:
    engine = Engine(Watcher())
    assert inspect.signature(engine.rpc) == inspect.signature(engine._rpc)


def test_an_error_of_the_call_reaches_its_caller_and_the_next_call_is_told() -> None:
    watcher = Watcher()
    engine = Engine(watcher)
    with pytest.raises(ValueError, match="update_weights failed"):
        engine.rpc("update_weights")
    assert engine.pause("keep") == "keep"
    assert watcher.told == ["collective_rpc(update_weights)", "pause_scheduler(keep)"]


def test_an_error_of_the_recorder_does_not() -> None:
    watcher = Watcher()
    watcher.fails = True
    assert Engine(watcher).pause("keep") == "keep"
    assert len(watcher.failures) == 1
