"""One trace file, reduced to what the report and the flame graphs need of it."""

from __future__ import annotations

import gc
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .categories import is_collective
from .columns import Columns, Identity
from .device import Collective, Device, Launched, Timeline, Usage, attribute, measure
from .gaps import Gap, explain
from .intervals import length, union
from .loading import read
from .names import TraceName, parse_name
from .nesting import Account, WalkContext, Walked, walk_thread
from .paths import Paths, self_times
from .steps import FROM_NOTHING, Found, Step, find_steps

_KINETO_NAME = re.compile(r"\Athread -?\d+ \((.*)\)\Z")

_LAST_BASE_NS = 2**62


@dataclass
class ThreadUse:
    """One thread: `traced` is what its outermost events take, `outside` the part of it before the first step."""

    label: str
    pid: Identity
    tid: Identity
    events: int
    traced: int
    outside: int
    launches: int


@dataclass
class HostUse:
    """An operator, a Python function or a call on the host: nanoseconds."""

    calls: int = 0
    inclusive: int = 0
    own: int = 0


@dataclass
class TraceSummary:
    """What is known of one trace. Times in nanoseconds after `origin_us`, a Unix time unless `unix_base_ns` is set.

    `accounts` are those of `nesting`, with the kernels under their devices; `stacks` are the texts of their paths.
    """

    path: str
    name: TraceName
    header: dict[str, Any]
    problems: list[str]
    """What is missing, and why."""
    events: int
    text_bytes: int
    cut: bool = False
    """Whether nobody knows how much is missing: the device may only seem idle."""
    oddities: list[str] = field(default_factory=list)
    """What is out of the format, and how it was taken."""
    process_name: str = ""
    pid: int | None = None
    origin_us: int = 0
    begin: int = 0
    end: int = 0
    device: Device = field(default_factory=Device)
    host: Timeline = field(default_factory=Timeline)
    """The time that any thread's outermost events cover; its communication is that of CPU-only traces."""
    threads: list[ThreadUse] = field(default_factory=list)
    step_source: str = FROM_NOTHING
    steps: list[Step] = field(default_factory=list)
    kernels: dict[str, dict[str, Usage]] = field(default_factory=dict)
    """By step kind (`outside` for those of no step), by name."""
    operators: dict[str, dict[str, HostUse]] = field(default_factory=dict)
    """The host's, likewise."""
    gaps: list[Gap] = field(default_factory=list)
    gap_count: int = 0
    graph_launches: Usage = field(default_factory=Usage)
    graph_kernels: int = 0
    graph_busy: int = 0
    runtime: dict[str, Usage] = field(default_factory=dict)
    unmatched_kernels: int = 0
    collectives: list[Collective] = field(default_factory=list)
    accounts: list[Account] = field(default_factory=list)
    stacks: list[str] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)

    @property
    def has_device(self) -> bool:
        """Whether kernels or copies of a device were traced."""
        return bool(self.device.streams)

    @property
    def timeline(self) -> Timeline:
        """The device's, or the host's where there is none."""
        return self.device.timeline if self.has_device else self.host

    @property
    def unix_base_ns(self) -> int:
        """The Unix time, in nanoseconds, that the trace's clock starts from."""
        base = self.header.get("baseTimeNanoseconds")
        return base if isinstance(base, int) and 0 <= base < _LAST_BASE_NS else 0

    def unix_ns(self, time: int) -> int:
        """A time of this trace on the wall clock."""
        return self.unix_base_ns + self.origin_us * 1000 + time

    def seconds(self, time: int) -> float:
        """A time of this trace in seconds after its begin: how reports name it."""
        return (time - self.begin) / 1e9


OUTSIDE = "outside"
"""Stands where a step kind would, for what belongs to no step."""


