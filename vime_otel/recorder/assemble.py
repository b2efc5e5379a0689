"""From an engine's window to what is sent and summed: step rows, spans, folded totals. Pure."""

from __future__ import annotations

import array
import hashlib
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from vime_otel.data.folded import Folded
from vime_otel.data.otlp import MAX_PAYLOAD_BYTES, MAX_SPANS_PER_RANK_STEP, SPAN_BYTES, group_ids, step_ids
from vime_otel.data.recording import ENGINE_PART, StepRow, StepTotals
from vime_otel.data.spans import ENTRY, Frame, Node, Span, StackNames, flatten, rebuild

from .window import EngineStep, RankLog, Window

ENGINE_FRAMES = (Frame("schedule"), Frame("wait"), Frame("update_from_output"))
_SCHEDULE, _WAIT, _UPDATE = range(3)
_STEP_FRAMES = ("execute_model", "sample_tokens")

Stretch = tuple[int, int]
"""Begin and end in ticks of the engine's clock."""


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
    """The steps of a window, in order. `new_ids` makes span ids (from the window's seed by default)."""
    make_ids = new_ids or _ids_from(window.id_seed)
    ranks = [_Rank(log, window) for log in window.ranks]
    names = StackNames(ENGINE_FRAMES)
    for worked, around in _with_surroundings(window, ranks):
        yield _assemble_step(window, worked, around, ranks, names, make_ids)


def _ids_from(seed: bytes) -> Callable[[int], list[bytes]]:
    """Random ids that are the same each time: those of a part of a step depend on its number alone."""
    numbers = itertools.count()

    def make_ids(count: int) -> list[bytes]:
        pool = hashlib.shake_128(seed + next(numbers).to_bytes(8, "big")).digest(8 * count)
        return [pool[i : i + 8] for i in range(0, len(pool), 8)]

    return make_ids


