"""What arrived of one recording: totals by (engine, rank, step), spans by id, closing events.

Pure and deterministic: the same requests in the same order, live or from the journal, make the
same sums; a request that comes twice changes nothing but the duplicate counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, get_type_hints

from vime_otel.data.folded import Folded
from vime_otel.data.otlp import (
    CLOSING_EVENT,
    COUNTED_NS,
    INSTANCE_ID,
    RANK,
    STACK,
    STEP_EVENT,
    ReadTotals,
    plain_attributes,
    plain_value,
    read_totals,
)
from vime_otel.data.recording import ENGINE_PART, IDLE, KINDS, StepRow, StepTotals

from .signals import LOGS, TRACES, Signal

_ROOT_STACK = "step"

PartKey = tuple[str, str, int]
"""(engine, rank, step index)."""

_TraceKey = tuple[str, str, bytes]
"""(engine, rank, trace id): the same part of a step, as its spans name it. Lockstep engines share trace ids."""

_MOST = 2**53
"""Nanoseconds or calls of a step; so that many can be added up in 64 bits."""

_TRACE_ID_BYTES = 16
_ROW_TYPES: dict[str, type] = get_type_hints(StepRow)


@dataclass
class _StepSpans:
    """The spans of one engine, rank and trace; `folded` is there until they were checked."""

    ids: set[bytes] = field(default_factory=set)
    folded: Folded | None = field(default_factory=Folded)


@dataclass(frozen=True)
class Part:
    """What an engine's closing event says that it sent of one rank (or of itself)."""

    rank: str
    stage: int
    totals: int
    spans: int
    dropped: int

    @property
    def name(self) -> str:
        """For people: `rank 3`, or `the engine process`."""
        return "the engine process" if self.rank == ENGINE_PART else f"rank {self.rank}"


@dataclass(frozen=True)
class Closing:
    """An engine's closing event; docs/formats.md lists the body."""

    parts: tuple[Part, ...]
    body: dict[str, Any]

    @classmethod
    def read(cls, body: Any) -> Closing:
        """From the event's body; raises ValueError where it is malformed."""
        try:
            parts = tuple(
                Part(
                    str(part["rank"]),
                    int(part["stage"]),
                    int(part["totals"]),
                    int(part["spans"]),
                    int(part["dropped"]),
                )
                for part in body["parts"]
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"a {CLOSING_EVENT} event is malformed: {error!r}") from error
        return cls(parts, body)


