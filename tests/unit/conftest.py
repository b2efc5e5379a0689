"""A recorder over a fake port that stands for the engine, for the tests of the recorder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_port import FakePort

from vime_otel.recorder.engine import EngineRecorder
from vime_otel.recorder.file_door import FileDoor
from vime_otel.recorder.window import Window


@pytest.fixture
def port() -> FakePort:
    return FakePort()


@pytest.fixture
def recorder(port: FakePort) -> EngineRecorder:
    return EngineRecorder(port)


@pytest.fixture
def windows() -> list[Window]:
    return []


@pytest.fixture
def file_door(recorder: EngineRecorder, tmp_path: Path) -> Iterator[FileDoor]:
    door = FileDoor(recorder, tmp_path / "dir")
    door.start()
    yield door
    door.close()
    door.join()
