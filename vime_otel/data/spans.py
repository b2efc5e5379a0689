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
    """One span, times in Unix nanoseconds. `stack` ends in its frame; the ids are 8 bytes.

    `counted_ns` is what the span adds to totals where that is not its length. `host` are begin and
    end on the host's clock where the span's own times are a device's.
    """

    name: str
    module: str
    stack: str
    start_unix_nano: int
    end_unix_nano: int
    span_id: bytes = b""
    parent_span_id: bytes = b""
    counted_ns: int | None = None
    host: tuple[int, int] | None = None

    @property
    def duration_ns(self) -> int:
        """Its length."""
        return self.end_unix_nano - self.start_unix_nano

    @property
    def total_ns(self) -> int:
        """What it adds to totals."""
        return self.duration_ns if self.counted_ns is None else self.counted_ns


@dataclass(slots=True)
class Node:
    """A span of a log with what it contains; times in clock ticks. `host` as in `Span`, still in ticks."""

    frame: int
    start: int
    end: int
    children: list[Node]
    counted_ns: int | None = None
    host: tuple[int, int] | None = None


def rebuild(log: Sequence[int], device: Sequence[int] = ()) -> list[Node]:
    """The trees of a log: its outermost spans in order of time, each with its children.

    A span that is written later and began no later than an earlier one contains it. `device` has two
    ticks a span, its begin and end there: these become the node's times. Raises ValueError when the
    log's length is not a multiple of ENTRY, or `device` does not match it.
    """
    if len(log) % ENTRY or len(device) not in (0, len(log) // ENTRY * 2):
        raise ValueError(f"a log of {len(log)} integers ({len(device)} of a device) is not whole: {ENTRY} make a span")
    pending: list[Node] = []
    begins: list[int] = []
    for position in range(0, len(log), ENTRY):
        begin = log[position + 1]
        node = Node(log[position], begin, log[position + 2], [])
        first = len(pending)
        while first and begins[first - 1] >= begin:
            first -= 1
        node.children = pending[first:]
        del pending[first:], begins[first:]
        pending.append(node)
        begins.append(begin)
        if device:
            pair = position // ENTRY * 2
            node.host = (node.start, node.end)
            node.start, node.end = device[pair], device[pair + 1]
    return pending


def fold(nodes: Iterable[Node]) -> dict[tuple[int, ...], tuple[int, int]]:
    """(inclusive ticks, calls) of the trees by path of frame numbers."""
    totals: dict[tuple[int, ...], tuple[int, int]] = {}
    todo: list[tuple[Node, tuple[int, ...]]] = [(node, ()) for node in nodes]
    while todo:
        node, above = todo.pop()
        path = (*above, node.frame)
        ticks, calls = totals.get(path, (0, 0))
        totals[path] = (ticks + node.end - node.start, calls + 1)
        todo.extend((child, path) for child in node.children)
    return totals


class StackNames:
    """The stacks of one log's frames as text, each made once."""

    def __init__(self, frames: Sequence[Frame]) -> None:
        self.frames = frames
        self._known: dict[tuple[str, int], str] = {}

    def below(self, stack: str, frame: int) -> str:
        """The stack of a frame that was called from `stack`."""
        key = (stack, frame)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = f"{stack};{escape_frame(self.frames[frame].name)}"
        return known

    def of_path(self, stack: str, path: Iterable[int]) -> str:
        """The stack of a path of frame numbers below `stack`."""
        for frame in path:
            stack = self.below(stack, frame)
        return stack


def flatten(
    nodes: Iterable[Node],
    names: StackNames,
    parent: Span,
    ticks_to_unix_nano: int,
    span_ids: Iterable[bytes],
) -> list[Span]:
    """The spans below `parent`, parents before their children.

    `ticks_to_unix_nano` is added to the log's ticks; a span is cut to its parent's times (clocks
    of different hosts agree only so far), but counts its whole length. One of `span_ids` is taken
    for each span.
    """
    ids = iter(span_ids)
    spans: list[Span] = []
    todo = [(node, parent) for node in reversed(list(nodes))]
    while todo:
        node, above = todo.pop()
        frame = names.frames[node.frame]
        start = min(max(node.start + ticks_to_unix_nano, above.start_unix_nano), above.end_unix_nano)
        end = max(min(node.end + ticks_to_unix_nano, above.end_unix_nano), start)
        counted_ns = node.counted_ns
        if counted_ns is None and end - start != node.end - node.start:
            counted_ns = node.end - node.start
        span = Span(
            frame.name,
            frame.module,
            names.below(above.stack, node.frame),
            start,
            end,
            next(ids),
            above.span_id,
            counted_ns,
            node.host and (node.host[0] + ticks_to_unix_nano, node.host[1] + ticks_to_unix_nano),
        )
        spans.append(span)
        todo.extend((child, span) for child in reversed(node.children))
    return spans
