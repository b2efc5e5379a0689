"""A rank's recorder over fake hooks that stand for a worker's."""

from __future__ import annotations

import array
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from vime_otel.recorder import eventlog
from vime_otel.recorder.device_clock import DeviceClock
from vime_otel.recorder.eventlog import EventLog
from vime_otel.recorder.patches import HookTargets, Patches
from vime_otel.recorder.vllm_worker import WorkerHooks
from vime_otel.recorder.window import Clock, RankLog, WorkerOrder
from vime_otel.recorder.worker import RECORDER_FRAME, WorkerRecorder


class Runner:
    """What is hooked: one method, and whether the recorder took it for a step."""

    def execute(self) -> str:
        return "output"

    def sample(self) -> str:
        return "tokens"


class FakeEvent:
    """Stands for a device event of a device whose clock goes at the host's pace."""

    def record(self) -> None:
        self.ticks = time.perf_counter_ns()

    def elapsed_time(self, later: FakeEvent) -> float:
        return (later.ticks - self.ticks) / 1e6


class FakeHooks:
    def __init__(self) -> None:
        self.runner = Runner()
        self.targets = HookTargets(["execute"])
        self.fail_install = False
        self.fail_in_step = False
        self.syncs = 0

    def free_memory_mib(self) -> float:
        return 500.0

    def device_clock(self) -> DeviceClock:
        return DeviceClock(FakeEvent, lambda: None)

    def install_in_step(self, log: EventLog, patches: Patches, recorder: WorkerRecorder, order: WorkerOrder) -> None:
        patches.set(self.runner, "sample", log.timed(self.runner.sample, "sample_tokens"))
        if self.fail_in_step:
            raise RuntimeError("no such phase")

    def install_on_runner(self, log: EventLog, patches: Patches, recorder: WorkerRecorder) -> None:
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
    assert recorder.arm(WorkerOrder(2, "host")) == {"errors": []}
    assert [hooks.runner.execute() for _ in range(4)] == ["output"] * 4
    assert vars(hooks.runner) == {}, "the hooks went by themselves after the last step"
    answer = recorder.take()
    assert taken(answer) == (2, [0, 3])
    assert (answer["log"].rank, answer["log"].stage) == (3, 1)


def test_without_a_limit_it_records_until_taken(hooks: FakeHooks, recorder: WorkerRecorder) -> None:
    recorder.arm(WorkerOrder(None, "host"))
    for _ in range(5):
        hooks.runner.execute()
    assert taken(recorder.take())[0] == 5
    assert vars(hooks.runner) == {}


@pytest.mark.parametrize(("timing", "syncs"), [("sync", 2), ("host", 0)])
def test_only_sync_timing_waits_for_the_device(
    hooks: FakeHooks, recorder: WorkerRecorder, timing: str, syncs: int
) -> None:
    recorder.arm(WorkerOrder(1, timing))
    calibrated = hooks.syncs
    hooks.runner.execute()
    assert hooks.syncs - calibrated == syncs
    assert (recorder.take()["log"].sync_ns > 0) == (timing == "sync")


def test_arming_that_fails_half_way_leaves_nothing_and_answers_why(hooks: FakeHooks, recorder: WorkerRecorder) -> None:
    hooks.fail_install = True
    (error,) = recorder.arm(WorkerOrder(1, "host"))["errors"]
    assert "no such module" in error
    assert vars(hooks.runner) == {}
    assert hooks.runner.execute() == "output"


def test_taking_what_was_never_armed_answers_an_empty_log(recorder: WorkerRecorder) -> None:
    assert recorder.take() == {"log": None, "errors": [], "hooks_found": [], "hooks_missing": []}


def test_taking_never_raises(hooks: FakeHooks, recorder: WorkerRecorder) -> None:
    recorder.arm(WorkerOrder(1, "host"))

    def fail() -> tuple[int, int]:
        raise RuntimeError("no such place")

    hooks.place = fail  # type: ignore[method-assign]
    answer = recorder.take()
    assert answer["log"] is None
    assert "no such place" in answer["errors"][0]


