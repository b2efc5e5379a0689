"""What the device did: time covered by kernels and copies, gaps, kernels by name, and the steps that launched them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

from .categories import EXCHANGES, category_of, is_collective
from .columns import Columns, Identity, Lane
from .intervals import Interval, gaps, length, union
from .nesting import Account
from .paths import Paths

GAPS_EXPLAINED = 256
"""The longest gaps whose overlapping host activity is looked for."""

_FIRST = itemgetter(0)
_GRAPH_LAUNCH = re.compile(r"(?:cuda|hip|cu)GraphLaunch")
WAITING = re.compile(r"(?:cuda|hip|cu)\w*(?:Synchronize|StreamWaitValue)\w*\Z")
"""Calls in which the host waits for the device."""


@dataclass
class Timeline:
    """Nanoseconds. `busy` is covered by kernels, copies and memsets of any stream, `exposed` by communication alone."""

    begin: int = 0
    end: int = 0
    busy: int = 0
    communication: int = 0
    exposed: int = 0

    @property
    def span(self) -> int:
        """From the first to the last."""
        return self.end - self.begin

    @property
    def idle(self) -> int:
        """What nothing covers."""
        return self.span - self.busy


@dataclass
class Usage:
    """How often something of one name ran, and how long: nanoseconds. `longest_at` is when the longest began."""

    count: int = 0
    total: int = 0
    shortest: int = 2**63
    longest: int = 0
    longest_at: int = 0

    def add(self, start: int, duration: int) -> None:
        """Count one."""
        self.count += 1
        self.total += duration
        if duration < self.shortest:
            self.shortest = duration
        if duration > self.longest or self.count == 1:
            self.longest, self.longest_at = duration, start

    def merge(self, other: Usage) -> None:
        """Count all of another."""
        if other.longest > self.longest or not self.count:
            self.longest, self.longest_at = other.longest, other.longest_at
        self.count += other.count
        self.total += other.total
        self.shortest = min(self.shortest, other.shortest)


@dataclass
class StreamUse:
    """One stream of a device."""

    device: Identity
    stream: Identity
    events: int
    busy: int
    communication: int


@dataclass
class Collective:
    """One collective operation of this rank: what it is called, with its group and size where the trace tells them."""

    label: str
    start: int
    end: int


@dataclass
class Device:
    """The device's part of a trace; empty where there was none."""

    timeline: Timeline = field(default_factory=Timeline)
    streams: list[StreamUse] = field(default_factory=list)
    gaps: list[Interval] = field(default_factory=list)
    """The GAPS_EXPLAINED longest, in order of time."""
    ended_by: list[int] = field(default_factory=list)
    """For each of them the correlation of what ran next, -1 where that has none."""
    gap_count: int = 0
    collectives: list[Collective] = field(default_factory=list)
    waited: int = 0
    """Nanoseconds in which any thread waited for the device in a synchronising call."""
    waited_busy: int = 0
    """The part of it in which the device was busy."""


def measure(columns: Columns) -> Device:
    """The device's time; which step each kernel belongs to comes later, when the launches are known."""
    device = Device()
    exchange = [category_of(name) in EXCHANGES for name in columns.names]
    everything: list[Interval] = []
    other: list[Interval] = []
    all_exchanges: list[Interval] = []
    lanes = {key: lane for key, lane in columns.streams.items() if len(lane)}
    for (pid, tid), lane in sorted(lanes.items(), key=lambda item: tuple(map(str, item[0]))):
        pieces = [(start, start + duration) for start, duration in zip(lane.starts, lane.durations, strict=True)]
        exchanges = [piece for piece, name in zip(pieces, lane.names, strict=True) if exchange[name]]
        all_exchanges += exchanges
        covered = union(pieces)
        device.streams.append(StreamUse(pid, tid, len(pieces), length(covered), length(union(exchanges))))
        everything += covered
        if exchanges:
            other += union(piece for piece, name in zip(pieces, lane.names, strict=True) if not exchange[name])
        else:
            other += covered
    if not lanes:
        return device
    busy = union(everything)
    busy_ns = length(busy)
    begin = min(min(lane.starts) for lane in lanes.values())
    end = max(max(map(int.__add__, lane.starts, lane.durations)) for lane in lanes.values())
    communication = length(union(all_exchanges))
    device.timeline = Timeline(begin, end, busy_ns, communication, busy_ns - length(union(other)))
    found = list(gaps(busy))
    device.gap_count = len(found)
    device.gaps = sorted(sorted(found, key=lambda gap: gap[0] - gap[1])[:GAPS_EXPLAINED])
    device.ended_by = _correlations_at([end for _, end in device.gaps], columns)
    device.collectives = sorted(_collectives(columns), key=lambda each: each.start)
    waiting = union(_waiting(columns))
    device.waited = length(waiting)
    if waiting:
        device.waited_busy = device.waited + busy_ns - length(union((*busy, *waiting)))
    return device


def _waiting(columns: Columns) -> Iterable[Interval]:
    waits = {number for number, name in enumerate(columns.names) if WAITING.match(name)}
    for thread in columns.threads.values():
        lane = thread.runtime
        if not waits.isdisjoint(lane.names):
            for start, duration, name in zip(lane.starts, lane.durations, lane.names, strict=True):
                if name in waits:
                    yield start, start + duration


def _correlations_at(times: Sequence[int], columns: Columns) -> list[int]:
    """For each time the correlation of a kernel or copy that begins there."""
    found = dict.fromkeys(times, -1)
    for lane in columns.streams.values():
        for start, correlation in zip(lane.starts, lane.correlations or (), strict=True):
            if start in found:
                found[start] = correlation
    return [found[time] for time in times]


