"""Sums over chosen steps of totals.sqlite, without decoding every step: whole columns are added as wide integers."""

from __future__ import annotations

import array
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from .recording import StepTotals

_LANE = 8
"""Bytes of a value in a column: little-endian int64."""

_QUERY = (
    "SELECT stage, step, kind, stack_ids, inclusive_ns, calls, spans_made, spans_dropped FROM totals"
    " WHERE engine = ? AND rank = ? AND step >= ? AND step <= ?"
)


@dataclass
class _Sum:
    """Columns of the steps whose stacks are the same, added up; each an integer of as many lanes as stacks."""

    inclusive_ns: int = 0
    calls: int = 0
    made: int = 0
    dropped: int = 0


def sum_steps(
    connection: sqlite3.Connection, stacks: Mapping[int, str], group_of: Mapping[tuple[str, int], int]
) -> dict[int, list[StepTotals]]:
    """The totals of the steps in `group_of` ((engine, index) → group), summed within each group.

    What a group's list holds can be given to `sum_overall` and `sum_rank` as steps can. The `index` of a sum
    is 0. Raises ValueError for columns that are no totals, KeyError for an unknown stack.
    """
    sums: dict[tuple[int, str, str, int, str, bytes], _Sum] = {}
    for engine, rank in connection.execute("SELECT DISTINCT engine, rank FROM totals").fetchall():
        chosen = [index for owner, index in group_of if owner == engine]
        if not chosen:
            continue
        rows = connection.execute(_QUERY, (engine, rank, min(chosen), max(chosen)))
        for stage, step, kind, ids, inclusive_ns, calls, made, dropped in rows:
            group = group_of.get((engine, step))
            if group is None:
                continue
            if not len(ids) == len(inclusive_ns) == len(calls):
                raise ValueError(f"the columns of step {step} are of unequal length")
            total = sums.setdefault((group, engine, rank, stage, kind, ids), _Sum())
            total.inclusive_ns = _added(total.inclusive_ns, inclusive_ns)
            total.calls = _added(total.calls, calls)
            total.made += made
            total.dropped += dropped
    return _decoded(sums, stacks)


def _added(total: int, column: bytes) -> int:
    """The sum of two columns, lane by lane.

    Lanes of 63 bits can't carry into each other. Raises ValueError for negative values and greater sums.
    """
    signs = _signs(len(column))
    value = int.from_bytes(column, "little")
    if value & signs:
        raise ValueError("a time or a count is negative")
    total += value
    if total & signs:
        raise ValueError("a sum does not fit 63 bits")
    return total


@lru_cache(maxsize=64)
def _signs(size: int) -> int:
    """The sign bit of every lane of a column of `size` bytes."""
    return int.from_bytes(b"\0\0\0\0\0\0\0\x80" * (size // _LANE), "little")


def _decoded(
    sums: Mapping[tuple[int, str, str, int, str, bytes], _Sum], stacks: Mapping[int, str]
) -> dict[int, list[StepTotals]]:
    found: dict[int, list[StepTotals]] = {}
    for (group, engine, rank, stage, kind, ids), total in sums.items():
        names = tuple(stacks[number] for number in array.array("q", ids))
        found.setdefault(group, []).append(
            StepTotals(
                engine,
                rank,
                stage,
                0,
                kind,
                names,
                tuple(_lanes(total.inclusive_ns, len(names))),
                tuple(_lanes(total.calls, len(names))),
                total.made,
                total.dropped,
            )
        )
    return found


def _lanes(total: int, count: int) -> Iterator[int]:
    return iter(array.array("q", total.to_bytes(count * _LANE, "little")))