def test_arming_twice_starts_afresh(hooks: FakeHooks, recorder: WorkerRecorder) -> None:
    recorder.arm(WorkerOrder(5, "host"))
    hooks.runner.execute()
    recorder.arm(WorkerOrder(5, "host"))
    hooks.runner.execute()
    assert taken(recorder.take()) == (1, [0])
    assert vars(hooks.runner) == {}


def steps(hooks: FakeHooks, count: int) -> None:
    """Run so many steps, of two spans each where they are recorded."""
    for _ in range(count):
        assert (hooks.runner.execute(), hooks.runner.sample()) == ("output", "tokens")


def test_beyond_its_limit_a_log_goes_on_as_totals_and_keeps_whole_steps(
    hooks: FakeHooks, recorder: WorkerRecorder
) -> None:
    recorder.arm(WorkerOrder(None, "host", max_spans=5))
    steps(hooks, 4)
    answer = recorder.take()
    assert answer["errors"] == []
    log = answer["log"]
    names = [name for name, _ in log.frames]
    assert sorted(log.folded) == [2, 3]
    assert {(tuple(names[frame] for frame in path), calls) for path, _, calls in log.folded[3]} == {
        (("execute_model",), 1),
        (("sample_tokens",), 1),
        ((RECORDER_FRAME,), 1),
    }
    assert all(ns > 0 for _, ns, _ in log.folded[3])


def test_device_events_can_not_be_folded_on_the_way_so_a_full_log_ends_the_window(
    hooks: FakeHooks, recorder: WorkerRecorder
) -> None:
    recorder.arm(WorkerOrder(None, "events", max_spans=5))
    steps(hooks, 4)
    assert vars(hooks.runner) == {}
    answer = recorder.take()
    assert "full after 3 steps" in answer["errors"][0]
    assert taken(answer)[0] == 6


def test_one_step_in_k_is_recorded_and_between_them_modules_are_left_alone(
    hooks: FakeHooks, recorder: WorkerRecorder
) -> None:
    recorder.arm(WorkerOrder(None, "host", every=3))
    hooked = []
    for _ in range(7):
        hooks.runner.execute()
        hooked.append("sample" in vars(hooks.runner))
        hooks.runner.sample()
    assert hooked == [False, False, True, False, False, True, False]
    answer = recorder.take()
    assert taken(answer) == (6, [0, 9])
    entries = array.array("q", answer["log"].entries)
    names = [answer["log"].frames[frame][0] for frame in entries[::3]]
    assert names == [RECORDER_FRAME, "execute_model", "sample_tokens"] * 2


def test_hooks_that_can_not_be_set_in_a_sampled_step_give_the_window_up_not_the_step(
    hooks: FakeHooks, recorder: WorkerRecorder
) -> None:
    hooks.fail_in_step = True
    assert recorder.arm(WorkerOrder(None, "host", every=3)) == {"errors": []}
    steps(hooks, 7)
    assert vars(hooks.runner) == {}
    (error,) = recorder.take()["errors"]
    assert "no such phase" in error


