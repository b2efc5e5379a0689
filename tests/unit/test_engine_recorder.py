"""An engine's recorder from order to window, over a fake port that stands for the engine."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from fake_port import LOGS, FakePort, step

from vime_otel.recorder.engine import EngineRecorder
from vime_otel.recorder.window import Command, Window, WorkerOrder


def test_n_steps_make_one_window_which_is_delivered_once(recorder: EngineRecorder, windows: list[Window]) -> None:
    assert recorder.submit(Command("r1", 3), windows.append) is None
    for n in range(5):
        step(recorder, at=n * 10)
    (window,) = windows
    assert [s.index for s in window.steps] == [0, 1, 2]
    assert window.steps[1].previous_update_end == 9
    assert len(window.ranks) == 2
    assert recorder.status.phase == "exporting"
    recorder.exported(None)
    assert (recorder.status.phase, recorder.status.steps_done) == ("done", 3)


def test_an_order_wakes_an_idle_engine_and_is_due(recorder: EngineRecorder, port: FakePort) -> None:
    recorder.submit(Command("r1", 3), lambda window: None)
    assert recorder.due
    assert port.woken == 1


def test_workers_count_to_the_same_number_unless_only_one_kind_counts(
    recorder: EngineRecorder, port: FakePort, windows: list[Window]
) -> None:
    recorder.submit(Command("r1", 1, timing="host"), windows.append)
    step(recorder)
    recorder.exported(None)
    recorder.submit(Command("r2", 1, kind="decode"), windows.append)
    step(recorder, "prefill")
    step(recorder, "decode")
    assert [call for call in port.calls if call[0] == "vime_otel_arm"] == [
        ("vime_otel_arm", (WorkerOrder(1, "host", max_spans=1000),)),
        ("vime_otel_arm", (WorkerOrder(None, "sync", max_spans=1000),)),
    ]
    assert [s.counts.kind for s in windows[1].steps] == ["prefill", "decode"]


def test_empty_scheduler_outputs_are_no_steps(recorder: EngineRecorder, windows: list[Window]) -> None:
    recorder.submit(Command("r1", 2), windows.append)
    step(recorder)
    step(recorder, tokens=0)
    assert recorder.status.steps_done == 1
    step(recorder)
    assert len(windows[0].steps) == 2


def test_a_batch_that_was_under_way_before_arming_is_no_step(recorder: EngineRecorder, windows: list[Window]) -> None:
    early = SimpleNamespace(total_num_scheduled_tokens=1, kind="decode")
    recorder.submit(Command("r1", 1), windows.append)
    recorder.run_due()
    recorder.on_update(early, 0, 1)
    assert not windows
    assert recorder.status.steps_done == 0


def test_overlapping_steps_are_told_apart(recorder: EngineRecorder, windows: list[Window]) -> None:
    recorder.submit(Command("r1", 2), windows.append)
    recorder.run_due()
    outputs = [SimpleNamespace(total_num_scheduled_tokens=1, kind="decode") for _ in range(3)]
    recorder.on_schedule(outputs[0], 0, 1)
    recorder.on_schedule(outputs[1], 2, 3)
    recorder.on_update(outputs[0], 4, 5)
    recorder.on_schedule(outputs[2], 6, 7)  # past the window's steps, not one of them
    recorder.on_update(outputs[1], 8, 9)
    recorder.finish_window()
    assert [(s.schedule_start, s.update_end) for s in windows[0].steps] == [(0, 5), (2, 9)]


def test_an_empty_output_is_no_step_before(recorder: EngineRecorder, windows: list[Window]) -> None:
    recorder.submit(Command("r1", 1), windows.append)
    recorder.run_due()
    empty, output = (SimpleNamespace(total_num_scheduled_tokens=n, kind="decode") for n in (0, 1))
    recorder.on_schedule(empty, 0, 1)
    recorder.on_schedule(output, 2, 3)
    recorder.on_update(empty, 4, 5)
    recorder.on_update(output, 6, 7)
    recorder.finish_window()
    assert windows[0].steps[0].previous_update_end == 0


def test_an_idle_engine_is_armed_and_cancelled_without_a_step(recorder: EngineRecorder, windows: list[Window]) -> None:
    recorder.submit(Command("r1", 3), windows.append)
    recorder.run_due()
    recorder.cancel("r1", "nobody wants it")
    recorder.run_due()
    (window,) = windows
    assert (window.outcome, window.reasons, window.steps) == ("cancelled", ["nobody wants it"], [])
    recorder.exported(None)
    assert (recorder.status.phase, recorder.status.reason) == ("cancelled", "nobody wants it")


def test_cancelling_another_recording_changes_nothing(recorder: EngineRecorder, windows: list[Window]) -> None:
    recorder.submit(Command("r1", 1), windows.append)
    recorder.run_due()
    recorder.cancel("r0", "a mistake")
    step(recorder)
    assert windows[0].outcome == "done"


def test_past_its_deadline_it_ends_by_itself_and_says_how_far_it_came(
    recorder: EngineRecorder, windows: list[Window]
) -> None:
    recorder.submit(Command("r1", 3, deadline_seconds=0.0), windows.append)
    step(recorder)
    recorder.check_deadline()
    recorder.run_due()
    assert windows[0].reasons == ["the deadline passed after 1 of 3 steps"]
    assert windows[0].outcome == "failed"


def test_a_second_order_is_refused_with_the_name_of_the_first(recorder: EngineRecorder) -> None:
    recorder.submit(Command("r1", 3), lambda window: None)
    assert recorder.submit(Command("r2", 3), lambda window: None) == "recording r1 is running on this engine"
    assert recorder.status.recording == "r1"


def test_no_worker_is_called_while_one_lacks_the_plugin(recorder: EngineRecorder, port: FakePort) -> None:
    port.plugin = False
    recorder.submit(Command("r1", 3), lambda window: None)
    step(recorder)
    assert port.calls == []
    assert recorder.status.phase == "refused"
    assert "has no recorder" in str(recorder.status.reason)


def test_a_rank_that_could_not_arm_ends_the_window_and_is_named(
    recorder: EngineRecorder, port: FakePort, windows: list[Window]
) -> None:
    port.arm_answers = [{"errors": []}, {"errors": ["it would not"]}]
    recorder.submit(Command("r1", 5), windows.append)
    step(recorder)
    assert windows[0].reasons == ["rank 1: it would not"]
    assert windows[0].outcome == "failed"


def test_a_rank_that_could_not_be_fetched_is_named_and_the_others_are_kept(
    recorder: EngineRecorder, port: FakePort, windows: list[Window]
) -> None:
    port.take_answers = [port.take_answers[0], {"log": None, "errors": ["it is gone"]}]
    recorder.submit(Command("r1", 1), windows.append)
    step(recorder)
    assert windows[0].reasons == ["rank 1: it is gone"]
    assert windows[0].ranks == LOGS[:1]


def test_an_error_while_following_the_scheduler_gives_up_the_window_not_the_step(
    recorder: EngineRecorder, windows: list[Window]
) -> None:
    recorder.submit(Command("r1", 5), windows.append)
    step(recorder)
    with pytest.raises(ValueError, match="no such kind") as caught:
        step(recorder, "broken")
    recorder.watch_failed(caught.value)
    step(recorder)
    assert windows[0].outcome == "failed"
    assert "no such kind" in windows[0].reasons[0]


def test_an_error_in_the_recorder_itself_never_reaches_the_engine(recorder: EngineRecorder, port: FakePort) -> None:
    def fail() -> bool:
        raise OSError("the workers are gone")

    port.workers_have_plugin = fail  # type: ignore[method-assign]
    recorder.submit(Command("r1", 5), lambda window: None)
    step(recorder)
    assert recorder.status.phase == "failed"
    assert "the workers are gone" in str(recorder.status.reason)


def test_after_the_window_nothing_is_patched(recorder: EngineRecorder, port: FakePort) -> None:
    recorder.submit(Command("r1", 1), lambda window: None)
    step(recorder)
    assert len(recorder._patches) == 0


def test_an_export_that_failed_is_told_beside_what_was_wrong_before(recorder: EngineRecorder) -> None:
    recorder.submit(Command("r1", 3), lambda window: None)
    recorder.run_due()
    recorder.cancel("r1", "nobody wants it")
    recorder.run_due()
    recorder.exported("nobody answers")
    assert (recorder.status.phase, recorder.status.reason) == ("failed", "nobody wants it; nobody answers")


def test_an_engine_whose_window_waits_for_its_collector_takes_other_orders(recorder: EngineRecorder) -> None:
    recorder.submit(Command("r1", 1), lambda window: None)
    step(recorder)
    assert recorder.submit(Command("r2", 1), lambda window: None) == "recording r1 is running on this engine"
    recorder.exported("nobody answers", waits=True)
    assert (recorder.status.phase, recorder.status.recording) == ("waiting", "r1")
    assert recorder.submit(Command("r2", 1), lambda window: None) is None


@pytest.mark.parametrize("first", ["the answer", "the news"])
@pytest.mark.parametrize("error", [None, "no such recording"])
def test_once_a_window_that_waited_is_gone_the_phase_says_how(
    recorder: EngineRecorder, first: str, error: str | None
) -> None:
    recorder.submit(Command("r1", 1), lambda window: None)
    step(recorder)
    recorder.gone("r0", "no such recording")
    told = [
        lambda: recorder.exported("nobody answers", waits=True),
        lambda: recorder.gone("r1", error),
    ]
    for tell in told if first == "the answer" else reversed(told):
        tell()
    assert (recorder.status.phase, recorder.status.reason) == ("failed" if error else "done", error)


def test_news_of_several_windows_may_come_before_the_last_ones_answer(recorder: EngineRecorder) -> None:
    recorder.submit(Command("r1", 1), lambda window: None)
    step(recorder)
    recorder.gone("r1", None)
    recorder.gone("r0", None)
    recorder.exported("nobody answers", waits=True)
    assert (recorder.status.phase, recorder.status.reason) == ("done", None)


def test_what_waited_of_an_earlier_window_says_nothing_of_the_next(recorder: EngineRecorder) -> None:
    recorder.submit(Command("r1", 1), lambda window: None)
    step(recorder)
    recorder.exported("nobody answers", waits=True)
    recorder.submit(Command("r2", 1), lambda window: None)
    recorder.gone("r1", None)
    assert (recorder.status.phase, recorder.status.recording) == ("armed", "r2")


def test_how_a_recording_ended_is_known_when_another_one_runs(recorder: EngineRecorder) -> None:
    recorder.submit(Command("r1", 1), lambda window: None)
    step(recorder)
    assert recorder.ended("r1") is None
    recorder.exported(None)
    recorder.submit(Command("r2", 1), lambda window: None)
    ended = recorder.ended("r1")
    assert ended is not None
    assert (ended.phase, ended.steps_done, recorder.status.recording) == ("done", 1, "r2")
    assert recorder.ended("r2") is None


@pytest.mark.parametrize("error", [None, "no such recording"])
def test_what_waited_ends_as_it_would_have_though_another_one_ended_meanwhile(
    recorder: EngineRecorder, error: str | None
) -> None:
    recorder.submit(Command("r1", 1), lambda window: None)
    step(recorder)
    recorder.exported("nobody answers", waits=True)
    recorder.submit(Command("r2", 5), lambda window: None)
    recorder.run_due()
    recorder.cancel("r2", "nobody wants it")
    recorder.run_due()
    recorder.exported(None)
    recorder.gone("r1", error)
    ended = recorder.ended("r1")
    assert ended is not None
    assert (ended.phase, ended.reason) == ("failed" if error else "done", error)
    assert (recorder.status.phase, recorder.status.recording) == ("cancelled", "r2")


def test_of_two_orders_at_the_same_time_one_is_refused(port: FakePort) -> None:
    recorder = EngineRecorder(port)
    both = threading.Barrier(2)
    port.position = (0, 0)

    def both_are_here() -> tuple[int, int]:
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(0.2)
        return 0, 0

    port.lockstep = both_are_here  # type: ignore[method-assign]
    with ThreadPoolExecutor(2) as pool:
        orders = [Command(recording, 1, together=True) for recording in ("r1", "r2")]
        refusals = list(pool.map(lambda order: recorder.submit(order, lambda window: None), orders))
    assert sum(refusal is None for refusal in refusals) == 1


def test_a_recorder_that_fails_after_arming_disarms_the_workers(recorder: EngineRecorder, port: FakePort) -> None:
    def fail(*args: Any) -> None:
        raise RuntimeError("no such scheduler")

    port.watch_steps = fail  # type: ignore[method-assign]
    recorder.submit(Command("r1", 1), lambda window: None)
    step(recorder)
    step(recorder)
    assert recorder.status.phase == "failed"
    assert [method for method, _ in port.calls] == ["vime_otel_arm", "vime_otel_take"]


def test_the_first_step_of_a_forced_eager_run_is_discarded(
    recorder: EngineRecorder, port: FakePort, windows: list[Window]
) -> None:
    port.execution = "compiled"
    recorder.submit(Command("r1", 2, force_eager=True), windows.append)
    for at in range(0, 40, 10):
        step(recorder, at=at)
    assert [s.schedule_start for s in windows[0].steps] == [10, 20]
    (order,) = [args[0] for method, args in port.calls if method == "vime_otel_arm"]
    assert order.force_eager


def test_an_eager_engine_has_nothing_to_force(recorder: EngineRecorder, port: FakePort, windows: list[Window]) -> None:
    recorder.submit(Command("r1", 2, force_eager=True), windows.append)
    for at in range(0, 40, 10):
        step(recorder, at=at)
    assert [s.schedule_start for s in windows[0].steps] == [0, 10]
    (order,) = [args[0] for method, args in port.calls if method == "vime_otel_arm"]
    assert not order.force_eager


def test_a_rank_without_memory_for_a_forced_eager_run_refuses_it(recorder: EngineRecorder, port: FakePort) -> None:
    port.execution = "compiled"
    port.check_answers = [{"errors": []}, {"errors": ["500 MiB are free"]}]
    recorder.submit(Command("r1", 2, force_eager=True), lambda window: None)
    step(recorder)
    assert (recorder.status.phase, recorder.status.reason) == ("refused", "rank 1: 500 MiB are free")
    assert [method for method, _ in port.calls] == ["vime_otel_check"]


def test_a_rank_that_has_no_device_events_refuses_them(recorder: EngineRecorder, port: FakePort) -> None:
    port.check_answers = [{"errors": ["it needs a GPU"]}, {"errors": []}]
    recorder.submit(Command("r1", 2, timing="events"), lambda window: None)
    step(recorder)
    assert (recorder.status.phase, recorder.status.reason) == ("refused", "rank 0: it needs a GPU")
    assert port.calls == [("vime_otel_check", ("events", False, 1024))]
