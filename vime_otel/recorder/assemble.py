"""From an engine's window to what is sent and summed: step rows, spans, folded totals. Pure."""

from __future__ import annotations

import array
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from vime_otel.data.folded import Folded
from vime_otel.data.otlp import MAX_PAYLOAD_BYTES, MAX_SPANS_PER_RANK_STEP, SPAN_BYTES, step_ids
from vime_otel.data.recording import ENGINE_PART, StepRow, StepTotals
from vime_otel.data.spans import Frame, Node, Span, flatten, rebuild

from .window import EngineStep, RankLog, Window

ENGINE_FRAMES = (Frame("schedule"), Frame("wait"), Frame("update_from_output"))
_SCHEDULE, _WAIT, _UPDATE = range(3)


@dataclass(frozen=True)
class StepPart:
    """One step of one rank (or of the engine itself): its totals, and the spans that are sent.

    `spans` are in an order in which parents come first; `dropped_on` is the span that tells of the
    dropped ones, if any were.
    """

    totals: StepTotals
    spans: list[Span]
    dropped_on: Span | None


@dataclass(frozen=True)
class AssembledStep:
    """One step: its row, its root span, the engine's own part and one part a rank."""

    row: StepRow
    root: Span
    engine_part: StepPart
    rank_parts: list[StepPart]

    @property
    def parts(self) -> list[StepPart]:
        """The engine's own part and the ranks'."""
        return [self.engine_part, *self.rank_parts]


def assemble(window: Window, new_ids: Callable[[int], Sequence[bytes]] | None = None) -> Iterator[AssembledStep]:
    """The steps of a window, in order. `new_ids` makes span ids (from os.urandom by default)."""
    make_ids = new_ids or _random_ids
    ranks = [_Rank(log, window) for log in window.ranks]
    for step in window.steps:
        yield _assemble_step(window, step, ranks, make_ids)


def _random_ids(count: int) -> list[bytes]:
    pool = os.urandom(8 * count)
    return [pool[i : i + 8] for i in range(0, len(pool), 8)]


class _Rank:
    """One rank's log, with its ticks brought to Unix nanoseconds."""

    def __init__(self, log: RankLog, window: Window):
        self.name = str(log.rank)
        self.stage = log.stage
        self.frames = [Frame(*frame) for frame in log.frames]
        self._entries = array.array("q", log.entries)
        self._bounds = [*log.starts, len(self._entries)]
        # On one boot of one host perf_counter is one clock; elsewhere only the wall clocks agree.
        clock = window.clock if log.clock.host == window.clock.host else log.clock
        self.shift = clock.ticks_to_unix_nano

    def outermost(self, index: int, root: Span) -> list[Node]:
        """The trees of a step, less what lies outside of it."""
        if index + 1 >= len(self._bounds):
            return []
        nodes = rebuild(self._entries[self._bounds[index] : self._bounds[index + 1]])
        return [
            node
            for node in nodes
            if node.start + self.shift < root.end_unix_nano and node.end + self.shift > root.start_unix_nano
        ]


def _assemble_step(
    window: Window, step: EngineStep, ranks: list[_Rank], make_ids: Callable[[int], Sequence[bytes]]
) -> AssembledStep:
    engine = window.engine["engine"]
    trace_id, root_id = step_ids(window.command.recording, engine, step.index)
    shift = window.clock.ticks_to_unix_nano
    counts = step.counts
    root = Span(f"{counts.kind} step", "", "step", step.schedule_start + shift, step.update_end + shift, root_id)
    interval_start = max(step.schedule_start, step.previous_update_end)
    row = StepRow(
        engine=engine,
        index=step.index,
        kind=counts.kind,
        mixed=counts.mixed,
        execution=window.engine["execution"],
        start_unix_nano=root.start_unix_nano,
        duration_ns=root.duration_ns,
        interval_ns=step.update_end - interval_start,
        context_tokens=counts.context_tokens,
        generation_tokens=counts.generation_tokens,
        requests=counts.requests,
        resumed=counts.resumed,
        speculative_tokens=counts.speculative_tokens,
        trace_id=trace_id.hex(),
    )
    trees = [rank.outermost(step.index, root) for rank in ranks]
    parts = []
    for rank, nodes in zip(ranks, trees, strict=True):
        spans = flatten(nodes, rank.frames, root, rank.shift, _ids_for(nodes, make_ids))
        parts.append(_part(row, rank.name, rank.stage, spans, Folded()))
    busy = [
        (node.start + rank.shift - shift, node.end + rank.shift - shift)
        for rank, nodes in zip(ranks, trees, strict=True)
        for node in nodes
    ]
    own = [Node(_SCHEDULE, step.schedule_start, step.schedule_end, [])]
    own += [Node(_WAIT, *gap, []) for gap in _gaps(max(step.schedule_end, interval_start), step.update_start, busy)]
    own.append(Node(_UPDATE, step.update_start, step.update_end, []))
    folded = Folded()
    # The step counts what it adds to the clock: overlapping steps would else count time twice.
    folded.add("step", row.interval_ns)
    own_spans = flatten(own, ENGINE_FRAMES, root, shift, make_ids(len(own)))
    return AssembledStep(row, root, _part(row, ENGINE_PART, -1, own_spans, folded, spans_made=1), parts)


def _ids_for(nodes: list[Node], make_ids: Callable[[int], Sequence[bytes]]) -> Sequence[bytes]:
    count = 0
    todo = list(nodes)
    while todo:
        count += 1
        todo.extend(todo.pop().children)
    return make_ids(count)


def _gaps(start: int, end: int, busy: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """What is left of start..end without the `busy` stretches."""
    for busy_start, busy_end in sorted(busy):
        if busy_start >= end:
            break
        if busy_start > start:
            yield start, busy_start
        start = max(start, busy_end)
    if start < end:
        yield start, end


def _part(row: StepRow, rank: str, stage: int, spans: list[Span], folded: Folded, spans_made: int = 0) -> StepPart:
    for span in spans:
        folded.add(span.stack, span.duration_ns)
    kept = _cap(spans)
    dropped = len(spans) - len(kept)
    totals = StepTotals(
        engine=row.engine,
        rank=rank,
        stage=stage,
        index=row.index,
        kind=row.kind,
        stacks=tuple(folded.inclusive_ns),
        inclusive_ns=tuple(folded.inclusive_ns.values()),
        calls=tuple(folded.calls.values()),
        spans_made=len(spans) + spans_made,
        spans_dropped=dropped,
    )
    return StepPart(totals, kept, spans[0] if dropped else None)


def _cap(spans: list[Span]) -> list[Span]:
    """As many as one request holds, the deepest dropped first, so that every parent stays."""
    if len(spans) <= MAX_SPANS_PER_RANK_STEP and sum(map(_wire_bytes, spans)) <= MAX_PAYLOAD_BYTES:
        return spans
    kept: list[Span] = []
    size = 0
    for span in sorted(spans, key=lambda span: span.stack.count(";"))[:MAX_SPANS_PER_RANK_STEP]:
        size += _wire_bytes(span)
        if size > MAX_PAYLOAD_BYTES:
            break
        kept.append(span)
    return kept


def _wire_bytes(span: Span) -> int:
    return SPAN_BYTES + sum(len(text.encode()) for text in (span.name, span.module, span.stack))
