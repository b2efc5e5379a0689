"""The hot path: what a recorded call writes, and that it stays out of the way."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import count

import pytest

import vime_otel
from vime_otel.recorder import eventlog
from vime_otel.recorder.eventlog import EventLog


@pytest.fixture
def faults() -> list[BaseException]:
    return []


@pytest.fixture
def log(faults: list[BaseException]) -> Iterator[EventLog]:
    """A log with a clock that counts, active for `span`."""
    made = EventLog(faults.append, clock=counting())
    eventlog.activate(made)
    yield made
    eventlog.activate(None)


def counting(fail_at: int | None = None) -> Callable[[], int]:
    ticks = count(100)

    def clock() -> int:
        now = next(ticks)
        if now == fail_at:
            raise RuntimeError("the clock stopped")
        return now

    return clock


def named(log: EventLog) -> list[tuple[str, int, int]]:
    entries = iter(log.entries)
    return [(log.frames[frame].name, start, end) for frame, start, end in zip(entries, entries, entries, strict=True)]


def test_a_recorded_call_keeps_arguments_and_result(log: EventLog) -> None:
    recorded = log.timed(lambda a, *rest, key: (a, rest, key), "f")
    assert recorded(1, 2, 3, key=4) == (1, (2, 3), 4)
    assert named(log) == [("f", 100, 101)]


def test_a_span_closes_on_an_exception_which_goes_on(log: EventLog) -> None:
    def fails() -> None:
        raise KeyError("inside")

    with pytest.raises(KeyError, match="inside"):
        log.timed(fails, "f")()
    assert named(log) == [("f", 100, 101)]


def test_children_are_written_before_their_parent(log: EventLog) -> None:
    inner = log.timed(lambda: None, "inner")
    log.timed(lambda: (inner(), inner()), "outer")()
    assert named(log) == [("inner", 101, 102), ("inner", 103, 104), ("outer", 100, 105)]


@pytest.mark.parametrize("fail_at", [100, 101])
def test_a_clock_that_fails_never_fails_the_call(faults: list[BaseException], fail_at: int) -> None:
    log = EventLog(faults.append, clock=counting(fail_at))
    calls: list[int] = []

    def work(value: int) -> int:
        calls.append(value)
        return value

    assert log.timed(work, "f")(7) == 7
    assert calls == [7], "the call was made exactly once"
    assert [str(fault) for fault in faults] == ["the clock stopped"]
    assert log.entries == []


def test_the_device_is_synchronised_at_both_ends(faults: list[BaseException]) -> None:
    order: list[str] = []

    def clock() -> int:
        order.append("clock")
        return 0

    log = EventLog(faults.append, sync=lambda: order.append("sync"), clock=clock)
    log.timed(lambda: order.append("work"), "f")()
    assert order == ["sync", "clock", "work", "sync", "clock"]


def test_calls_on_other_threads_pass_unrecorded(log: EventLog) -> None:
    results: list[int] = []
    recorded = log.timed(results.append, "f")

    def elsewhere() -> None:
        recorded(1)
        with vime_otel.span("phase"):
            results.append(2)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert results == [1, 2]
    assert log.entries == []


def test_span_records_a_phase_of_the_users_own(log: EventLog) -> None:
    with vime_otel.span("copy"):
        pass
    assert named(log) == [("copy", 100, 101)]


def test_span_lets_exceptions_through_and_closes(log: EventLog) -> None:
    with pytest.raises(KeyError), vime_otel.span("copy"):
        raise KeyError
    assert named(log) == [("copy", 100, 101)]


def test_span_is_one_shared_object_when_nothing_records() -> None:
    assert vime_otel.span("a") is vime_otel.span("b")


@pytest.mark.parametrize("fail_at", [100, 101])
def test_span_survives_a_clock_that_fails(faults: list[BaseException], fail_at: int) -> None:
    log = EventLog(faults.append, clock=counting(fail_at))
    done = []
    with log.span("copy"):
        done.append(True)
    assert done == [True]
    assert len(faults) == 1
    assert log.entries == []


def test_frames_are_numbered_once() -> None:
    log = EventLog(lambda error: None)
    assert log.frame_number("a") == log.frame_number("a") == 0
    assert log.frame_number("a", "layers.0.a") == 1
