"""The hot path: a flat log of integers into which every recorded call writes three.

`data.spans` describes the log's format and rebuilds trees from it, later and elsewhere.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from threading import get_ident
from time import perf_counter_ns
from types import TracebackType
from typing import Any, Protocol

from vime_otel.data.spans import Frame

_NOTHING = contextlib.nullcontext()
_current: EventLog | None = None


class _Span(Protocol):
    def __enter__(self) -> Any: ...
    def __exit__(self, *exc: Any) -> Any: ...


class EventLog:
    """The log of one rank's window, written by the thread that made it.

    `sync` waits for the device and is called before every clock reading; None where there is
    nothing to wait for. `mark` notes a moment on the device; a span then leaves two marks in
    `marks`, besides its times on the host. `on_fault` is called with any error of the recording
    itself: it must take the wrappers away, so that the recorded calls go on without it.
    """

    def __init__(
        self,
        on_fault: Callable[[BaseException], None],
        sync: Callable[[], None] | None = None,
        clock: Callable[[], int] = perf_counter_ns,
        mark: Callable[[], Any] | None = None,
    ):
        self.entries: list[int] = []
        self.marks: list[Any] = []
        self.frames: list[Frame] = []
        self.on_fault = on_fault
        self.thread = get_ident()
        self.sync = sync
        self.clock = clock
        self.mark = mark
        self._numbers: dict[Frame, int] = {}

    def frame_number(self, name: str, module: str = "") -> int:
        """The number that stands for this frame in the log."""
        frame = Frame(name, module)
        number = self._numbers.get(frame)
        if number is None:
            number = self._numbers[frame] = len(self.frames)
            self.frames.append(frame)
        return number

    def cut(self, entries: int, marks: int) -> None:
        """Forget what was written since the log was so long."""
        del self.entries[entries:], self.marks[marks:]

    def timed(self, function: Callable[..., Any], name: str, module: str = "") -> Callable[..., Any]:
        """`function`, recorded: same arguments, result and exceptions, one span a call.

        Calls from other threads than the log's pass unrecorded: they have no place in its stack.
        """
        frame = self.frame_number(name, module)
        if self.mark is not None:
            return self._timed_on_device(function, frame)
        thread, extend, on_fault = self.thread, self.entries.extend, self.on_fault
        clock = self.clock if self.sync is None else _synchronised(self.clock, self.sync)

        def recorded(*args: Any, **kwargs: Any) -> Any:
            if get_ident() != thread:
                return function(*args, **kwargs)
            try:
                start = clock()
            except Exception as error:  # noqa: BLE001 - the call must go on whatever fails here
                on_fault(error)
                return function(*args, **kwargs)
            try:
                return function(*args, **kwargs)
            finally:
                try:
                    extend((frame, start, clock()))
                except Exception as error:  # noqa: BLE001
                    on_fault(error)

        return recorded

    def _timed_on_device(self, function: Callable[..., Any], frame: int) -> Callable[..., Any]:
        thread = self.thread

        def recorded(*args: Any, **kwargs: Any) -> Any:
            if get_ident() != thread:
                return function(*args, **kwargs)
            with _OpenSpan(self, frame):
                return function(*args, **kwargs)

        return recorded

    def span(self, name: str) -> _Span:
        """A context manager that records its body as one span."""
        if get_ident() != self.thread:
            return _NOTHING
        return _OpenSpan(self, self.frame_number(name))


def _synchronised(clock: Callable[[], int], sync: Callable[[], None]) -> Callable[[], int]:
    def synchronised_clock() -> int:
        sync()
        return clock()

    return synchronised_clock


class _OpenSpan:
    __slots__ = ("begin", "frame", "log", "start")

    def __init__(self, log: EventLog, frame: int):
        self.log = log
        self.frame = frame
        self.start: int | None = None
        self.begin: Any = None

    def __enter__(self) -> None:
        log = self.log
        try:
            if log.sync is not None:
                log.sync()
            start = log.clock()
            if log.mark is not None:
                self.begin = log.mark()
            self.start = start
        except Exception as error:  # noqa: BLE001 - the body must run whatever fails here
            log.on_fault(error)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        log = self.log
        if self.start is None:
            return
        try:
            if log.sync is not None:
                log.sync()
            marks = (self.begin, log.mark()) if log.mark is not None else ()
            log.entries.extend((self.frame, self.start, log.clock()))
            log.marks.extend(marks)
        except Exception as fault:  # noqa: BLE001 - as above
            log.on_fault(fault)


def activate(log: EventLog | None) -> None:
    """Make `log` the one that `span` writes to; None for no recording."""
    global _current
    _current = log


def span(name: str) -> _Span:
    """`with vime_otel.span("copy"): …` records a phase of your own inside a step.

    Free when nothing records, and on threads other than the one that runs the steps.
    """
    log = _current
    return _NOTHING if log is None else log.span(name)
