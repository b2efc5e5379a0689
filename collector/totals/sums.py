"""What arrived of one recording: totals by (engine, rank, step), spans by id, closing events.

Pure and deterministic: the same requests in the same order, live or from the journal, make the
same sums; a request that comes twice changes nothing but the duplicate counts. Memory grows with the steps, not
with what is in them: totals are added up as they come (the journal has each step's), and a step's span ids are
forgotten once all of its spans are here, since whatever comes then is a duplicate. Whether spans add up to their
totals is a question for the end (`span_check`).
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from vime_otel.data.folded import Folded
from vime_otel.data.otlp import INSTANCE_ID, RANK, plain_attributes
from vime_otel.data.recording import ENGINE_PART, StepRow, StepTotals

from ..otlp.signals import KEPT, LOGS, TRACES, Signal
from .own_spans import span_bytes, span_ids
from .records import Closing, Malformed, StepEvent, read_records
from .tally import MALFORMED, NOT_KEPT, Tally

MOST_OPEN_IDS = 1_000_000
"""Span ids that are kept of steps whose spans are not all here; beyond, the oldest steps' are not told apart."""

PartKey = tuple[str, str, int]
"""(engine, rank, step index)."""

TraceKey = tuple[str, str, bytes]
"""(engine, rank, trace id): the same part of a step, as its spans name it. Lockstep engines share trace ids."""


class Sums:
    """The sums of one recording."""

    def __init__(self, recording_id: str) -> None:
        self.recording_id = recording_id
        self.rows: dict[tuple[str, int], StepRow] = {}
        self.closings: dict[str, Closing] = {}
        self.tallies = {signal: Tally() for signal in KEPT}
        self._folded: dict[tuple[str, str, int, str], Folded] = {}
        self._keys: set[PartKey] = set()
        self._span_counts: Counter[tuple[str, str]] = Counter()
        self._totals_counts: Counter[tuple[str, str]] = Counter()
        self._expected: dict[TraceKey, int] = {}
        self._open: dict[TraceKey, set[bytes]] = {}
        self._open_ids = 0
        self._whole: set[TraceKey] = set()
        self._given_up: set[TraceKey] = set()

    def add(self, signal: Signal, request: Any, payload: bytes) -> Tally:
        """Add a request whose resources are all of this recording; `payload` is its protobuf form."""
        tally = Tally()
        if signal is TRACES:
            for resource, scopes in zip(signal.resources(request), span_bytes(payload), strict=True):
                engine, rank = part_of(resource)
                for scope, encoded in zip(resource.scope_spans, scopes, strict=True):
                    for trace_id, ids in span_ids(scope.spans, encoded).items():
                        self._add_spans((engine, rank, trace_id), ids, tally)
        elif signal is LOGS:
            self._add_records(request, tally)
        self.tallies[signal].add(tally)
        return tally

    def add_duplicate(self, signal: Signal, items: int) -> Tally:
        """Note a request that came again, byte by byte."""
        tally = Tally(duplicate=items)
        self.tallies[signal].add(tally)
        return tally

    @property
    def empty(self) -> bool:
        """Whether neither totals nor spans arrived."""
        return not self._keys and not self._span_counts

    @property
    def received_spans(self) -> int:
        """Different spans that arrived."""
        return self._span_counts.total()

    @property
    def received_totals(self) -> int:
        """Different step totals that arrived."""
        return self._totals_counts.total()

    @property
    def duplicate_spans(self) -> int:
        """Spans that came again."""
        return self.tallies[TRACES].duplicate

    @property
    def duplicate_totals(self) -> int:
        """Log events that came again."""
        return self.tallies[LOGS].duplicate

    @property
    def malformed(self) -> int:
        """Log events of ours that could not be read."""
        return self.tallies[LOGS].dropped[MALFORMED]

    def part_spans(self, engine: str, rank: str) -> int:
        """Different spans that arrived of one rank, or of the engine itself."""
        return self._span_counts[engine, rank]

    def part_totals(self, engine: str, rank: str) -> int:
        """Totals that arrived of one rank, or of the engine itself."""
        return self._totals_counts[engine, rank]

    def summed_totals(self) -> list[StepTotals]:
        """The sums of each rank and kind, in the form of one step's totals."""
        return [
            StepTotals(
                engine, rank, stage, 0, kind, tuple(of.inclusive_ns), tuple(of.inclusive_ns.values()),
                tuple(of.calls.values()), 0, 0,
            )
            for (engine, rank, stage, kind), of in sorted(self._folded.items(), key=lambda item: item[0])
        ]  # fmt: skip

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

    def _add_spans(self, key: TraceKey, span_ids: list[bytes], tally: Tally) -> None:
        new = self._new_spans(key, span_ids)
        tally.kept += new
        tally.duplicate += len(span_ids) - new
        self._span_counts[key[:2]] += new
        self._settle(key)
        while self._open_ids > MOST_OPEN_IDS:
            self._give_up_oldest()

    def _new_spans(self, key: TraceKey, span_ids: list[bytes]) -> int:
        """How many were not here yet."""
        if key in self._whole:
            return 0
        if key in self._given_up:
            return len(span_ids)
        known = self._open.setdefault(key, set())
        before = len(known)
        known.update(span_ids)
        self._open_ids += len(known) - before
        return len(known) - before

    def _add_records(self, request: Any, tally: Tally) -> None:
        for record in read_records(request):
            if isinstance(record, StepEvent):
                self._count(self._add_totals(record), tally)
            elif isinstance(record, Closing):
                self._count(self.closings.setdefault(record.engine, record) is record, tally)
            else:
                tally.dropped[MALFORMED if isinstance(record, Malformed) else NOT_KEPT] += 1

    @staticmethod
    def _count(new: bool, tally: Tally) -> None:
        if new:
            tally.kept += 1
        else:
            tally.duplicate += 1

    def _add_totals(self, event: StepEvent) -> bool:
        part, row = event.read.totals, event.read.row
        if part.key in self._keys:
            return False
        self._keys.add(part.key)
        self._totals_counts[part.engine, part.rank] += 1
        part.add_to(self._folded.setdefault((part.engine, part.rank, part.stage, part.kind), Folded()))
        if row is not None:
            self.rows[part.engine, part.index] = row
        key = (part.engine, part.rank, event.trace_id)
        if part.spans_made > part.spans_dropped:
            self._expected[key] = part.spans_made - part.spans_dropped
            self._settle(key)
        return True

    def _settle(self, key: TraceKey) -> None:
        """Forget a step's ids once all of its spans are here."""
        known = self._open.get(key)
        if known is not None and len(known) >= self._expected.get(key, len(known) + 1):
            self._whole.add(key)
            self._forget(key)

    def _give_up_oldest(self) -> None:
        key = next(iter(self._open))
        self._given_up.add(key)
        self._forget(key)

    def _forget(self, key: TraceKey) -> None:
        self._open_ids -= len(self._open.pop(key))
        self._expected.pop(key, None)


def part_of(resource: Any) -> tuple[str, str]:
    """The engine, and the rank or ENGINE_PART, that a recorder's resource names."""
    attributes = plain_attributes(resource.resource.attributes)
    return str(attributes.get(INSTANCE_ID, "")), str(attributes.get(RANK, ENGINE_PART))
