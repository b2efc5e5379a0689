"""A profile of no run: stacks with self values and calls, as files of other tools and our own exports hold them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from .run_format import KIND

MICROSECONDS = "microseconds"
UNITS = (MICROSECONDS, "samples", "bytes")
"""What a stack's value counts. Times of any other unit become microseconds when they are read."""


@dataclass
class Profile:
    """Self values and calls by stack, summed over `steps` steps of one kind; `invalid_lines` were skipped.

    Raises ValueError where the kind is none: it becomes a part of files' names.
    """

    self_values: dict[str, int]
    calls: dict[str, int] = field(default_factory=dict)
    kind: str = "all"
    steps: int = 1
    unit: str = MICROSECONDS
    invalid_lines: int = 0

    def __post_init__(self) -> None:
        if not re.fullmatch(KIND, self.kind):
            raise ValueError(f"{self.kind!r:.60} is no kind of step")


def count_of(value: Any) -> int:
    """A whole number of a file, from 0 on and below 2**63; raises TypeError or ValueError for anything else."""
    if isinstance(value, float) and not value.is_integer():
        raise ValueError(f"{value} is no whole number")
    number = int(value)
    if not 0 <= number < 2**63:
        raise ValueError(f"{number!s:.30} is out of range")
    return number


def unit_of(name: Any) -> str:
    """One of UNITS; raises ValueError for anything else."""
    if name not in UNITS:
        raise ValueError(f"{name!r:.60} is none of the units {', '.join(UNITS)}")
    return str(name)
