"""The marker of a recording that is under way: one process at a time, nothing after its end."""

from __future__ import annotations

import os
from datetime import datetime, timezone
from pathlib import Path

import pytest
from simulated_recorder import POLL

from collector.recordings.messages import RecordingRequest, read_poll
from collector.recordings.open_run import ArmedEngine, Marker, OpenRun, left_behind
from vime_otel.data.run_files import HEADER_FILE, OPEN_FILE

CONTENT = OpenRun(
    "5eed0123456789ab",
    datetime(2026, 11, 30, tzinfo=timezone.utc),
    1e9,
    RecordingRequest(steps=3, workers=("http://127.0.0.1:8001",)),
    (ArmedEngine(read_poll(POLL).recorder, "http://127.0.0.1:8001", "0" * 16),),
    (("http://127.0.0.1:8002", "nobody there"),),
    ("a reason",),
    ("a note",),
)


def test_what_was_written_is_read_by_the_next_process_alone(tmp_path: Path) -> None:
    marker = Marker.make(tmp_path / "run", CONTENT)
    assert list(left_behind(tmp_path)) == []  # this process has it
    marker.let_go()
    ((taken, content),) = left_behind(tmp_path)
    assert content == CONTENT
    assert list(left_behind(tmp_path)) == []
    taken.remove()
    assert list((tmp_path / "run").iterdir()) == []


def test_a_run_that_was_written_needs_no_ending(tmp_path: Path) -> None:
    Marker.make(tmp_path / "run", CONTENT).let_go()
    (tmp_path / "run" / HEADER_FILE).write_text("{}")
    assert list(left_behind(tmp_path)) == []
    assert not (tmp_path / "run" / OPEN_FILE).exists()


def test_a_marker_that_is_removed_meanwhile_is_nobodys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    marker = Marker.make(tmp_path / "run", CONTENT)
    real = os.open

    def late(path: Path, flags: int, *mode: int) -> int:
        descriptor = real(path, flags, *mode)
        marker.remove()
        return descriptor

    monkeypatch.setattr(os, "open", late)
    assert Marker.take_over(tmp_path / "run" / OPEN_FILE) is None


def test_a_full_disk_leaves_no_half_marker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda descriptor, content: real(descriptor, content[:10]))
        with pytest.raises(OSError, match="No space left"):
            Marker.make(tmp_path / "run", CONTENT)
    assert list((tmp_path / "run").iterdir()) == []
