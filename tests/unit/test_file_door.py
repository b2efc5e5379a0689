"""The file trigger of one engine, with the real exporter; its engine is a fake port."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fake_port import drive, step
from running_collector import until

from vime_otel.recorder.engine import EngineRecorder
from vime_otel.recorder.file_door import FileDoor
from vime_otel.recorder.shared_directory import SharedDirectory
from vime_otel.recorder.window import Command


@contextmanager
def another_engine(directory: Path) -> Iterator[SharedDirectory]:
    """One that lives under the directory, once that is there, and does nothing."""
    until(directory.is_dir)
    other = SharedDirectory(directory, "f" * 16)
    other.enter()
    try:
        yield other
    finally:
        other.leave()


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
    with another_engine(directory):
        (directory / "start").write_text("1")
        drive(recorder, 1)
        until(lambda: "follow when 1 other engine made steps" in caplog.text)
        shutil.rmtree(directory / ".engines")
        until(lambda: not (directory / "start").exists(), 10)
    assert (directory / "recording.json").exists()


def test_an_engine_says_that_its_folder_waits_for_another_one(
    recorder: EngineRecorder, file_door: FileDoor, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "vllm.vime_otel")
    directory = tmp_path / "dir"
    with another_engine(directory):
        (directory / "start").write_text("1")
        drive(recorder, 1)
        until(lambda: f"the files in {directory} follow when 1 other engine made steps, too" in caplog.text)
        assert not (directory / "recording.json").exists()
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
    recorder.port.position = (2, 7)  # type: ignore[attr-defined]
    with another_engine(directory) as other:
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
