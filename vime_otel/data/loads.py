"""The work that two recordings were given: whether it is alike, and which of their steps are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .recording import StepRow

LIKE = 1.1
"""Medians that differ by less than this factor are alike; buckets of tokens are as wide."""

_LOAD = (
    ("requests", "requests a step"),
    ("context_tokens", "context tokens"),
    ("generation_tokens", "generated tokens"),
)


@dataclass(frozen=True)
class Load:
    """One number of the steps' work on each side: medians and the middle half (quartiles); alike or not."""

    name: str
    a: tuple[float, float, float]
    b: tuple[float, float, float]
    alike: bool


def compare_loads(a: Sequence[StepRow], b: Sequence[StepRow]) -> list[Load]:
    """The numbers that say how much work a step is; none where a side has no rows."""
    if not a or not b:
        return []
    loads = []
    for attribute, name in _LOAD:
        quartiles_a, quartiles_b = (_quartiles([getattr(row, attribute) for row in rows]) for rows in (a, b))
        if quartiles_a[2] or quartiles_b[2]:
            loads.append(Load(name, quartiles_a, quartiles_b, _alike(quartiles_a[1], quartiles_b[1])))
    return loads


def _alike(one: float, other: float) -> bool:
    low, high = sorted((one, other))
    return high <= low * LIKE


def _quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    ordered = sorted(values)
    return tuple(float(ordered[round(share * (len(ordered) - 1))]) for share in (0.25, 0.5, 0.75))  # type: ignore[return-value]


def match(a: Sequence[StepRow], b: Sequence[StepRow]) -> tuple[list[StepRow], list[StepRow]]:
    """As many steps of each side in every bucket of tokens, evenly chosen where one side has more."""
    buckets_a, buckets_b = _buckets(a), _buckets(b)
    chosen_a: list[StepRow] = []
    chosen_b: list[StepRow] = []
    for bucket in sorted(buckets_a.keys() & buckets_b.keys()):
        count = min(len(buckets_a[bucket]), len(buckets_b[bucket]))
        chosen_a += _evenly(buckets_a[bucket], count)
        chosen_b += _evenly(buckets_b[bucket], count)
    return in_time(chosen_a), in_time(chosen_b)


def _buckets(rows: Sequence[StepRow]) -> dict[tuple[int, ...], list[StepRow]]:
    found: dict[tuple[int, ...], list[StepRow]] = {}
    for row in rows:
        amounts = (row.requests, row.context_tokens, row.generation_tokens)
        found.setdefault(tuple(round(math.log(amount + 1, LIKE)) for amount in amounts), []).append(row)
    return found


def _evenly(rows: Sequence[StepRow], count: int) -> list[StepRow]:
    return [rows[number * len(rows) // count] for number in range(count)]


def in_time(rows: Sequence[StepRow]) -> list[StepRow]:
    """The steps in the order in which they began."""
    return sorted(rows, key=lambda row: (row.start_unix_nano, row.engine, row.index))
