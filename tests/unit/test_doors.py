"""A recorder's way to a real collector and back, over sockets and the real exporter; its engine is a fake port."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from fake_port import FakePort, step
from running_collector import ControlClient, config, running, until

from vime_otel.demo.ports import free_port
from vime_otel.recorder.collector_door import CollectorDoor
from vime_otel.recorder.engine import EngineRecorder
from vime_otel.recorder.file_door import FileDoor
from vime_otel.recorder.shared_directory import SharedDirectory
from vime_otel.recorder.window import Command

QUICK_RETRY = (0.05, 0.1)


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> EngineRecorder:
    monkeypatch.setattr("vime_otel.recorder.collector_door.RETRY_SECONDS", QUICK_RETRY)
    monkeypatch.setattr("vime_otel.recorder.collector_door.IDLE_WAIT_SECONDS", 0.5)
    return EngineRecorder(FakePort())


@pytest.fixture
def open_door(recorder: EngineRecorder) -> Iterator[Callable[..., CollectorDoor]]:
    doors: list[CollectorDoor] = []

    def make(url: str, token: str = "") -> CollectorDoor:
        door = CollectorDoor(recorder, url, token)
        doors.append(door)
        door.start()
        return door

    yield make
    for door in doors:
        door.close()
        door.join()


def drive(recorder: EngineRecorder, steps: int) -> None:
    """Wait until it is armed, then make steps as an engine would."""
    until(lambda: recorder.status.phase == "armed")
    for number in range(steps):
        step(recorder, "prefill" if number == 0 else "decode", at=1000 + number * 10)


def test_a_recording_goes_all_the_way(
    recorder: EngineRecorder, open_door: Callable[..., CollectorDoor], tmp_path: Path
) -> None:
    with running(config(tmp_path)) as collector:
        open_door(collector.url)
        control = ControlClient(collector.url)
        until(control.recorders)
        recording = control.start(steps=4)
        drive(recorder, 6)
        result = control.finish(recording)
    assert (result["complete"], result["reasons"]) == (True, [])
    assert result["steps"] == {"decode": 3, "prefill": 1}
    assert (recorder.status.phase, recorder.status.recording) == ("done", recording)


def test_it_finds_a_collector_that_starts_later(
    recorder: EngineRecorder, open_door: Callable[..., CollectorDoor], tmp_path: Path
) -> None:
    with running(config(tmp_path)) as first:
        port = first.collector.http_port
    open_door(f"http://127.0.0.1:{port}")
    with running(config(tmp_path, http_port=port)) as second:
        (found,) = until(ControlClient(second.url).recorders)
    assert found["engine"] == recorder.id


def test_with_the_token_it_is_let_in_and_its_data_too(
    recorder: EngineRecorder, open_door: Callable[..., CollectorDoor], tmp_path: Path
) -> None:
    with running(config(tmp_path, token="secret")) as collector:
        open_door(collector.url, "secret")
        control = ControlClient(collector.url, "secret")
        until(control.recorders)
        recording = control.start(steps=1)
        drive(recorder, 1)
        assert control.finish(recording)["complete"]


def test_with_a_wrong_token_it_says_so_once_and_looks_on(
    recorder: EngineRecorder,
    open_door: Callable[..., CollectorDoor],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with running(config(tmp_path, token="secret")) as collector:
        door = open_door(collector.url, "guess")
        until(lambda: "401" in caplog.text)
        assert ControlClient(collector.url, "secret").recorders() == []
        assert door.is_alive()
    told = [record for record in caplog.records if "401" in record.getMessage()]
    assert len(told) == 1
    assert "guess" not in caplog.text


def test_when_the_collector_dies_the_window_is_given_up(
    recorder: EngineRecorder,
    open_door: Callable[..., CollectorDoor],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("vime_otel.recorder.collector_door.LOST_SECONDS", 0.2)
    delivered: list[Any] = []
    with running(config(tmp_path)) as collector:
        door = open_door(collector.url)
        monkeypatch.setattr(door, "deliver", delivered.append)
        control = ControlClient(collector.url)
        until(control.recorders)
        control.start(steps=4)
        drive(recorder, 1)
        # A stopping collector cancels; one that dies says nothing: its answers are cut off here.
        monkeypatch.setattr(door, "_obey", lambda order: None)
    until(lambda: recorder.due)
    recorder.run_due()
    (window,) = delivered
    assert window.outcome == "failed"
    assert window.reasons[0].endswith("is gone")


def test_what_a_killed_collector_began_is_ended_by_the_next_one_where_that_has_other_runs(
    recorder: EngineRecorder, open_door: Callable[..., CollectorDoor], tmp_path: Path
) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "vime_otel", "serve", "--http", f"127.0.0.1:{port}", "--grpc", "127.0.0.1:0"]
    with subprocess.Popen([*command, "--out", str(tmp_path)], stdout=subprocess.DEVNULL) as killed:
        try:
            open_door(url)
            until(lambda: is_serving(url) and ControlClient(url).recorders())
            first = ControlClient(url).start(steps=1000)
            drive(recorder, 3)
        finally:
            killed.kill()
    with running(config(tmp_path / "other", http_port=port)) as collector:
        until(lambda: recorder.due)
        recorder.run_due()
        until(lambda: recorder.status.phase == "failed")
        assert recorder.status.recording == first
        control = ControlClient(collector.url)
        second = control.start(steps=2)
        drive(recorder, 2)
        assert control.finish(second)["complete"]


def test_a_collector_hears_how_its_recording_ended_though_another_has_begun(
    recorder: EngineRecorder,
    open_door: Callable[..., CollectorDoor],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def exported_and_then(error: str | None, waits: bool = False, original: Any = recorder.exported) -> None:
        original(error, waits)
        recorder.submit(Command("f" * 16, 5), lambda window: None)

    monkeypatch.setattr(recorder, "exported", exported_and_then)
    with running(config(tmp_path)) as collector:
        open_door(collector.url)
        control = ControlClient(collector.url)
        until(control.recorders)
        recording = control.start(steps=2)
        drive(recorder, 2)
        result = control.finish(recording)
        until(lambda: control.recorders()[0]["phase"] == "armed")
    assert (result["complete"], result["reasons"]) == (True, [])


def test_sampling_ends_where_the_next_collector_takes_no_samples(
    recorder: EngineRecorder, open_door: Callable[..., CollectorDoor], tmp_path: Path
) -> None:
    recorder.port.sample_every = 1
    with running(config(tmp_path / "first", serves=True)) as first:
        port = first.collector.http_port
        open_door(first.url)
        until(lambda: recorder.due)
        step(recorder)
        assert recorder._sampling is not None
    with running(config(tmp_path / "second", http_port=port)):
        until(lambda: recorder.due)
        step(recorder)
    assert recorder._sampling is None


def is_serving(url: str) -> bool:
    try:
        return requests.get(url, timeout=5).status_code > 0
    except requests.ConnectionError:
        return False


def test_a_collector_does_not_end_what_the_file_trigger_began(
    recorder: EngineRecorder, file_door: FileDoor, open_door: Callable[..., CollectorDoor], tmp_path: Path
) -> None:
    directory = tmp_path / "dir"
    until(directory.is_dir)
    (directory / "start").write_text("3")
    drive(recorder, 1)
    with running(config(tmp_path / "runs")) as collector:
        open_door(collector.url)
        until(lambda: [each["phase"] for each in ControlClient(collector.url).recorders()] == ["recording"])
        step(recorder, at=2000)
        step(recorder, at=3000)
        until(lambda: recorder.status.phase == "done")
    assert not (directory / "start").exists()


@pytest.fixture
def file_door(recorder: EngineRecorder, tmp_path: Path) -> Iterator[FileDoor]:
    door = FileDoor(recorder, tmp_path / "dir")
    door.start()
    yield door
    door.close()
    door.join()


def test_a_start_file_that_is_removed_cancels(recorder: EngineRecorder, file_door: FileDoor, tmp_path: Path) -> None:
    start = tmp_path / "dir" / "start"
    until(start.parent.is_dir)
    start.write_text("5")
    until(lambda: recorder.status.phase == "armed")
    recorder.run_due()
    start.unlink()
    until(lambda: recorder.due)
    recorder.run_due()
    until(lambda: recorder.status.phase == "cancelled")
    assert recorder.status.reason == "the start file was removed"


def test_a_start_file_that_can_not_be_read_for_a_while_cancels_nothing(
    recorder: EngineRecorder, file_door: FileDoor, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    start, kept, loop = (tmp_path / "dir" / name for name in ("start", "kept", "loop"))
    until(start.parent.is_dir)
    start.write_text("3")
    os.link(start, kept)
    loop.symlink_to("start")
    drive(recorder, 1)
    loop.replace(start)  # leads to itself now
    until(lambda: "can't use VIME_OTEL_DIR" in caplog.text, 10)
    kept.replace(start)
    step(recorder, at=2000)
    step(recorder, at=3000)
    until(lambda: recorder.status.phase == "done")
    assert recorder.status.steps_done == 3


def test_a_start_file_that_is_written_anew_waits_and_the_log_says_so(
    recorder: EngineRecorder, file_door: FileDoor, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    start = tmp_path / "dir" / "start"
    until(start.parent.is_dir)
    start.write_text("5")
    drive(recorder, 1)
    first = recorder.status.recording
    start.write_text("2 per-layer")
    until(lambda: "says now waits" in caplog.text)
    assert (recorder.status.recording, recorder.status.steps_asked) == (first, 5)
    (told,) = caplog.messages
    assert f"recording {first} is running on this engine; remove the file to call that off" in told
    for number in range(4):
        step(recorder, at=2000 + number * 10)
    until(lambda: recorder.status.phase == "armed")
    assert recorder.status.steps_asked == 2


def test_the_log_tells_what_was_begun_and_what_came_of_it(
    recorder: EngineRecorder, file_door: FileDoor, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "vllm.vime_otel")
    directory = tmp_path / "dir"
    until(directory.is_dir)
    (directory / "start").write_text("5 force_eager")
    drive(recorder, 1)
    (directory / "start").unlink()
    until(lambda: recorder.due)
    recorder.run_due()
    until(lambda: recorder.status.phase == "cancelled")
    key = recorder.status.recording
    assert caplog.messages == [
        f"vime-otel: {directory}/start says 'force_eager', which is none of force-eager, per-layer: it is passed over",
        f"vime-otel: recording {key} begins: 5 steps, into {directory}",
        f"vime-otel: recording {key} ended with 1 step (the start file was removed)",
    ]


def test_one_engine_writes_straight_into_the_directory(
    recorder: EngineRecorder, file_door: FileDoor, tmp_path: Path
) -> None:
    directory = tmp_path / "dir"
    until(directory.is_dir)
    (directory / "start").write_text("2")
    drive(recorder, 2)
    until(lambda: not (directory / "start").exists())
    assert {"decode.folded", "decode.calls", "prefill.folded", "steps.json"} <= set(os.listdir(directory))
    until(lambda: recorder.status.phase == "done")


def test_a_start_file_that_is_still_being_written_is_waited_for(
    recorder: EngineRecorder, file_door: FileDoor, tmp_path: Path
) -> None:
    directory = tmp_path / "dir"
    until(directory.is_dir)
    (directory / "start").touch()
    (directory / "start").write_text("2")
    drive(recorder, 1)
    assert (recorder.status.phase, recorder.status.steps_asked) == ("recording", 2)


def test_the_folder_may_be_removed_and_made_again(
    recorder: EngineRecorder, file_door: FileDoor, tmp_path: Path
) -> None:
    directory = tmp_path / "dir"
    for _ in range(2):
        until((directory / ".engines").is_dir)
        (directory / "start").write_text("1")
        drive(recorder, 1)
        until(lambda: recorder.status.phase == "done")
        shutil.rmtree(directory)


def test_called_off_before_its_first_step_a_recording_leaves_the_one_before(
    recorder: EngineRecorder, file_door: FileDoor, tmp_path: Path
) -> None:
    directory = tmp_path / "dir"
    until(directory.is_dir)
    (directory / "start").write_text("1")
    drive(recorder, 1)
    until(lambda: recorder.status.phase == "done")
    before = (directory / "recording.json").read_bytes()
    (directory / "start").write_text("5")
    until(lambda: recorder.status.phase == "armed")
    (directory / "start").unlink()
    until(lambda: len(recorder._orders) == 2)
    recorder.run_due()
    until(lambda: recorder.status.phase == "cancelled")
    assert (directory / "recording.json").read_bytes() == before


def test_an_engine_that_refuses_keeps_nobody_waiting(
    recorder: EngineRecorder, file_door: FileDoor, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = tmp_path / "dir"
    until(directory.is_dir)
    recorder.port.plugin = False  # type: ignore[attr-defined]
    (directory / "start").write_text("5")
    until(lambda: recorder.status.phase == "armed")
    recorder.run_due()
    until(lambda: not (directory / "start").exists())
    assert recorder.status.phase == "refused"
    assert not (directory / "recording.json").exists()
    (record,) = caplog.records
    assert "there are no files of this engine: a worker of this engine has no recorder" in record.getMessage()


def test_an_engine_that_refused_keeps_nobody_waiting_though_another_recording_has_begun(
    recorder: EngineRecorder, file_door: FileDoor, tmp_path: Path
) -> None:
    directory = tmp_path / "dir"
    until(directory.is_dir)
    recorder.port.plugin = False  # type: ignore[attr-defined]
    (directory / "start").write_text("5")
    until(lambda: recorder.status.phase == "armed")
    recorder.run_due()
    assert recorder.submit(Command("f" * 16, 5), lambda window: None) is None
    until(lambda: not (directory / "start").exists(), 10)


@pytest.mark.parametrize("error", [OSError("it can't be read"), ValueError("it is no number")])
def test_whatever_fails_the_file_door_looks_on_and_says_so_once(
    recorder: EngineRecorder,
    file_door: FileDoor,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
) -> None:
    looks: list[int] = []

    def fail_at_first(shared: SharedDirectory, original: Any = SharedDirectory.start) -> Any:
        looks.append(1)
        if len(looks) < 4:
            raise error
        return original(shared)

    monkeypatch.setattr(SharedDirectory, "start", fail_at_first)
    until((tmp_path / "dir").is_dir)
    (tmp_path / "dir" / "start").write_text("1")
    until(lambda: recorder.status.phase == "armed", 10)
    (told,) = caplog.messages
    assert str(error) in told


def test_a_deadline_that_fails_does_not_end_the_file_door(
    recorder: EngineRecorder, file_door: FileDoor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks: list[int] = []

    def fail_at_first() -> None:
        checks.append(1)
        if len(checks) < 2:
            raise RuntimeError("the engine is gone")

    monkeypatch.setattr(recorder, "check_deadline", fail_at_first)
    until(lambda: len(checks) > 2, 10)
    assert file_door.is_alive()


def test_a_folder_that_can_not_be_looked_through_for_what_waits_ends_no_door(
    recorder: EngineRecorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class UnreadableFolder:
        def __init__(self, path: str) -> None:
            pass

        def glob(self, pattern: str) -> Iterator[Path]:
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("vime_otel.recorder.doors.Path", UnreadableFolder)
    door = FileDoor(recorder, tmp_path / "dir")
    door.start()
    try:
        until((tmp_path / "dir" / ".engines").is_dir, 10)
        until(lambda: "could not look for what waits" in caplog.text, 10)
    finally:
        door.close()
        door.join()


def test_a_directory_whose_lock_another_process_keeps_is_told_once_and_tried_again(
    recorder: EngineRecorder,
    file_door: FileDoor,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("vime_otel.recorder.shared_directory.LOCK_SECONDS", 0.0)
    directory = tmp_path / "dir"
    until(directory.is_dir)
    recorder.port.plugin = False  # type: ignore[attr-defined]
    with SharedDirectory(directory, "f" * 16).locked():
        (directory / "start").write_text("5")
        until(lambda: recorder.status.phase == "armed")
        recorder.run_due()
        until(lambda: "is locked by another process" in caplog.text, 10)
    until(lambda: not (directory / "start").exists(), 10)
    assert caplog.text.count("is locked by another process") == 1


def test_an_engine_whose_mark_is_lost_after_its_export_is_not_waited_for(
    recorder: EngineRecorder, file_door: FileDoor, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "vllm.vime_otel")
    directory = tmp_path / "dir"
    until(directory.is_dir)
    other = SharedDirectory(directory, "f" * 16)
    other.enter()
    try:
        (directory / "start").write_text("1")
        drive(recorder, 1)
        until(lambda: "follow when 1 other engine made steps" in caplog.text)
        shutil.rmtree(directory / ".engines")
        until(lambda: not (directory / "start").exists(), 10)
    finally:
        other.leave()
    assert (directory / "recording.json").exists()


def test_an_engine_says_that_its_folder_waits_for_another_one(
    recorder: EngineRecorder, file_door: FileDoor, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "vllm.vime_otel")
    directory = tmp_path / "dir"
    until(directory.is_dir)
    other = SharedDirectory(directory, "f" * 16)
    other.enter()
    try:
        (directory / "start").write_text("1")
        drive(recorder, 1)
        until(lambda: f"the files in {directory} follow when 1 other engine made steps, too" in caplog.text)
        assert not (directory / "recording.json").exists()
    finally:
        other.leave()
    until(lambda: not (directory / "start").exists())
    assert (directory / "recording.json").exists()
    assert caplog.text.count("follow when") == 1


def test_where_it_can_not_be_marked_that_there_are_no_files_the_log_says_so_once(
    recorder: EngineRecorder,
    file_door: FileDoor,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    directory = tmp_path / "dir"
    until(directory.is_dir)
    marks: list[str] = []

    def full_at_first(shared: SharedDirectory, key: str, original: Any = SharedDirectory.mark_done) -> None:
        marks.append(key)
        if len(marks) < 4:
            raise OSError(errno.ENOSPC, "No space left on device")
        original(shared, key)

    monkeypatch.setattr(SharedDirectory, "mark_done", full_at_first)
    recorder.port.plugin = False  # type: ignore[attr-defined]
    (directory / "start").write_text("5")
    until(lambda: recorder.status.phase == "armed")
    recorder.run_due()
    until(lambda: not (directory / "start").exists())
    for told in ("there are no files of this engine", "No space left"):
        assert len([message for message in caplog.messages if told in message]) == 1


def test_engines_of_a_lockstep_group_wait_for_each_other(
    recorder: EngineRecorder, file_door: FileDoor, tmp_path: Path
) -> None:
    directory = tmp_path / "dir"
    until(directory.is_dir)
    recorder.port.position = (2, 7)  # type: ignore[attr-defined]
    other = SharedDirectory(directory, "f" * 16)
    other.enter()
    try:
        (directory / "start").write_text("3")
        until(lambda: recorder.status.phase == "armed")
        recorder.run_due()
        group = recorder.port.describe()["dp_group"]
        key = recorder.status.recording
        assert key is not None
        until(lambda: list((directory / ".engines").glob(f".{key}-{group}-*")))
        assert recorder._waiting is not None
        assert recorder._waiting.start is None
        assert not recorder._orders
        assert other.agree(key, group, (2, 50), members=2) == (2, 50)
        until(lambda: recorder._orders)
        recorder.run_due()
        assert recorder._waiting.start == (2, 50)
    finally:
        other.leave()


def test_a_directory_that_can_not_be_used_is_told_once_and_tried_again(
    recorder: EngineRecorder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    door = FileDoor(recorder, tmp_path / "file")
    door.start()
    try:
        until(lambda: caplog.records)
        (tmp_path / "file").unlink()
        until((tmp_path / "file" / ".engines").is_dir)
    finally:
        door.close()
        door.join()
    (record,) = caplog.records
    assert "can't use VIME_OTEL_DIR" in record.getMessage()
    assert record.exc_info is None


def test_an_exporter_that_fails_leaves_no_start_file_behind(
    recorder: EngineRecorder, file_door: FileDoor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "nothing"))
    (tmp_path / "nothing" / "pickle.py").parent.mkdir()
    (tmp_path / "nothing" / "pickle.py").write_text("raise RuntimeError('no pickle here')")
    directory = tmp_path / "dir"
    until(directory.is_dir)
    (directory / "start").write_text("1")
    drive(recorder, 1)
    until(lambda: not (directory / "start").exists())
    assert recorder.status.phase == "failed"
    assert "no pickle here" in str(recorder.status.reason)
