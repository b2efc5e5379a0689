"""A recorder's way to a real collector and back, over sockets and the real exporter; its engine is a fake port."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from fake_port import FakePort, drive, step
from running_collector import ControlClient, config, running, until

from vime_otel.demo.ports import free_port
from vime_otel.recorder.collector_door import CollectorDoor
from vime_otel.recorder.engine import EngineRecorder
from vime_otel.recorder.file_door import FileDoor
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