def _collectives(columns: Columns) -> Iterable[Collective]:
    wanted = {number for number, name in enumerate(columns.names) if is_collective(name)}
    for lane in columns.streams.values():
        correlations = lane.correlations or ()
        for start, duration, name, correlation in zip(
            lane.starts, lane.durations, lane.names, correlations, strict=True
        ):
            if name in wanted:
                told = columns.collectives.get(correlation)
                label = f"{told[0]} of group {told[1]}, {told[2]} elements" if told else columns.names[name]
                yield Collective(label, start, start + duration)


@dataclass
class Launched:
    """What the kernels came to once their launches were found."""

    kernels: list[dict[int, Usage]]
    """For each account, by name."""
    spans: list[Timeline]
    """For each account, of the kernels that it launched."""
    unmatched: int = 0
    graph_kernels: int = 0
    graph_busy: int = 0
    graph_launches: Usage = field(default_factory=Usage)
    runtime: dict[int, Usage] = field(default_factory=dict)
    """Calls of the device's runtime, by name."""


def attribute(
    columns: Columns,
    launches: dict[int, tuple[int, int]],
    accounts: Sequence[Account],
    paths: Paths,
) -> Launched:
    """Put each kernel under the stack of the operators that launched it, in the account of the step in which they did.

    A kernel without a known launch stands right under its device, in the account of the time before the first step.
    """
    launched = Launched([{} for _ in accounts], [])
    pieces: list[list[Interval]] = [[] for _ in accounts]
    exchanges: list[list[Interval]] = [[] for _ in accounts]
    graphs = _runtime(columns, launched)
    several = len({pid for pid, _ in columns.streams}) > 1
    for (pid, _), lane in columns.streams.items():
        _attribute_lane(
            columns,
            lane,
            _Mirror(paths, f"device {pid}" if several else "device"),
            launches,
            accounts,
            launched,
            pieces,
            exchanges,
            graphs,
        )
    for of_step, exchanged in zip(pieces, exchanges, strict=True):
        covered = union(of_step)
        if not covered:
            launched.spans.append(Timeline())
            continue
        begin, end = covered[0][0], covered[-1][1]
        launched.spans.append(Timeline(begin, end, length(covered), length(union(exchanged))))
    return launched


def _attribute_lane(
    columns: Columns,
    lane: Lane,
    mirror: _Mirror,
    launches: dict[int, tuple[int, int]],
    accounts: Sequence[Account],
    launched: Launched,
    pieces: list[list[Interval]],
    exchanges: list[list[Interval]],
    graphs: frozenset[int],
) -> None:
    exchange = [category_of(name) in EXCHANGES for name in columns.names]
    nowhere = (0, -1)
    for start, duration, name, correlation in zip(
        lane.starts, lane.durations, lane.names, lane.correlations or (), strict=True
    ):
        number, call = launches.get(correlation, nowhere)
        if call < 0:
            launched.unmatched += 1
        account = accounts[number]
        path = mirror.kernel(call, name)
        entry = account.get(path)
        if entry is None:
            account[path] = [duration, 1]
        else:
            entry[0] += duration
            entry[1] += 1
        usage = launched.kernels[number].get(name)
        if usage is None:
            usage = launched.kernels[number][name] = Usage()
        usage.add(start, duration)
        pieces[number].append((start, start + duration))
        if exchange[name]:
            exchanges[number].append((start, start + duration))
        if correlation in graphs:
            launched.graph_kernels += 1
            launched.graph_busy += duration


def _runtime(columns: Columns, launched: Launched) -> frozenset[int]:
    """Count the runtime's calls; the answer is the correlations of graph launches."""
    graph_names = {number for number, name in enumerate(columns.names) if _GRAPH_LAUNCH.match(name)}
    graphs: set[int] = set()
    for thread in columns.threads.values():
        lane = thread.runtime
        for name, usage in tally(lane).items():
            launched.runtime.setdefault(name, Usage()).merge(usage)
            if name in graph_names:
                launched.graph_launches.merge(usage)
        if not graph_names.isdisjoint(lane.names):
            correlations = lane.correlations or ()
            graphs |= {c for name, c in zip(lane.names, correlations, strict=True) if name in graph_names}
    return frozenset(graphs - {-1})


def tally(lane: Lane) -> dict[int, Usage]:
    """The use of each name on a lane."""
    by_name: dict[int, list[tuple[int, int]]] = {}
    for start, duration, name in zip(lane.starts, lane.durations, lane.names, strict=True):
        by_name.setdefault(name, []).append((duration, start))
    return {
        name: Usage(len(events), sum(map(_FIRST, events)), min(events)[0], *max(events))
        for name, events in by_name.items()
    }


class _Mirror:
    """The stacks of a host thread, again under a device."""

    def __init__(self, paths: Paths, device: str) -> None:
        self._paths = paths
        self.root = paths.root(device)
        self._known: dict[int, int] = {-1: self.root}

    def kernel(self, call: int, name: int) -> int:
        """The path of a kernel under what surrounded the call that launched it; -1 where that is not known."""
        around = self._paths.parents[call] if call >= 0 else -1
        path = self._paths.child(self._of(around), name)
        self._paths.on_device.add(path)
        return path

    def _of(self, path: int) -> int:
        known = self._known.get(path)
        if known is None:
            above = self._paths.parents[path]
            # The thread's own frame gives way to the device's.
            known = self.root if above < 0 else self._paths.child(self._of(above), self._paths.frames[path])
            self._paths.implied.add(known)
            self._known[path] = known
        return known
