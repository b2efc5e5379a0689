"""A profile of no run: stacks with self values and calls, as files of other tools and our own exports hold them."""

from __future__ import annotations

from dataclasses import dataclass, field

MICROSECONDS = "microseconds"
UNITS = (MICROSECONDS, "samples", "bytes")
"""What a stack's value counts. Times of any other unit become microseconds when they are read."""


@dataclass
class Profile:
    """Self values and calls by stack, summed over `steps` steps of one kind; `invalid_lines` were skipped."""

    self_values: dict[str, int]
    calls: dict[str, int] = field(default_factory=dict)
    kind: str = "all"
    steps: int = 1
    unit: str = MICROSECONDS
    invalid_lines: int = 0
