"""The events of one trace as columns of integers, by thread and by device stream: what is kept of a file.

Times are nanoseconds after `Columns.origin_us`. A thread's operators take 20 bytes each, launches and kernels 28.
"""

from __future__ import annotations

import math
import re
from array import array
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .events import Args, Event

DEVICE_CATEGORIES = frozenset({"kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset"})
RUNTIME_CATEGORIES = frozenset(
    {"cuda_runtime", "cuda_driver", "hip_runtime", "xpu_runtime", "privateuse1_runtime", "runtime"}
)
# Beside what threads and streams do: the profiler's own rows, and the annotations' and waits' shadows on the device.
_PASSED_OVER = frozenset({"trace", "gpu_user_annotation", "cuda_sync", "overhead", "ac2g", "fwdbwd"})

_ANNOTATION = "user_annotation"
_TIMED_PHASES = ("X", "B", "E")
_OTHER_PHASES = ("M", "B", "E")
_COARSE_FROM_US = 2.0**50
"""From here on a double has no room for nanoseconds after the point."""

_STEP = re.compile(
    r"execute_(?:\d+_)?context_(\d{1,9})\((?:sq)?(\d{1,9})(?!\d)[^)]*\)_generation_(\d{1,9})\((?:sq)?(\d{1,9})(?!\d)[^)]*\)\Z"
)
_PROFILER_STEP = re.compile(r"ProfilerStep\s*#\s*\d+\Z")
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")

VLLM_STEP_FRAME = "execute_model"
PROFILER_STEP_FRAME = "ProfilerStep"

ANY_NAME = -1
"""Of an end event that names none: it ends the innermost."""

Identity = int | float | str | None


@dataclass(frozen=True)
class Annotation:
    """A step's annotation: begin, end, thread, and of vLLM's the requests and tokens that it names."""

    start: int
    end: int
    thread: tuple[Identity, Identity]
    from_vllm: bool = False
    context_requests: int = 0
    context_tokens: int = 0
    generation_requests: int = 0
    generation_tokens: int = 0


@dataclass
class Lane:
    """Events of a thread or of a stream in the order of the file; `correlations` where that kind of event has them."""

    starts: array[int] = field(default_factory=lambda: array("q"))
    durations: array[int] = field(default_factory=lambda: array("q"))
    names: array[int] = field(default_factory=lambda: array("i"))
    correlations: array[int] | None = None

    def __len__(self) -> int:
        return len(self.starts)

    def extend(self, other: Lane, number: Callable[[int], int]) -> None:
        """Add another lane's events; `number` makes of its names these."""
        self.starts.extend(other.starts)
        self.durations.extend(other.durations)
        self.names.extend(map(number, other.names))
        if self.correlations is not None and other.correlations is not None:
            self.correlations.extend(other.correlations)


@dataclass
class Thread:
    """One thread: operators and annotations, calls of the device's runtime, and begin and end events as they came."""

    operators: Lane = field(default_factory=Lane)
    runtime: Lane = field(default_factory=lambda: Lane(correlations=array("q")))
    marks: list[tuple[int, bool, int]] = field(default_factory=list)
    """(time, whether it is a begin, name) of B and E events; an E without a name has ANY_NAME."""


@dataclass
class Columns:
    """One trace. `names` are frames: annotations of steps lose their numbers, Python's objects their addresses."""

    origin_us: int = 0
    coarse: bool = False
    """Whether the trace's clock is no finer than a microsecond."""
    names: list[str] = field(default_factory=list)
    threads: dict[tuple[Identity, Identity], Thread] = field(default_factory=dict)
    streams: dict[tuple[Identity, Identity], Lane] = field(default_factory=dict)
    steps: list[Annotation] = field(default_factory=list)
    profiler_steps: list[Annotation] = field(default_factory=list)
    process_names: dict[Identity, str] = field(default_factory=dict)
    thread_names: dict[tuple[Identity, Identity], str] = field(default_factory=dict)
    annotations: set[int] = field(default_factory=set)
    """Names of user annotations."""
    has_python: bool = False
    """Whether Python calls were traced."""
    collectives: dict[int, tuple[str, str, int]] = field(default_factory=dict)
    """Correlation → (operation, process group, elements) of collective kernels that tell."""
    events: int = 0
    passed_over: Counter[str] = field(default_factory=Counter)
    """Events that are out of the format, by what is wrong with them."""

    @property
    def has_events(self) -> bool:
        """Whether anything of a thread or of a device was kept."""
        threads = self.threads.values()
        return any(map(len, self.streams.values())) or any(
            len(thread.operators) or len(thread.runtime) or thread.marks for thread in threads
        )


_Add = Callable[[int], None]
_Sink = tuple[_Add, _Add, _Add, _Add | None, bool]
"""How starts, durations, names and correlations are added to a lane, and whether they are annotations."""

_UNKNOWN: Any = object()


