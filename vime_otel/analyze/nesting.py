"""One thread's events as a tree, put to the account of the steps in which they ran."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, compress, islice
from operator import eq

from .columns import ANY_NAME, Thread
from .intervals import Interval, union
from .paths import Paths

FOREVER = 2**63
_COARSE_NS = 1000
_FINE_NS = 2
_ROWS = 50_000

Row = tuple[int, int, int, int]
"""(start, duration, name, correlation) of an event, the last -1 where it has none."""

Account = dict[int, list[int]]
"""Path → [inclusive nanoseconds, calls]."""


@dataclass
class Walked:
    """What one thread did, by paths below `root`.

    `accounts` has one for the time before the first cut, and one for each cut.
    """

    root: int
    accounts: list[Account]
    top: list[Interval] = field(default_factory=list)
    """The time that its outermost events cover."""
    ends: list[int] = field(default_factory=list)
    """For each account the latest end of an event that began in it, no later than the next cut."""
    launches: int = 0
    in_gaps: list[list[tuple[int, int, int]]] = field(default_factory=list)
    """For each gap the (begin, end, path) of what overlaps it, parents before their children, cut to the gap."""
    watched: list[tuple[int, int, int]] = field(default_factory=list)
    """(begin, end, name) of watched events that lie in no other watched one."""
    overlapping: list[Row] = field(default_factory=list)
    """What overlaps other events without nesting and was left out."""


@dataclass(frozen=True)
class WalkContext:
    """What the walks over a trace's threads share: stacks, where steps begin, gaps to explain, names to watch."""

    paths: Paths
    cuts: Sequence[int]
    coarse: bool
    gaps: Sequence[Interval] = ()
    watched: frozenset[int] = frozenset()
    annotations: frozenset[int] = frozenset()
    """Names of `record_function`'s events, where Python calls were traced, too."""
    launches: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Correlation → (account, path of the call), filled by the walks."""


def walk_thread(thread: Thread, label: str, context: WalkContext, oddities: Counter[str]) -> Iterator[Walked]:
    """What a thread did, and what a row beside it did where events overlap without nesting.

    Perfetto shows such events on a further row of the thread, too. What is out of the format is counted in `oddities`.
    """
    rows: Iterable[Row] = _in_order(thread, oddities)
    number = 1
    while True:
        root = context.paths.root(label if number == 1 else f"{label}, row {number}")
        walked = _walk(rows, root, context)
        yield walked
        if not walked.overlapping:
            return
        oddities["events that overlap others without nesting, shown in a row of their own"] += len(walked.overlapping)
        rows, walked.overlapping = walked.overlapping, []
        number += 1


def _in_order(thread: Thread, oddities: Counter[str]) -> Iterator[Row]:
    """A thread's events in order of time, a parent before its children."""
    operators, runtime = thread.operators, thread.runtime
    starts, durations, names = operators.starts, operators.durations, operators.names
    pairs = list(_pairs(thread, oddities)) if thread.marks else []
    if len(runtime) or pairs:
        starts = starts + runtime.starts + array("q", (start for start, _, _ in pairs))
        durations = durations + runtime.durations + array("q", (end - start for start, end, _ in pairs))
        names = names + runtime.names + array("i", (name for _, _, name in pairs))
    order = array("q", sorted(range(len(starts)), key=starts.__getitem__))
    in_order = map(starts.__getitem__, order)
    following = map(starts.__getitem__, islice(order, 1, None))
    ties = list(compress(range(len(order)), map(eq, in_order, following)))
    _longest_first(order, ties, starts, durations)
    correlations = array("q", [-1]) * len(operators) + (runtime.correlations or array("q"))
    correlations += array("q", [-1]) * (len(starts) - len(correlations))
    pieces = (order[begin : begin + _ROWS] for begin in range(0, len(order), _ROWS))
    columns = (starts, durations, names, correlations)
    return chain.from_iterable(zip(*(map(c.__getitem__, piece) for c in columns), strict=True) for piece in pieces)


def _longest_first(order: array[int], ties: Sequence[int], starts: Sequence[int], durations: Sequence[int]) -> None:
    """Among events that begin together the longest is the parent. `ties` are the positions that the next one equals."""
    position = 0
    while position < len(ties):
        begin = end = ties[position]
        while position < len(ties) and ties[position] == end:
            end += 1
            position += 1
        order[begin : end + 1] = array("q", sorted(order[begin : end + 1], key=lambda each: -durations[each]))