class Sums:
    """The sums of one recording."""

    def __init__(self, recording_id: str) -> None:
        self.recording_id = recording_id
        self.totals: dict[PartKey, StepTotals] = {}
        self.rows: dict[tuple[str, int], StepRow] = {}
        self.closings: dict[str, Closing] = {}
        self.mismatched: set[PartKey] = set()
        self.duplicate_spans = 0
        self.duplicate_totals = 0
        self.malformed = 0
        self._span_counts: Counter[tuple[str, str]] = Counter()
        self._totals_counts: Counter[tuple[str, str]] = Counter()
        self._spans: dict[_TraceKey, _StepSpans] = {}
        self._totals_of: dict[_TraceKey, StepTotals] = {}

    def add(self, signal: Signal, request: Any) -> int:
        """Add a request whose resources are all of this recording; returns how many items were malformed."""
        before = self.malformed
        for resource in signal.resources(request):
            attributes = plain_attributes(resource.resource.attributes)
            engine = str(attributes.get(INSTANCE_ID, ""))
            if signal is TRACES:
                self._add_spans(engine, str(attributes.get(RANK, ENGINE_PART)), signal.items(resource))
            elif signal is LOGS:
                self._add_records(engine, signal.items(resource))
        return self.malformed - before

    @property
    def empty(self) -> bool:
        """Whether neither totals nor spans arrived."""
        return not self.totals and not self._spans

    @property
    def received_spans(self) -> int:
        """Different spans that arrived."""
        return self._span_counts.total()

    def part_spans(self, engine: str, rank: str) -> int:
        """Different spans that arrived of one rank, or of the engine itself."""
        return self._span_counts[engine, rank]

    def part_totals(self, engine: str, rank: str) -> int:
        """Totals that arrived of one rank, or of the engine itself."""
        return self._totals_counts[engine, rank]

    def missing(self, engine: str) -> list[str]:
        """What an engine announced and did not arrive, or that it announced nothing; empty when all is here."""
        closing = self.closings.get(engine)
        if closing is None:
            return ["its closing event did not arrive, so more may be missing"]
        texts = []
        for part in closing.parts:
            totals, spans = self.part_totals(engine, part.rank), self.part_spans(engine, part.rank)
            if totals != part.totals:
                texts.append(f"{totals} of {part.totals} step totals of {part.name} arrived")
            if spans != part.spans:
                texts.append(f"{spans} of {part.spans} spans of {part.name} arrived")
        return texts

    def _add_spans(self, engine: str, rank: str, spans: Iterable[Any]) -> None:
        touched = set()
        for span in spans:
            key = (engine, rank, span.trace_id)
            step = self._spans.get(key)
            if step is None:
                step = self._spans[key] = _StepSpans()
            if span.span_id in step.ids:
                self.duplicate_spans += 1
                continue
            step.ids.add(span.span_id)
            self._span_counts[engine, rank] += 1
            if step.folded is None:
                continue
            touched.add(key)
            stack, total_ns = None, span.end_time_unix_nano - span.start_time_unix_nano
            for attribute in span.attributes:
                if attribute.key == STACK:
                    stack = attribute.value.string_value
                elif attribute.key == COUNTED_NS:
                    total_ns = attribute.value.int_value
            if stack is not None:
                step.folded.add(stack, total_ns)
        for key in touched:
            self._check(key)

    def _add_records(self, engine: str, records: Iterable[Any]) -> None:
        for record in records:
            try:
                if record.event_name == STEP_EVENT:
                    self._add_totals(record, engine)
                elif record.event_name == CLOSING_EVENT:
                    self.closings.setdefault(engine, Closing.read(plain_value(record.body)))
            except (ValueError, OverflowError):
                self.malformed += 1

    def _add_totals(self, record: Any, engine: str) -> None:
        read = read_totals(record, engine)
        _validate(read, record.trace_id)
        part = read.totals
        if part.key in self.totals:
            self.duplicate_totals += 1
            return
        self.totals[part.key] = part
        self._totals_counts[engine, part.rank] += 1
        if read.row is not None:
            self.rows[engine, part.index] = read.row
        key = (engine, part.rank, record.trace_id)
        self._totals_of[key] = part
        self._check(key)

    def _check(self, key: _TraceKey) -> None:
        """Compare a step's spans with its totals once all are here; what was dropped can't be compared."""
        part, step = self._totals_of.get(key), self._spans.get(key)
        if part is None or step is None or step.folded is None:
            return
        if len(step.ids) < part.spans_made - part.spans_dropped:
            return
        if part.spans_dropped == 0:
            folded = Folded()
            part.add_to(folded)
            if _comparable(folded) != _comparable(step.folded):
                self.mismatched.add(part.key)
        step.folded = None


def _validate(read: ReadTotals, trace_id: bytes) -> None:
    """Raise ValueError for what could not be written or checked.

    That is numbers beyond 64 bits, a row's field of another type, a kind that is none, no trace.
    """
    part = read.totals
    if part.kind not in (*KINDS, IDLE):
        raise ValueError(f"a {STEP_EVENT} event is of kind {part.kind!r:.40}")
    if len(trace_id) != _TRACE_ID_BYTES:
        raise ValueError(f"a {STEP_EVENT} event has no trace id")
    numbers = (part.index, part.stage, part.spans_made, part.spans_dropped, *part.inclusive_ns, *part.calls)
    if not all(-1 <= number <= _MOST for number in numbers):
        raise ValueError(f"a {STEP_EVENT} event has a number out of range")
    if read.row is not None:
        for name, wanted in _ROW_TYPES.items():
            value = getattr(read.row, name)
            if type(value) is not wanted:
                raise ValueError(f"a {STEP_EVENT} event has {name}={value!r}, which is no {wanted.__name__}")


def _comparable(folded: Folded) -> tuple[dict[str, int], dict[str, int]]:
    """Times and calls without the root: its totals hold the interval, its span the whole duration."""
    return (
        {stack: value for stack, value in folded.inclusive_ns.items() if stack != _ROOT_STACK},
        {stack: value for stack, value in folded.calls.items() if stack != _ROOT_STACK},
    )