class ColumnsBuilder:
    """Reduces blocks of events to Columns."""

    def __init__(self, origin: tuple[int, bool] | None = None) -> None:
        """`origin` is `origin_us` and `coarse` of another part of the trace; without it the first event decides."""
        self.columns = Columns(*origin) if origin else Columns()
        self._name_ids: dict[str, int] = {}
        self._frame_ids: dict[str, int] = {}
        self._step_frames: set[int] = set()
        self._sinks: dict[tuple[Identity, Identity, str], _Sink | None] = {}
        self.has_origin = origin is not None

    def add(self, events: list[Event]) -> None:
        """Add a block."""
        if not self.has_origin:
            self._set_origin(events)
        columns, find_sink, find_name = self.columns, self._sinks.get, self._name_ids.get
        origin = columns.origin_us
        for event in events:
            if event.ph != "X":
                if event.ph in _OTHER_PHASES:
                    self._other(event)
                continue
            key = (event.pid, event.tid, event.cat)
            sink = find_sink(key, _UNKNOWN)
            if sink is _UNKNOWN:
                sink = self._new_sink(key)
            if sink is None:
                continue
            ts, duration = event.ts, event.dur
            if ts is None or duration is None or duration < 0:
                columns.passed_over["complete events without a time or a duration"] += 1
                continue
            name = find_name(event.name)
            if name is None:
                name = self._intern(event.name)
            add_start, add_duration, add_name, add_correlation, annotation = sink
            add_start(round((ts - origin) * 1000))
            add_duration(round(duration * 1000))
            add_name(name)
            if add_correlation is not None:
                args = event.args
                if args is not None and args.collective is None and isinstance(args.correlation, int):
                    add_correlation(args.correlation)
                else:
                    add_correlation(self._correlation(args))
            elif annotation:
                columns.annotations.add(name)
                if name in self._step_frames:
                    self._annotate(event, key[:2])
        columns.events += len(events)

    def merge(self, part: Columns) -> None:
        """Add what another builder with the same origin made of later blocks."""
        columns = self.columns
        number = [self._intern(name) for name in part.names].__getitem__
        for key, thread in part.threads.items():
            mine = columns.threads.setdefault(key, Thread())
            mine.operators.extend(thread.operators, number)
            mine.runtime.extend(thread.runtime, number)
            mine.marks += [(at, begins, name if name < 0 else number(name)) for at, begins, name in thread.marks]
        for key, lane in part.streams.items():
            columns.streams.setdefault(key, Lane(correlations=array("q"))).extend(lane, number)
        columns.steps += part.steps
        columns.profiler_steps += part.profiler_steps
        columns.process_names |= part.process_names
        columns.thread_names |= part.thread_names
        columns.annotations |= {number(name) for name in part.annotations}
        columns.has_python |= part.has_python
        columns.collectives |= part.collectives
        columns.events += part.events
        columns.passed_over += part.passed_over

    def _set_origin(self, events: list[Event]) -> None:
        for event in events:
            if event.ph in _TIMED_PHASES and event.ts is not None:
                self.columns.origin_us = math.floor(event.ts)
                self.columns.coarse = isinstance(event.ts, int) or event.ts > _COARSE_FROM_US
                self.has_origin = True
                return

    def _new_sink(self, key: tuple[Identity, Identity, str]) -> _Sink | None:
        pid, tid, category = key
        category = category.lower()
        sink: _Sink | None = None
        if category not in _PASSED_OVER:
            lane = self._lane(pid, tid, category)
            correlations = lane.correlations
            sink = (
                lane.starts.append,
                lane.durations.append,
                lane.names.append,
                None if correlations is None else correlations.append,
                category == _ANNOTATION,
            )
        self._sinks[key] = sink
        return sink

    def _lane(self, pid: Identity, tid: Identity, category: str) -> Lane:
        if category in DEVICE_CATEGORIES:
            return self.columns.streams.setdefault((pid, tid), Lane(correlations=array("q")))
        self.columns.has_python |= category == "python_function"
        thread = self.columns.threads.setdefault((pid, tid), Thread())
        return thread.runtime if category in RUNTIME_CATEGORIES else thread.operators

    def _intern(self, name: str) -> int:
        if name in self._name_ids:
            return self._name_ids[name]
        frame = VLLM_STEP_FRAME if _STEP.match(name) else PROFILER_STEP_FRAME if _PROFILER_STEP.match(name) else name
        frame = _ADDRESS.sub("", frame)
        frame_id = self._frame_ids.setdefault(frame, len(self.columns.names))
        if frame_id == len(self.columns.names):
            self.columns.names.append(frame)
        if frame != name and frame in (VLLM_STEP_FRAME, PROFILER_STEP_FRAME):
            self._step_frames.add(frame_id)
        self._name_ids[name] = frame_id
        return frame_id

    def _annotate(self, event: Event, thread: tuple[Identity, Identity]) -> None:
        start = round(((event.ts or 0) - self.columns.origin_us) * 1000)
        end = start + round((event.dur or 0) * 1000)
        if found := _STEP.match(event.name):
            self.columns.steps.append(Annotation(start, end, thread, True, *map(int, found.groups())))
        elif _PROFILER_STEP.match(event.name):
            self.columns.profiler_steps.append(Annotation(start, end, thread))

    def _correlation(self, args: Args | None) -> int:
        if args is None or args.correlation is None:
            return -1
        try:
            correlation = int(args.correlation)
        except ValueError:
            return -1
        if args.collective is not None:
            elements = args.elements if isinstance(args.elements, int) else 0
            self.columns.collectives[correlation] = (str(args.collective), str(args.group), elements)
        return correlation if abs(correlation) < 2**62 else -1

    def _other(self, event: Event) -> None:
        if event.ph == "M":
            if event.args is None or not isinstance(event.args.name, str):
                return
            if event.name == "process_name":
                self.columns.process_names[event.pid] = event.args.name
            elif event.name == "thread_name":
                self.columns.thread_names[event.pid, event.tid] = event.args.name
            return
        if event.ts is None:
            self.columns.passed_over["begin or end events without a time"] += 1
            return
        thread = self.columns.threads.setdefault((event.pid, event.tid), Thread())
        name = ANY_NAME if event.ph == "E" and not event.name else self._intern(event.name)
        thread.marks.append((round((event.ts - self.columns.origin_us) * 1000), event.ph == "B", name))
