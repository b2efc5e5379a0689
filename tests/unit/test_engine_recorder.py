"""An engine's recorder from order to window, over a fake port that stands for the engine."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from fake_port import LOGS, FakePort, step

from vime_otel.recorder.engine import EngineRecorder
from vime_otel.recorder.window import Command, Window, WorkerOrder


@pytest.fixture
def port() -> FakePort:
    return FakePort()


@pytest.fixture
def recorder(port: FakePort) -> EngineRecorder:
    return EngineRecorder(port)


@pytest.fixture
def windows() -> list[Window]:
    return []


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