class _Rank:
    """One rank's log, with its ticks brought to Unix nanoseconds."""

    def __init__(self, log: RankLog, window: Window):
        self.name = str(log.rank)
        self.stage = log.stage
        self.names = StackNames([Frame(*frame) for frame in log.frames])
        self.folded = log.folded
        self.executions = log.executions
        self._entries = array.array("q", log.entries)
        self._device = array.array("q", log.device)
        self._bounds = [*log.starts, len(self._entries)]
        # On one boot of one host perf_counter is one clock; elsewhere only the wall clocks agree.
        clock = window.clock if log.clock.host == window.clock.host else log.clock
        self.shift = clock.ticks_to_unix_nano
        self.to_engine = self.shift - window.clock.ticks_to_unix_nano

    def outermost(self, step: EngineStep) -> list[Node]:
        """The trees of a step. What lies outside of it belongs to it only as far as it is the rank's part of a step.

        A rank that the engine does not wait for may be at that later.
        """
        if step.position is None or step.position + 1 >= len(self._bounds):
            return []
        start, end = self._bounds[step.position], self._bounds[step.position + 1]
        device = self._device[start // ENTRY * 2 : end // ENTRY * 2]
        nodes = rebuild(self._entries[start:end], device)
        return [node for node in nodes if self._is_of(step, node)]

    def _is_of(self, step: EngineStep, node: Node) -> bool:
        inside = node.start + self.to_engine < step.update_end and node.end + self.to_engine > step.schedule_start
        return inside or self.names.frames[node.frame].name in _STEP_FRAMES

    def stretches(self, nodes: Iterable[Node]) -> list[Stretch]:
        """When the rank was at work."""
        return [(node.start + self.to_engine, node.end + self.to_engine) for node in nodes]


@dataclass(frozen=True)
class _Surroundings:
    """What a step's trees alone don't tell: its interval, and what else went on while it lasted.

    `recorded` is the interval, and what of the whole step lies in the intervals of its neighbours if
    these are recorded. `ranks` and `engine` are stretches of any step, sorted, without overlap.
    """

    interval: Stretch
    recorded: Stretch
    ranks: list[Stretch]
    engine: list[Stretch]


@dataclass(frozen=True)
class _Worked:
    """A step with its ranks' trees, and when they were at work."""

    step: EngineStep
    trees: list[list[Node]]
    stretches: list[Stretch]

    @property
    def begin(self) -> int:
        """When the first rank began to work on it."""
        return min((start for start, _ in self.stretches), default=self.step.previous_update_end)

    @property
    def interval_end(self) -> int:
        """Where its time on the clock ends: see `_interval`."""
        step = self.step
        if not step.next_schedule_start or step.next_schedule_start >= step.update_end:
            return step.update_end
        done = max((end for _, end in self.stretches), default=step.update_end)
        return min(max(done, step.next_schedule_start), step.update_end)


def _with_surroundings(window: Window, ranks: list[_Rank]) -> Iterator[tuple[_Worked, _Surroundings]]:
    """Every step with its surroundings; no more steps in memory than overlap."""
    near: deque[_Worked] = deque()
    coming = iter(window.steps)
    read_until = -1
    previous: _Worked | None = None
    for step in window.steps:
        while near and near[0].step.update_end < step.schedule_start and near[0].step is not step:
            near.popleft()
        while read_until < step.update_end:
            upcoming = next(coming, None)
            if upcoming is None:
                break
            trees = [rank.outermost(upcoming) for rank in ranks]
            busy = [stretch for rank, nodes in zip(ranks, trees, strict=True) for stretch in rank.stretches(nodes)]
            near.append(_Worked(upcoming, trees, busy))
            read_until = upcoming.schedule_start
        worked = next(each for each in near if each.step is step)
        engine = [
            stretch
            for each in near
            for stretch in (
                (each.step.schedule_start, each.step.schedule_end),
                (each.step.update_start, each.step.update_end),
            )
        ]
        busy = [stretch for each in near for stretch in each.stretches]
        follows = previous is not None and previous.step.next_schedule_start == step.schedule_start
        followed = any(each.step.schedule_start == step.next_schedule_start for each in near)
        interval = _interval(worked, previous if follows else None)
        recorded = (
            step.schedule_start if follows else interval[0],
            step.update_end if followed else interval[1],
        )
        yield worked, _Surroundings(interval, recorded, _union(busy), _union(engine))
        previous = worked


def _interval(worked: _Worked, previous: _Worked | None) -> Stretch:
    """What a step adds to the clock; the intervals of steps that follow each other touch.

    From its schedule() to the end of its update_from_output() where it runs alone. Where the next one
    is scheduled before that end, its interval begins when the ranks are done with this one.
    `previous` is the step before, if that was recorded.
    """
    step = worked.step
    start = step.schedule_start
    if previous is not None:
        start = max(start, previous.interval_end)
    elif step.previous_update_end > start:  # the one before was under way, and not recorded
        start = min(max(start, worked.begin), step.previous_update_end)
    return start, max(start, worked.interval_end)


def _assemble_step(
    window: Window,
    worked: _Worked,
    around: _Surroundings,
    ranks: list[_Rank],
    engine_names: StackNames,
    make_ids: Callable[[int], Sequence[bytes]],
) -> AssembledStep:
    step = worked.step
    row, root = _row_and_root(window, step, around.interval, ranks)
    parts = []
    for rank, nodes in zip(ranks, worked.trees, strict=True):
        if step.position is None:
            continue
        spans = flatten(nodes, rank.names, root, rank.shift, _ids_for(nodes, make_ids))
        parts.append(_rank_part(row, rank, step.position, spans))
    own = _engine_nodes(step, around)
    spans = flatten(own, engine_names, root, window.clock.ticks_to_unix_nano, make_ids(len(own)))
    folded = Folded()
    # The step counts what it adds to the clock: overlapping steps would else count time twice.
    folded.add("step", row.interval_ns)
    return AssembledStep(row, root, _part(row, ENGINE_PART, -1, spans, folded, spans_made=1), parts)


def _row_and_root(window: Window, step: EngineStep, interval: Stretch, ranks: list[_Rank]) -> tuple[StepRow, Span]:
    engine, recording, counts = window.engine, window.command.recording, step.counts
    trace_id, root_id = step_ids(recording, engine["engine"], step.index)
    parent = b""
    if step.lockstep is not None and engine.get("dp_group"):
        # One trace for the whole group; its root is the step of the group's first engine.
        trace_id, group_root = group_ids(recording, engine["dp_group"], *step.lockstep)
        root_id, parent = (group_root, b"") if engine["dp_rank"] == 0 else (root_id, group_root)
    shift = window.clock.ticks_to_unix_nano
    root = Span(
        f"{counts.kind} step", "", "step", step.schedule_start + shift, step.update_end + shift, root_id, parent
    )
    row = StepRow(
        engine=engine["engine"],
        index=step.index,
        kind=counts.kind,
        mixed=counts.mixed,
        execution=_execution(step, ranks) or engine["execution"],
        start_unix_nano=root.start_unix_nano,
        duration_ns=root.duration_ns,
        interval_ns=interval[1] - interval[0],
        context_tokens=counts.context_tokens,
        generation_tokens=counts.generation_tokens,
        requests=counts.requests,
        resumed=counts.resumed,
        speculative_tokens=counts.speculative_tokens,
        trace_id=trace_id.hex(),
    )
    if row.overlapped:
        root.counted_ns = row.interval_ns
    return row, root


def _execution(step: EngineStep, ranks: list[_Rank]) -> str:
    if step.position is None:
        return ""
    told = [rank.executions[step.position] for rank in ranks if step.position < len(rank.executions)]
    return "+".join(sorted(set(filter(None, told))))


def _engine_nodes(step: EngineStep, around: _Surroundings) -> list[Node]:
    """The engine's own frames. What of them ran beside a rank at work is not on the clock and counts nothing.

    `wait` is what is left of the step's interval: neither a rank nor the engine was at work, on
    this step or another one.
    """
    if step.position is None:  # it did nothing but keep its group company
        return []
    nodes = [_engine_node(_SCHEDULE, step.schedule_start, step.schedule_end, around)]
    idle = _without(_without([around.interval], around.ranks), around.engine)
    nodes += [Node(_WAIT, start, end, []) for start, end in idle]
    nodes.append(_engine_node(_UPDATE, step.update_start, step.update_end, around))
    return nodes


def _engine_node(frame: int, start: int, end: int, around: _Surroundings) -> Node:
    on_clock = (max(start, around.recorded[0]), min(end, around.recorded[1]))
    counted = sum(rest_end - rest_start for rest_start, rest_end in _without([on_clock], around.ranks))
    return Node(frame, start, end, [], None if counted == end - start else counted)


def _union(stretches: Iterable[Stretch]) -> list[Stretch]:
    merged: list[Stretch] = []
    for start, end in sorted(stretches):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def _without(stretches: Iterable[Stretch], taken: Iterable[Stretch]) -> Iterator[Stretch]:
    """What is left of `stretches` where nothing is `taken` (sorted)."""
    for start, end in stretches:
        for taken_start, taken_end in taken:
            if taken_start >= end:
                break
            if taken_start > start:
                yield start, taken_start
            start = max(start, taken_end)
        if start < end:
            yield start, end


def _ids_for(nodes: list[Node], make_ids: Callable[[int], Sequence[bytes]]) -> Sequence[bytes]:
    count = 0
    todo = list(nodes)
    while todo:
        count += 1
        todo.extend(todo.pop().children)
    return make_ids(count)


def _rank_part(row: StepRow, rank: _Rank, position: int, spans: list[Span]) -> StepPart:
    paths = rank.folded.get(position)
    if paths is None:
        return _part(row, rank.name, rank.stage, spans, Folded())
    # Folded by the rank, which had no room for the spans: all of them count as dropped.
    folded = Folded()
    for path, inclusive_ns, calls in paths:
        folded.add(rank.names.of_path("step", path), inclusive_ns, calls)
    made = sum(folded.calls.values())
    return StepPart(_totals(row, rank.name, rank.stage, folded, made, made), [], None)


def _part(row: StepRow, rank: str, stage: int, spans: list[Span], folded: Folded, spans_made: int = 0) -> StepPart:
    for span in spans:
        folded.add(span.stack, span.total_ns)
    kept = _cap(spans)
    dropped = len(spans) - len(kept)
    totals = _totals(row, rank, stage, folded, len(spans) + spans_made, dropped)
    return StepPart(totals, kept, spans[0] if dropped else None)


def _totals(row: StepRow, rank: str, stage: int, folded: Folded, made: int, dropped: int) -> StepTotals:
    return StepTotals(
        engine=row.engine,
        rank=rank,
        stage=stage,
        index=row.index,
        kind=row.kind,
        stacks=tuple(folded.inclusive_ns),
        inclusive_ns=tuple(folded.inclusive_ns.values()),
        calls=tuple(folded.calls.values()),
        spans_made=made,
        spans_dropped=dropped,
    )


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
