"""Work beside an engine comes in pieces."""

from __future__ import annotations

import pytest

from vime_otel.recorder import paced as module
from vime_otel.recorder.paced import LONGEST_PAUSE_SECONDS, paced


def test_every_piece_of_work_is_followed_by_a_pause_as_long(monkeypatch: pytest.MonkeyPatch) -> None:
    now, pauses = [0.0], []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(module.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(module.time, "sleep", sleep)
    done = []
    for item, work in zip(paced(range(5)), [0.0, 0.003, 0.001, 0.004, 9.0], strict=True):
        now[0] += work
        done.append(item)
    assert done == [0, 1, 2, 3, 4]
    assert pauses == pytest.approx([0.003, 0.005, LONGEST_PAUSE_SECONDS])


def test_nothing_is_lost_of_an_empty_list() -> None:
    assert list(paced([])) == []
