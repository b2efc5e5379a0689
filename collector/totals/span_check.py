"""Whether the spans of each step add up to its totals; asked of the journal when a recording ends.

Each part of a step (an engine's rank, or the engine itself) is compared once all of its spans were read. Memory is
bounded: of a step that is through nothing is kept, and of those that are not only so many spans.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vime_otel.data.folded import Folded
from vime_otel.data.journal import JournalReader
from vime_otel.data.recording import StepTotals

from ..otlp.signals import BY_NUMBER, TRACES, Signal
from .own_spans import TraceSpans, counts_otherwise, read_spans, span_bytes, stack_text
from .records import StepEvent, read_records
from .sums import MOST_OPEN_IDS, PartKey, TraceKey, part_of

_ROOT_STACK = "step"


@dataclass(frozen=True)
class Checked:
    """The parts of steps whose spans do not add up, and how many were not compared since too much was open at once."""

    mismatched: frozenset[PartKey]
    given_up: int


NOTHING_CHECKED = Checked(frozenset(), 0)


def check_spans(journal: Path) -> Checked:
    """Read a recording's journal. Raises VimeOtelError where it is none, OSError where it can't be read."""
    check = SpanCheck()
    for frame in JournalReader(journal):
        signal = BY_NUMBER[frame.signal]
        check.add(signal, signal.request_type.FromString(frame.payload), frame.payload)
    return check.result()


class SpanCheck:
    """Takes the requests of a recording, in any order."""

    def __init__(self) -> None:
        self._mismatched: set[PartKey] = set()
        self._expected: dict[TraceKey, _Expected] = {}
        self._open: dict[TraceKey, _OpenSpans] = {}
        self._open_ids = 0
        self._through: set[TraceKey] = set()
        self._known: set[PartKey] = set()
        self._given_up = 0

    def add(self, signal: Signal, request: Any, payload: bytes) -> None:
        """Add a request; `payload` is its protobuf form."""
        if signal is TRACES:
            as_messages = counts_otherwise(payload)
            for resource, encoded in zip(signal.resources(request), span_bytes(payload), strict=True):
                found = read_spans(resource.scope_spans, None if as_messages else encoded)
                for trace_id, spans in found.items():
                    self._add_spans((*part_of(resource), trace_id), spans)
        else:
            for record in read_records(request):
                if isinstance(record, StepEvent):
                    self._expect(record.read.totals, record.trace_id)

    def result(self) -> Checked:
        """What was found until now."""
        return Checked(frozenset(self._mismatched), self._given_up)

    def _expect(self, part: StepTotals, trace_id: bytes) -> None:
        key = (part.engine, part.rank, trace_id)
        if part.key not in self._known and part.spans_made > part.spans_dropped and key not in self._through:
            self._expected[key] = _Expected.of(part)
            self._compare(key)
        self._known.add(part.key)

    def _add_spans(self, key: TraceKey, spans: TraceSpans) -> None:
        if key in self._through:
            return
        self._open_ids += self._open.setdefault(key, _OpenSpans()).add(spans)
        self._compare(key)
        while self._open_ids > MOST_OPEN_IDS:
            self._given_up += 1
            self._end(next(iter(self._open)))

    def _compare(self, key: TraceKey) -> None:
        """Compare a part once all of its spans are here; where some were dropped nothing can be compared."""
        expected, spans = self._expected.get(key), self._open.get(key)
        if expected is None or spans is None or len(spans.ids) < expected.spans:
            return
        if expected.sum is not None and expected.sum != spans.sum():
            self._mismatched.add(expected.part)
        self._end(key)

    def _end(self, key: TraceKey) -> None:
        self._open_ids -= len(self._open.pop(key).ids)
        self._expected.pop(key, None)
        self._through.add(key)


@dataclass
class _OpenSpans:
    """The spans of one part that were read, while more may come."""

    ids: set[bytes] = field(default_factory=set)
    durations: dict[bytes, list[int]] = field(default_factory=dict)
    """Encoded stack → each span's nanoseconds."""

    def add(self, spans: TraceSpans) -> int:
        """Add those that are new; returns how many were."""
        new = set(spans.ids)
        if len(new) != len(spans.ids) or not self.ids.isdisjoint(new):
            spans = self._only_new(spans)
            new = set(spans.ids)
        self.ids |= new
        durations = self.durations
        for stack, duration in zip(spans.stacks, spans.durations, strict=True):
            if stack in durations:
                durations[stack].append(duration)
            elif stack is not None:
                durations[stack] = [duration]
        return len(new)

    def _only_new(self, spans: TraceSpans) -> TraceSpans:
        known, new = set(self.ids), TraceSpans()
        for span_id, stack, duration in zip(spans.ids, spans.stacks, spans.durations, strict=True):
            if span_id not in known:
                known.add(span_id)
                new.ids.append(span_id)
                new.stacks.append(stack)
                new.durations.append(duration)
        return new

    def sum(self) -> int:
        """Of times and calls by stack."""
        return _sum_of((stack_text(stack), sum(each), len(each)) for stack, each in self.durations.items())


@dataclass(frozen=True, slots=True)
class _Expected:
    """What a part's spans should come to; no sum where some were dropped."""

    part: PartKey
    spans: int
    sum: int | None

    @classmethod
    def of(cls, part: StepTotals) -> _Expected:
        """What the totals say."""
        spans = part.spans_made - part.spans_dropped
        if part.spans_dropped:
            return cls(part.key, spans, None)
        folded = Folded()
        part.add_to(folded)
        lines = zip(folded.inclusive_ns, folded.inclusive_ns.values(), folded.calls.values(), strict=True)
        return cls(part.key, spans, _sum_of(lines))


def _sum_of(lines: Iterable[tuple[str, int, int]]) -> int:
    """Of (stack, nanoseconds, calls) in any order, but the root's: its totals hold the interval, its span all of it."""
    return hash(frozenset(line for line in lines if line[0] != _ROOT_STACK))
