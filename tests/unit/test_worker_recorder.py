"""A rank's recorder over fake hooks that stand for a worker's."""

from __future__ import annotations

import array
from collections.abc import Callable
from typing import Any

import pytest

from vime_otel.recorder import eventlog
from vime_otel.recorder.eventlog import EventLog
from vime_otel.recorder.patches import HookTargets, Patches
from vime_otel.recorder.window import Clock, RankLog
from vime_otel.recorder.worker import WorkerRecorder


class Runner:
    """What is hooked: one method, and whether the recorder took it for a step."""

    def execute(self) -> str:
        return "output"


class FakeHooks:
    def __init__(self) -> None:
        self.runner = Runner()
        self.targets = HookTargets(["execute"])
        self.fail_install = False
        self.syncs = 0

    def install(self, log: EventLog, patches: Patches, recorder: WorkerRecorder) -> None:
        original, timed = self.runner.execute, log.timed(self.runner.execute, "execute_model")
        patches.set(self.runner, "execute", lambda: timed() if recorder.begin_step() else original())
        if self.fail_install:
            raise RuntimeError("no such module")

    def device_sync(self) -> Callable[[], None]:
        def sync() -> None:
            self.syncs += 1

        return sync

    def place(self) -> tuple[int, int]:
        return 3, 1

    def clock(self) -> Clock:
        return Clock("boot", 1, 2)


@pytest.fixture
def hooks() -> FakeHooks:
    return FakeHooks()


@pytest.fixture
def recorder(hooks: FakeHooks) -> WorkerRecorder:
    return WorkerRecorder(hooks)


def taken(answer: dict[str, Any]) -> tuple[int, list[int]]:
    """(spans, starts) of an answer's log."""
    log = answer["log"]
    assert isinstance(log, RankLog)
    return len(array.array("q", log.entries)) // 3, log.starts


def test_a_window_holds_the_asked_steps_and_no_more(hooks: FakeHooks, recorder: WorkerRecorder) -> None:
    assert recorder.arm(2, "host") == {"errors": []}
    assert [hooks.runner.execute() for _ in range(4)] == ["output"] * 4
    assert vars(hooks.runner) == {}, "the hooks went by themselves after the last step"
    answer = recorder.take()
    assert taken(answer) == (2, [0, 3])
    assert (answer["log"].rank, answer["log"].stage) == (3, 1)


def test_without_a_limit_it_records_until_taken(hooks: FakeHooks, recorder: WorkerRecorder) -> None:
    recorder.arm(None, "host")
    for _ in range(5):
        hooks.runner.execute()
    assert taken(recorder.take())[0] == 5
    assert vars(hooks.runner) == {}


@pytest.mark.parametrize(("timing", "syncs"), [("sync", 2), ("host", 0)])
def test_only_sync_timing_waits_for_the_device(
    hooks: FakeHooks, recorder: WorkerRecorder, timing: str, syncs: int
) -> None:
    recorder.arm(1, timing)
    hooks.runner.execute()
    recorder.take()
    assert hooks.syncs == syncs


def test_arming_that_fails_half_way_leaves_nothing_and_answers_why(hooks: FakeHooks, recorder: WorkerRecorder) -> None:
    hooks.fail_install = True
    (error,) = recorder.arm(1, "host")["errors"]
    assert "no such module" in error
    assert vars(hooks.runner) == {}
    assert hooks.runner.execute() == "output"


def test_taking_what_was_never_armed_answers_an_empty_log(recorder: WorkerRecorder) -> None:
    assert recorder.take() == {"log": None, "errors": [], "hooks_found": [], "hooks_missing": []}


def test_taking_never_raises(hooks: FakeHooks, recorder: WorkerRecorder) -> None:
    recorder.arm(1, "host")

    def fail() -> tuple[int, int]:
        raise RuntimeError("no such place")

    hooks.place = fail  # type: ignore[method-assign]
    answer = recorder.take()
    assert answer["log"] is None
    assert "no such place" in answer["errors"][0]


def test_arming_twice_starts_afresh(hooks: FakeHooks, recorder: WorkerRecorder) -> None:
    recorder.arm(5, "host")
    hooks.runner.execute()
    recorder.arm(5, "host")
    hooks.runner.execute()
    assert taken(recorder.take()) == (1, [0])
    assert vars(hooks.runner) == {}


def test_a_log_that_is_full_ends_the_window_and_says_so(
    hooks: FakeHooks, recorder: WorkerRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vime_otel.recorder.worker.MAX_ENTRIES", 5)
    recorder.arm(None, "host")
    for _ in range(4):
        assert hooks.runner.execute() == "output"
    answer = recorder.take()
    assert taken(answer)[0] == 2
    assert "full after 2 steps" in answer["errors"][0]


def test_what_a_dummy_pass_records_is_thrown_away(hooks: FakeHooks, recorder: WorkerRecorder) -> None:
    recorder.arm(None, "host")
    hooks.runner.execute()

    def dummy() -> str:
        with eventlog.span("inside"):
            return "dummy"

    assert recorder.discarding(dummy)() == "dummy"
    assert taken(recorder.take())[0] == 1
