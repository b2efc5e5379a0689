"""Folding the spans of one trace by their parents: stacks, self time, and what does not fit. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from vime_otel.data.folded import escape_frame

UNKNOWN_PARENT = "(parent unknown)"
"""The frame above a span whose parent did not come."""

OTHER = "(other)"
"""The stack of spans beyond MOST_STACKS."""

DEEPER = "(deeper)"
"""The frame in place of all below MOST_FRAMES."""

MOST_STACKS = 20_000
MOST_FRAMES = 100
_MOST_NS = 2**62
MOST_NAME = 200
"""Characters of a name; the rest is cut off."""


class TraceSpan(NamedTuple):
    """One span; times in Unix nanoseconds. `remote`: its parent is another service's, so it may well not come."""

    parent: bytes
    name: str
    start: int
    end: int
    remote: bool


Trace = Mapping[bytes, TraceSpan]
"""Span id → span."""


@dataclass
class TraceSums:
    """Sums of folded traces. Of each stack self time in nanoseconds, and calls."""

    self_ns: dict[str, int] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)
    traces: int = 0
    orphans: int = 0
    """Spans whose parent did not come."""
    overlapping: int = 0
    """Spans whose children run at the same time, or beyond their end."""
    overlap_ns: int = 0
    """By how much all these children exceed the time that they cover of their parents."""
    merged: int = 0
    """Spans that went to OTHER."""

    def copy(self) -> TraceSums:
        """Sums of their own."""
        return TraceSums(
            dict(self.self_ns), dict(self.calls), self.traces, self.orphans, self.overlapping, self.overlap_ns,
            self.merged,
        )  # fmt: skip

    def add_trace(self, trace: Trace) -> None:
        """Fold a trace: each span under its parent's stack, with its time less what its children cover of it."""
        self.traces += 1
        children: dict[bytes, list[bytes]] = {}
        todo: list[tuple[bytes, str, int]] = []
        for span_id, span in trace.items():
            if span.parent in trace and span.parent != span_id:
                children.setdefault(span.parent, []).append(span_id)
            else:
                todo.append(self._root(span_id, span, own_parent=span.parent == span_id))
        left = len(trace) - self._fold_below(todo, trace, children)
        if left:  # they are each other's parents, all around
            self._fold_circles(trace, children)

    def _root(self, span_id: bytes, span: TraceSpan, own_parent: bool) -> tuple[bytes, str, int]:
        if not span.parent or (span.remote and not own_parent):
            return span_id, "", 0
        self.orphans += 1
        return span_id, UNKNOWN_PARENT, 1

    def _fold_below(self, todo: list[tuple[bytes, str, int]], trace: Trace, children: dict[bytes, list[bytes]]) -> int:
        """Fold spans (id, the stack above, its frames) and all below them; returns how many there were."""
        count = 0
        while todo:
            span_id, above, depth = todo.pop()
            count += 1
            span = trace[span_id]
            below = children.pop(span_id, ())
            stack, depth = _below(above, span.name, depth)
            self._add(stack, span, [trace[child] for child in below])
            todo.extend((child, stack, depth) for child in below)
        return count

    def _fold_circles(self, trace: Trace, children: dict[bytes, list[bytes]]) -> None:
        """Cut each circle open at one of its spans: that one is an orphan."""
        while children:
            cut = _in_circle(next(iter(children)), trace)
            children[trace[cut].parent].remove(cut)
            self.orphans += 1
            self._fold_below([(cut, UNKNOWN_PARENT, 1)], trace, children)

    def _add(self, stack: str, span: TraceSpan, children: list[TraceSpan]) -> None:
        own_ns = span.end - span.start
        if children:
            covered = _covered_ns(span, children)
            own_ns -= covered
            excess = sum(child.end - child.start for child in children) - covered
            if excess:
                self.overlapping += 1
                self.overlap_ns = min(self.overlap_ns + excess, _MOST_NS)
        if stack not in self.calls and len(self.calls) >= MOST_STACKS:
            stack = OTHER
            self.merged += 1
        self.self_ns[stack] = min(self.self_ns.get(stack, 0) + own_ns, _MOST_NS)
        self.calls[stack] = self.calls.get(stack, 0) + 1


def frame_of(name: str) -> str:
    """A span's name as a frame of a stack."""
    return escape_frame(name[:MOST_NAME] or "(no name)")


def _below(above: str, name: str, depth: int) -> tuple[str, int]:
    """The stack of a span, and its frames."""
    if depth < MOST_FRAMES:
        return (f"{above};{name}" if above else name), depth + 1
    return (above if depth > MOST_FRAMES else f"{above};{DEEPER}"), MOST_FRAMES + 1


def _in_circle(span_id: bytes, trace: Trace) -> bytes:
    """A span of the circle that is reached from here by going from parent to parent."""
    passed: set[bytes] = set()
    while span_id not in passed:
        passed.add(span_id)
        span_id = trace[span_id].parent
    return span_id


def _covered_ns(span: TraceSpan, children: Iterable[TraceSpan]) -> int:
    """How much of the span its children cover, each moment once."""
    covered, until = 0, span.start
    for child in sorted(children, key=lambda child: child.start):
        begin, end = max(child.start, until), min(child.end, span.end)
        if end > begin:
            covered += end - begin
            until = end
    return covered
