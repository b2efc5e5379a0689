"""Sums over intervals of time: (begin, end) pairs of integers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

Interval = tuple[int, int]


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The time that any interval covers, as disjoint intervals in order; touching ones become one."""
    merged: list[Interval] = []
    begin = end = None
    for start, stop in sorted(intervals):
        if end is None or start > end:
            if begin is not None and end is not None and begin < end:
                merged.append((begin, end))
            begin, end = start, stop
        elif stop > end:
            end = stop
    if begin is not None and end is not None and begin < end:
        merged.append((begin, end))
    return merged


def length(disjoint: Iterable[Interval]) -> int:
    """The time that disjoint intervals take."""
    return sum(end - begin for begin, end in disjoint)


def gaps(disjoint: Sequence[Interval]) -> Iterator[Interval]:
    """What lies between disjoint intervals in order."""
    for (_, begin), (end, _) in pairwise(disjoint):
        yield begin, end
