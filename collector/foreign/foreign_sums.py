"""The spans of one service on one day, folded by their parents, in bounded memory. Pure.

Spans come in any order and over several requests, so a trace is kept while it may grow: until so many spans of others
came that there is no room. All follows from the requests in the order of the journal, and the state can be written
down, so that a collector that starts again goes on with the same sums.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date
from typing import Any

import msgspec
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from ..otlp.signals import TRACES
from ..totals.tally import MALFORMED, Tally
from .trace_fold import TraceSpan, TraceSums, frame_of

MOST_OPEN_SPANS = 30_000
_MOST_NS = 2**53
_IS_REMOTE = 0x200
"""This bit of a span's flags says that its parent is another process's."""

_FROM_OTHERS = frozenset({Span.SPAN_KIND_SERVER, Span.SPAN_KIND_CONSUMER})


@dataclass
class ForeignState:
    """All that the sums are: those of closed traces, the open traces, and what became of all spans."""

    sums: TraceSums = field(default_factory=TraceSums)
    open: dict[bytes, dict[bytes, TraceSpan]] = field(default_factory=dict)
    """Trace id → spans; the trace that grew last is last."""
    kept: int = 0
    duplicate: int = 0
    malformed: int = 0

    def folded(self) -> TraceSums:
        """The sums as if every trace were whole now."""
        sums = self.sums.copy()
        for trace in self.open.values():
            sums.add_trace(trace)
        return sums


class ForeignSums:
    """Grows by one request after the other."""

    def __init__(self, state: ForeignState | None = None) -> None:
        self.state = state or ForeignState()
        self.open_spans = sum(map(len, self.state.open.values()))
        self._frames: dict[str, str] = {}

    def add(self, request: Any) -> Tally:
        """Add the spans of a request."""
        before = (self.state.kept, self.state.duplicate, self.state.malformed)
        for resource in TRACES.resources(request):
            for span in TRACES.items(resource):
                self._add(span)
        while self.open_spans > MOST_OPEN_SPANS:
            self._close_oldest()
        kept, duplicate, malformed = self.state.kept, self.state.duplicate, self.state.malformed
        tally = Tally(kept - before[0], duplicate - before[1])
        if malformed > before[2]:
            tally.dropped[MALFORMED] = malformed - before[2]
        return tally

    def add_again(self, spans: int) -> Tally:
        """Note a request that came again, byte by byte."""
        self.state.duplicate += spans
        return Tally(duplicate=spans)

    def _add(self, span: Any) -> None:
        state, trace_id, span_id = self.state, span.trace_id, span.span_id
        start, end = span.start_time_unix_nano, span.end_time_unix_nano
        if len(trace_id) != 16 or len(span_id) != 8 or not any(trace_id) or not any(span_id) or end - start > _MOST_NS:
            state.malformed += 1
            return
        trace = state.open.pop(trace_id, None)
        if trace is None:
            trace = {}
        state.open[trace_id] = trace
        if span_id in trace:
            state.duplicate += 1
            return
        state.kept += 1
        self.open_spans += 1
        remote = span.kind in _FROM_OTHERS or bool(span.flags & _IS_REMOTE)
        trace[span_id] = TraceSpan(span.parent_span_id, self._frame(span.name), start, max(start, end), remote)

    def _frame(self, name: str) -> str:
        """Equal names as one object, while there are few."""
        frame = self._frames.get(name)
        if frame is None:
            if len(self._frames) >= MOST_OPEN_SPANS:
                self._frames.clear()
            frame = self._frames[name] = frame_of(name)
        return frame

    def _close_oldest(self) -> None:
        trace = self.state.open.pop(next(iter(self.state.open)))
        self.open_spans -= len(trace)
        self.state.sums.add_trace(trace)


@dataclass(frozen=True)
class SavedState:
    """As it stands in a file: whose it is, how far of the journal it has, and the requests that are known again."""

    service: str
    day: date
    offset: int = 0
    state: ForeignState = field(default_factory=ForeignState)
    known: dict[int, int] = field(default_factory=dict)
    format: int = 1


def encode(saved: SavedState) -> bytes:
    """For a file."""
    return msgspec.msgpack.encode(saved)


def decode(content: bytes) -> SavedState:
    """What `encode` made; raises ValueError for anything else."""
    saved = msgspec.msgpack.decode(content, type=SavedState)
    if saved.format != 1:
        raise ValueError(f"it has format {saved.format}")
    return saved