def _pairs(thread: Thread, oddities: Counter[str]) -> Iterator[tuple[int, int, int]]:
    """(begin, end, name) of begin and end events. One that never ends lasts as long as the thread's events do."""
    open_events: list[tuple[int, int]] = []
    marks = sorted(thread.marks, key=lambda mark: mark[0])
    for time, begins, name in marks:
        if begins:
            open_events.append((time, name))
            continue
        depth = next((d for d in range(len(open_events) - 1, -1, -1) if name in (open_events[d][1], ANY_NAME)), None)
        if depth is None:
            oddities["end events without a begin, left out"] += 1
            continue
        if depth < len(open_events) - 1:
            oddities["begin events that end only with the event around them"] += len(open_events) - 1 - depth
        for start, inner in open_events[depth:]:
            yield start, time, inner
        del open_events[depth:]
    if open_events:
        oddities["begin events without an end, taken to last to the end of their thread"] += len(open_events)
        lanes = (thread.operators, thread.runtime)
        last = max([marks[-1][0], *(s + d for lane in lanes for s, d in zip(lane.starts, lane.durations, strict=True))])
        for start, name in open_events:
            yield start, last, name


def _walk(rows: Iterable[Row], root: int, context: WalkContext) -> Walked:
    """The hot loop: a few million events of a large trace pass here."""
    cuts = [*context.cuts, FOREVER]
    accounts: list[Account] = [{} for _ in cuts]
    walked = Walked(root, accounts, ends=[0] * len(cuts), in_gaps=[[] for _ in context.gaps])
    tolerance = _COARSE_NS if context.coarse else _FINE_NS
    child, ids = context.paths.child, context.paths.ids
    gaps, watched, launches = [*context.gaps, (FOREVER, FOREVER)], context.watched, context.launches
    launched = len(launches)
    frames, annotations = context.paths.frames, context.annotations
    number, gap, latest = 0, 0, 0
    account, cut = accounts[0], cuts[0]
    gap_begin, gap_end = gaps[0]
    open_ends, open_paths = [FOREVER], [root]
    top: list[Interval] = []
    for start, duration, name, correlation in rows:
        end = start + duration
        while start >= cut:
            walked.ends[number] = min(latest, cut)
            number += 1
            account, cut, latest = accounts[number], cuts[number], 0
        while open_ends[-1] <= start:
            open_ends.pop()
            open_paths.pop()
        parent_end = open_ends[-1]
        if end > parent_end:
            if annotations and (name in annotations or frames[open_paths[-1]] in annotations):
                _cut_short(account, open_ends, open_paths, start, end)
                parent_end = open_ends[-1]
            if end - parent_end > tolerance:
                walked.overlapping.append((start, duration, name, correlation))
                continue
            end = min(end, parent_end)
            duration = end - start
        parent = open_paths[-1]
        path = ids.get((parent << 32) + name)
        if path is None:
            path = child(parent, name)
        if parent == root:
            top.append((start, end))
        if end > latest:
            latest = end
        if end > cut:
            _share(accounts, cuts, number, path, start, end)
        elif (entry := account.get(path)) is None:
            account[path] = [duration, 1]
        else:
            entry[0] += duration
            entry[1] += 1
        open_ends.append(end)
        open_paths.append(path)
        if correlation >= 0:
            launches[correlation] = (number, path)
        if watched and name in watched and not any(frames[above] in watched for above in open_paths[1:-1]):
            walked.watched.append((start, end, name))
        if end > gap_begin:
            while start >= gap_end:
                gap += 1
                gap_begin, gap_end = gaps[gap]
            _overlap(walked.in_gaps, gaps, gap, start, end, path)
    walked.ends[number] = latest
    walked.top = union(top)
    walked.launches = len(launches) - launched
    return walked


def _cut_short(account: Account, open_ends: list[int], open_paths: list[int], start: int, end: int) -> None:
    """Let what is open end at `start`, where something begins that outlasts it.

    An annotation begins inside of the Python call that opens it, and ends inside of the one that closes it.
    """
    while open_ends[-1] < end and open_paths[-1] in account:
        account[open_paths[-1]][0] -= open_ends[-1] - start
        open_ends.pop()
        open_paths.pop()


def _share(accounts: list[Account], cuts: Sequence[int], number: int, path: int, start: int, end: int) -> None:
    """Put an event that reaches into later steps to the account of each; its call is the first one's."""
    calls = 1
    while start < end:
        until = min(end, cuts[number])
        entry = accounts[number].setdefault(path, [0, 0])
        entry[0] += until - start
        entry[1] += calls
        start, calls = until, 0
        number += 1


def _overlap(
    in_gaps: list[list[tuple[int, int, int]]], gaps: Sequence[Interval], gap: int, start: int, end: int, path: int
) -> None:
    """Note an event in every gap that it overlaps."""
    while gaps[gap][0] < end:
        begin, stop = gaps[gap]
        if start < stop:
            in_gaps[gap].append((max(start, begin), min(end, stop), path))
        gap += 1


def innermost(overlaps: Sequence[tuple[int, int, int]]) -> dict[int, int]:
    """Path → time in which nothing else ran inside of it, of the events in one gap (see `Walked.in_gaps`)."""
    own: dict[int, int] = {}
    open_events: list[tuple[int, int]] = []
    for begin, end, path in overlaps:
        while open_events and open_events[-1][0] <= begin:
            open_events.pop()
        own[path] = own.get(path, 0) + end - begin
        if open_events:
            own[open_events[-1][1]] -= end - begin
        open_events.append((end, path))
    return own