def test_folding_that_fails_gives_the_window_up_not_the_step(
    hooks: FakeHooks, recorder: WorkerRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("vime_otel.recorder.worker.fold")
    recorder.arm(WorkerOrder(None, "host", max_spans=3))
    steps(hooks, 5)
    assert vars(hooks.runner) == {}
    assert any("'fold' is not defined" in error for error in recorder.take()["errors"])


class FakeRunner:
    """Stands for a V2 runner; its module is this one."""


def dispatch_cg_and_sync_dp() -> str:
    return "the choice of another vLLM"


@pytest.fixture
def context_module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Stands for vLLM's forward context, of a version that has other fields."""
    module = ModuleType("vllm.forward_context")
    module.create_forward_context = lambda: "the context of another vLLM"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


@pytest.mark.parametrize("told", ["the context", "the choice"])
def test_a_vllm_that_dispatches_otherwise_gives_the_window_up_not_the_step(
    hooks: FakeHooks, recorder: WorkerRecorder, context_module: ModuleType, told: str
) -> None:
    recorder.arm(WorkerOrder(None, "host"))
    worker = SimpleNamespace(vllm_config=SimpleNamespace(compilation_config=None))
    with ExitStack() as hooked:
        patches = Patches()
        hooked.callback(patches.restore)
        WorkerHooks(worker)._hook_dispatch(FakeRunner(), patches, recorder, force_eager=False)
        create = context_module.create_forward_context if told == "the context" else dispatch_cg_and_sync_dp
        assert create() == f"{told} of another vLLM"
    assert vars(hooks.runner) == {}
    (error,) = recorder.take()["errors"]
    assert "recording failed and was given up" in error


def test_the_first_forced_eager_step_is_discarded(hooks: FakeHooks, recorder: WorkerRecorder) -> None:
    recorder.arm(WorkerOrder(2, "host", force_eager=True))
    steps(hooks, 4)
    assert taken(recorder.take()) == (4, [0, 6])


def test_a_step_says_how_it_was_run_and_what_is_said_first_counts(hooks: FakeHooks, recorder: WorkerRecorder) -> None:
    recorder.arm(WorkerOrder(None, "host"))
    recorder.executed("before any step")
    for told in (["compiled", "eager"], [], ["full_graph"]):
        hooks.runner.execute()
        for execution in told:
            recorder.executed(execution)
    assert recorder.take()["log"].executions == ["compiled", "", "full_graph"]


def test_a_forced_eager_run_is_refused_where_memory_is_short(recorder: WorkerRecorder) -> None:
    assert recorder.check("sync", True, 400) == {"errors": []}
    assert recorder.check("sync", False, 1024) == {"errors": []}
    (error,) = recorder.check("sync", True, 1024)["errors"]
    assert "500 MiB of device memory are free" in error
    assert "VIME_OTEL_MIN_FREE_MIB" in error


def test_device_events_are_refused_without_a_device(hooks: FakeHooks, recorder: WorkerRecorder) -> None:
    assert recorder.check("events", False, 0) == {"errors": []}
    hooks.device_sync = lambda: None  # type: ignore[method-assign,assignment,return-value]
    (error,) = recorder.check("events", False, 0)["errors"]
    assert "needs a GPU" in error


def test_a_dummy_batch_takes_the_place_of_the_step_that_is_discarded(
    hooks: FakeHooks, recorder: WorkerRecorder
) -> None:
    recorder.arm(WorkerOrder(None, "host", force_eager=True))
    recorder.keeping_company(lambda: None)()
    steps(hooks, 2)
    assert taken(recorder.take()) == (4, [0, 6])


def test_steps_after_the_last_recorded_one_leave_its_times_on_the_device(
    hooks: FakeHooks, recorder: WorkerRecorder
) -> None:
    recorder.arm(WorkerOrder(2, "events"))
    steps(hooks, 4)
    log = recorder.take()["log"]
    assert len(log.device) // 8 == len(log.entries) // 8 // 3 * 2 == 8


def test_a_sampled_steps_own_frame_has_its_times_on_the_device_too(hooks: FakeHooks, recorder: WorkerRecorder) -> None:
    recorder.arm(WorkerOrder(None, "events", every=2))
    steps(hooks, 5)
    log = recorder.take()["log"]
    assert len(log.device) // 8 == len(log.entries) // 8 // 3 * 2 == 12


def test_events_give_every_span_its_times_on_the_device(hooks: FakeHooks, recorder: WorkerRecorder) -> None:
    recorder.arm(WorkerOrder(2, "events"))
    steps(hooks, 2)
    log = recorder.take()["log"]
    entries, device = array.array("q", log.entries), array.array("q", log.device)
    assert len(device) == len(entries) // 3 * 2 == 8
    for span in range(4):
        start, end = entries[3 * span + 1 : 3 * span + 3]
        begin, finish = device[2 * span : 2 * span + 2]
        # The fake device runs at the host's pace; it was marked inside of the host's readings.
        assert start - 1_000_000 < begin <= finish < end + 1_000_000
    assert hooks.syncs == 0


def test_what_a_dummy_pass_records_is_thrown_away(hooks: FakeHooks, recorder: WorkerRecorder) -> None:
    recorder.arm(WorkerOrder(None, "host"))
    hooks.runner.execute()

    def dummy() -> str:
        with eventlog.span("inside"):
            return "dummy"

    assert recorder.discarding(dummy)() == "dummy"
    assert taken(recorder.take())[0] == 1
