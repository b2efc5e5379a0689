"""Spans, and the trees that are rebuilt from a rank's flat event log.

The log is a flat sequence of integers, three a finished span: frame number, start and end in
`perf_counter_ns` ticks. A span is written when it ends, so children stand before their parent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .folded import escape_frame

ENTRY = 3
"""Integers a log entry."""


@dataclass(frozen=True)
class Frame:
    """What a frame number of a log stands for: the name, and the module's path where it is one."""

    name: str
    module: str = ""


@dataclass(slots=True)
class Span:
    """One span, times in Unix nanoseconds. `stack` ends in its frame; the ids are 8 bytes."""

    name: str
    module: str
    stack: str
    start_unix_nano: int
    end_unix_nano: int
    span_id: bytes = b""
    parent_span_id: bytes = b""

    @property
    def duration_ns(self) -> int:
        """Its length."""
        return self.end_unix_nano - self.start_unix_nano


@dataclass(slots=True)
class Node:
    """A span of a log with what it contains; times in clock ticks."""

    frame: int
    start: int
    end: int
    children: list[Node]


def rebuild(log: Sequence[int]) -> list[Node]:
    """The trees of a log: its outermost spans in order of time, each with its children.

    A span that is written later and began no later than an earlier one contains it. Raises
    ValueError when the log's length is not a multiple of ENTRY.
    """
    if len(log) % ENTRY:
        raise ValueError(f"a log of {len(log)} integers is not whole: {ENTRY} make a span")
    pending: list[Node] = []
    for position in range(0, len(log), ENTRY):
        node = Node(log[position], log[position + 1], log[position + 2], [])
        first = len(pending)
        while first and pending[first - 1].start >= node.start:
            first -= 1
        node.children = pending[first:]
        del pending[first:]
        pending.append(node)
    return pending


def flatten(
    nodes: Iterable[Node],
    frames: Sequence[Frame],
    parent: Span,
    ticks_to_unix_nano: int,
    span_ids: Iterable[bytes],
) -> list[Span]:
    """The spans below `parent`, parents before their children.

    `ticks_to_unix_nano` is added to the log's ticks; a span is cut to its parent's times (clocks
    of different hosts agree only so far). One of `span_ids` is taken for each span.
    """
    ids = iter(span_ids)
    spans: list[Span] = []
    todo = [(node, parent) for node in reversed(list(nodes))]
    while todo:
        node, above = todo.pop()
        frame = frames[node.frame]
        start = min(max(node.start + ticks_to_unix_nano, above.start_unix_nano), above.end_unix_nano)
        end = max(min(node.end + ticks_to_unix_nano, above.end_unix_nano), start)
        span = Span(
            frame.name,
            frame.module,
            f"{above.stack};{escape_frame(frame.name)}",
            start,
            end,
            next(ids),
            above.span_id,
        )
        spans.append(span)
        todo.extend((child, span) for child in reversed(node.children))
    return spans
