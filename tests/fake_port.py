"""A port that stands for an engine of two ranks, for tests of the recorder without vLLM."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from running_collector import until

from vime_otel.data.lockstep import Position
from vime_otel.recorder.engine import EngineRecorder
from vime_otel.recorder.patches import Patches
from vime_otel.recorder.window import Clock, RankLog, StepCounts

LOGS = [RankLog(rank, 0, 1, Clock("boot", 0, 0), [], b"", []) for rank in range(2)]


def step(recorder: EngineRecorder, kind: str = "decode", tokens: int = 1, at: int = 0) -> None:
    """What the wrapped engine does in one step, from tick `at` to `at` + 9."""
    if recorder.due:
        recorder.run_due(stepping=True)
    output = SimpleNamespace(total_num_scheduled_tokens=tokens, kind=kind)
    recorder.on_schedule(output, at, at + 1)
    recorder.on_update(output, at + 8, at + 9)
    if recorder.window_over:
        recorder.finish_window()


def drive(recorder: EngineRecorder, steps: int) -> None:
    """Wait until it is armed, then make steps as an engine would."""
    until(lambda: recorder.status.phase == "armed")
    for number in range(steps):
        step(recorder, "prefill" if number == 0 else "decode", at=1000 + number * 10)


class FakePort:
    """Two ranks that answer what the test says, and a scheduler that the test drives."""

    max_spans = 1000
    min_free_mib = 1024
    sample_every: int | None = None

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.plugin = True
        self.arm_answers: list[dict[str, Any]] = [{"errors": []}, {"errors": []}]
        self.take_answers: list[dict[str, Any]] = [
            {"log": log, "errors": [], "hooks_found": ["execute_model"], "hooks_missing": ["moe.route"]} for log in LOGS
        ]
        self.watched = False
        self.woken = 0
        self.check_answers: list[dict[str, Any]] = [{"errors": []}, {"errors": []}]
        self.execution = "eager"
        self.position: Position | None = None

    def workers_have_plugin(self) -> bool:
        return self.plugin

    def call_workers(self, method: str, *args: Any) -> list[Any]:
        self.calls.append((method, args))
        return self.check_answers if method == "vime_otel_check" else self.take_answers

    def call_workers_later(self, method: str, *args: Any) -> Callable[[], list[Any] | None]:
        self.calls.append((method, args))
        return lambda: self.arm_answers

    def lockstep(self) -> Position | None:
        return self.position

    def watch_steps(self, patches: Patches, watcher: EngineRecorder) -> None:
        self.watched = True
        patches.set(self, "watched", True)

    def count(self, output: Any) -> StepCounts:
        if output.kind == "broken":
            raise ValueError("no such kind")
        return StepCounts(output.kind, False, 0, 1, 1)

    def describe(self) -> dict[str, Any]:
        return {
            "label": "127.0.0.1:8001/0",
            "addresses": ["127.0.0.1"],
            "host": "fake",
            "pid": 1,
            "api_ports": [8001],
            "model": "fake",
            "dp_rank": 0,
            "dp_group": None if self.position is None else "0123456789abcdef",
            "dp_size": 1 if self.position is None else 2,
            "ranks": 2,
            "vllm_version": "0",
            "vime_otel_version": "0",
            "execution": self.execution,
            "decode_tokens": None,
        }

    def refresh(self) -> dict[str, Any]:
        return self.describe()

    def clock(self) -> Clock:
        return Clock("boot", 0, 0)

    def wake(self) -> None:
        self.woken += 1
