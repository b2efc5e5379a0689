"""Continuous recording of one step in K, beside the recordings that are asked for."""

from __future__ import annotations

from typing import Any

import pytest
from fake_port import FakePort, step

from vime_otel.recorder.engine import EngineRecorder, Sampling
from vime_otel.recorder.window import Command, Window


def sampling(windows: list[Window], every: int = 3) -> Sampling:
    return Sampling(lambda: Command("5" * 16, 2, every=every, totals_only=True), windows.append)


def test_sampling_takes_every_kth_step_window_after_window(recorder: EngineRecorder, windows: list[Window]) -> None:
    recorder.sample(sampling(windows))
    for at in range(0, 140, 10):
        step(recorder, at=at)
    assert [[s.schedule_start for s in window.steps] for window in windows] == [[20, 50], [80, 110]]
    assert [[s.index for s in window.steps] for window in windows] == [[0, 1], [2, 3]]
    assert recorder.status.phase == "idle", "sampling goes on beside all else"


def test_a_window_of_samples_ends_by_its_age(
    recorder: EngineRecorder, windows: list[Window], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vime_otel.recorder.engine.PIECE_SECONDS", -10_000_000)
    recorder.sample(sampling(windows, every=1))
    step(recorder)
    assert len(windows) == 1


def test_a_recording_comes_before_sampling_and_what_was_sampled_is_handed_over(
    recorder: EngineRecorder, windows: list[Window]
) -> None:
    samples: list[Window] = []
    recorder.sample(sampling(samples, every=1))
    step(recorder)
    assert recorder.submit(Command("r1", 1), windows.append) is None
    recorder.sample(sampling(samples))
    step(recorder)
    assert [len(window.steps) for window in samples] == [1]
    assert [window.command.recording for window in windows] == ["r1"]
    assert recorder.status.phase == "exporting"
    recorder.sample(sampling(samples))
    recorder.exported(None)
    recorder.sample(sampling(samples, every=1))
    step(recorder)
    step(recorder)
    assert [s.index for s in samples[1].steps] == [1, 2]


def test_sampling_that_nobody_takes_is_dropped(recorder: EngineRecorder, windows: list[Window]) -> None:
    recorder.sample(sampling(windows, every=1))
    step(recorder)
    recorder.stop_sampling()
    step(recorder)
    step(recorder)
    assert windows == []


def test_a_deadline_holds_beside_sampling(recorder: EngineRecorder, windows: list[Window]) -> None:
    recorder.sample(sampling([], every=1))
    step(recorder)
    recorder.submit(Command("r1", 3, deadline_seconds=0.0), windows.append)
    step(recorder)
    recorder.check_deadline()
    recorder.run_due()
    assert windows[0].reasons == ["the deadline passed after 1 of 3 steps"]


@pytest.mark.parametrize("trouble", ["a rank can't arm", "a rank can't be fetched", "it is refused", "the engine"])
def test_sampling_that_fails_is_told_once_and_waits_for_its_door(
    recorder: EngineRecorder, port: FakePort, windows: list[Window], caplog: pytest.LogCaptureFixture, trouble: str
) -> None:
    fails: list[dict[str, Any]] = [{"log": None, "errors": ["it would not"]}] * 2
    if trouble == "a rank can't arm":
        port.arm_answers = fails
    elif trouble == "a rank can't be fetched":
        port.take_answers = fails
    elif trouble == "it is refused":
        port.plugin = False
    else:
        port.watch_steps = None  # type: ignore[assignment]
    for asked in (1, 2, 3):
        recorder.sample(sampling(windows, every=1))
        for _ in range(8):
            step(recorder)
        armed = [method for method, _ in port.calls if method == "vime_otel_arm"]
        assert len(armed) == (0 if trouble == "it is refused" else asked)
    (told,) = caplog.messages
    assert "sampling steps failed and is tried again" in told
    assert recorder.status.phase == "idle"


def test_samples_that_fail_leave_a_recording_alone(
    recorder: EngineRecorder, port: FakePort, windows: list[Window]
) -> None:
    def fail(window: Window) -> None:
        raise OSError("no more threads")

    recorder.submit(Command("r1", 1), windows.append)
    step(recorder)
    recorder.exported(None)
    recorder.sample(Sampling(lambda: Command("5" * 16, 2, totals_only=True), fail))
    step(recorder)
    step(recorder)
    assert (recorder.status.phase, recorder.status.recording) == ("done", "r1")
    recorder.sample(Sampling(lambda: Command("5" * 16, 2, totals_only=True), fail))
    step(recorder)
    recorder.submit(Command("r2", 1), windows.append)
    step(recorder)
    assert [window.command.recording for window in windows] == ["r1", "r2"]