def summarize(path: Path, advance: Callable[[int], None] = lambda _: None, helpers: int = 0) -> TraceSummary:
    """Read and reduce one file; `helpers` processes decode it if it is large. Raises OSError where it can't be read."""
    reader, columns = read(path, advance, helpers)
    summary = TraceSummary(
        str(path),
        parse_name(path.name),
        reader.header,
        list(reader.problems),
        columns.events,
        reader.text_bytes,
        not reader.ended,
    )
    if columns.has_events:
        with _without_collection():
            _reduce(summary, columns)
    elif columns.passed_over:
        summary.problems += _told(columns.passed_over)
    elif not summary.problems:
        summary.problems.append("the trace has no events with a duration")
    return summary


def _told(oddities: Counter[str]) -> list[str]:
    return [f"{count} {what}" for what, count in sorted(oddities.items())]


@contextmanager
def _without_collection() -> Iterator[None]:
    """No garbage collection meanwhile: millions of small values are made, and no cycles."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _reduce(summary: TraceSummary, columns: Columns) -> None:
    summary.origin_us = columns.origin_us
    _name_process(summary, columns)
    oddities = Counter(columns.passed_over)
    device = summary.device = measure(columns)
    summary.collectives, summary.gap_count = device.collectives, device.gap_count
    found = find_steps(columns)
    summary.step_source, summary.steps = found.source, found.steps
    paths = Paths(columns.names)
    collective_names = frozenset(n for n, name in enumerate(columns.names) if is_collective(name))
    watched = frozenset() if summary.has_device else collective_names
    annotations = frozenset(columns.annotations if columns.has_python else ())
    context = WalkContext(paths, found.cuts, columns.coarse, device.gaps, watched, annotations)
    walks = _walk(summary, columns, context, oddities)
    accounts = _merged(walks, len(found.cuts) + 1)
    launched = attribute(columns, context.launches, accounts, paths)
    for account in accounts:
        paths.fill(account)
    _finish_steps(summary, found, columns, walks, launched)
    _host_timeline(summary, columns, walks)
    summary.gaps = explain(device, summary.steps, walks, context)
    _by_kind(summary, found, accounts, launched, columns, paths)
    summary.accounts, summary.stacks, summary.parents = accounts, paths.texts(), paths.parents
    summary.graph_launches, summary.graph_kernels = launched.graph_launches, launched.graph_kernels
    summary.graph_busy, summary.unmatched_kernels = launched.graph_busy, launched.unmatched
    summary.runtime = {columns.names[name]: usage for name, usage in launched.runtime.items()}
    summary.oddities = _told(oddities)


def _name_process(summary: TraceSummary, columns: Columns) -> None:
    """The process is that of the steps, or of the thread with most events."""
    busiest = max(columns.threads.items(), key=lambda item: len(item[1].operators), default=None)
    annotated = columns.steps or columns.profiler_steps
    pid = annotated[0].thread[0] if annotated else busiest[0][0] if busiest else None
    summary.pid = pid if isinstance(pid, int) else None
    summary.process_name = columns.process_names.get(pid, "")


def _walk(summary: TraceSummary, columns: Columns, context: WalkContext, oddities: Counter[str]) -> list[Walked]:
    walks = []
    for (pid, tid), label in _thread_labels(columns).items():
        for walked in walk_thread(columns.threads[pid, tid], label, context, oddities):
            walks.append(walked)
            summary.threads.append(
                ThreadUse(
                    context.paths.name(walked.root),
                    pid,
                    tid,
                    sum(entry[1] for account in walked.accounts for entry in account.values()),
                    length(walked.top),
                    _top_time(walked.accounts[0], walked.root, context.paths) if context.cuts else 0,
                    walked.launches,
                )
            )
    return walks


def _top_time(account: Account, root: int, paths: Paths) -> int:
    return sum(value for path, (value, _) in account.items() if paths.parents[path] == root)


def _thread_labels(columns: Columns) -> dict[tuple[Identity, Identity], str]:
    """What each thread is called: its name, the same on every rank, and a number where several have it.

    The thread of the steps comes first, then those with most events.
    """
    labels: dict[tuple[Identity, Identity], str] = {}
    taken: Counter[str] = Counter()
    annotated = {annotation.thread for annotation in (*columns.steps, *columns.profiler_steps)}

    def order(key: tuple[Identity, Identity]) -> tuple[bool, int, str]:
        return key not in annotated, -len(columns.threads[key].operators), str(key)

    for key in sorted(columns.threads, key=order):
        name = _KINETO_NAME.sub(r"\1", columns.thread_names.get(key, ""))
        name = name or columns.process_names.get(key[0], "")
        label = f"thread {name}".strip()
        taken[label] += 1
        labels[key] = label if taken[label] == 1 else f"{label} #{taken[label]}"
    return labels


def _merged(walks: Sequence[Walked], count: int) -> list[Account]:
    """The accounts of all threads in one: their paths differ from the root on."""
    accounts: list[Account] = [{} for _ in range(count)]
    for walked in walks:
        for account, part in zip(accounts, walked.accounts, strict=True):
            account.update(part)
        walked.accounts = []
    return accounts


def _finish_steps(
    summary: TraceSummary, found: Found, columns: Columns, walks: Sequence[Walked], launched: Launched
) -> None:
    annotations = columns.steps or columns.profiler_steps
    own = {annotation.thread for annotation in annotations}
    ends = [0] * (len(found.cuts) + 1)
    for walked, use in zip(walks, summary.threads, strict=True):
        if not own or (use.pid, use.tid) in own:
            ends = [max(pair) for pair in zip(ends, walked.ends, strict=True)]
    tops = [walked.top for walked in walks if walked.top]
    on_device = [summary.device.timeline] if summary.has_device else []
    summary.begin = min([*(top[0][0] for top in tops), *(timeline.begin for timeline in on_device)], default=0)
    summary.end = max([*(top[-1][1] for top in tops), *(timeline.end for timeline in on_device)], default=0)
    for step in summary.steps:
        if found.source == FROM_NOTHING:
            step.start, step.annotated = summary.begin, summary.end - summary.begin
        step.duration = max(ends[step.account] - step.start, step.annotated)
        if found.source == FROM_NOTHING:
            step.duration = step.annotated
        kernels = launched.spans[step.account]
        step.device_span, step.device_busy = kernels.span, kernels.busy
        step.device_communication = kernels.communication


def _host_timeline(summary: TraceSummary, columns: Columns, walks: Sequence[Walked]) -> None:
    covered = union(piece for walked in walks for piece in walked.top)
    exchanged = sorted(piece for walked in walks for piece in walked.watched)
    communication = length(union((begin, end) for begin, end, _ in exchanged))
    # Nothing else runs on a thread while it waits in a collective, but other threads may.
    summary.host = Timeline(summary.begin, summary.end, length(covered), communication, communication)
    if not summary.has_device:
        summary.collectives = [Collective(columns.names[name], begin, end) for begin, end, name in exchanged]


def _by_kind(
    summary: TraceSummary,
    found: Found,
    accounts: Sequence[Account],
    launched: Launched,
    columns: Columns,
    paths: Paths,
) -> None:
    kinds = {step.account: step.kind for step in found.steps}
    for number, account in enumerate(accounts):
        kind = kinds.get(number, OUTSIDE)
        kind = OUTSIDE if kind == "empty" else kind
        kernels = summary.kernels.setdefault(kind, {})
        for name, usage in launched.kernels[number].items():
            kernels.setdefault(columns.names[name], Usage()).merge(usage)
        operators = summary.operators.setdefault(kind, {})
        own = self_times(account, paths.parents)
        for path, (inclusive, calls) in account.items():
            if path in paths.implied or path in paths.on_device:
                continue
            use = operators.setdefault(paths.name(path), HostUse())
            use.calls += calls
            use.inclusive += inclusive
            use.own += own[path]
    for table in (summary.kernels, summary.operators):
        for kind in [kind for kind, content in table.items() if not content]:
            del table[kind]
