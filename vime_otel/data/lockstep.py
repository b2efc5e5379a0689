"""Where engines that run in lockstep stand, and where they can begin to record together."""

from __future__ import annotations

import math
from collections.abc import Sequence

Position = tuple[int, int]
"""(wave, step of the wave): the same on all engines of a group."""

_LEAST_LEAD_STEPS = 64
_LEAD_SECONDS = 2.0
"""A working group starts so far ahead that the command reaches all its engines before."""


def start_position(stands: Sequence[tuple[Position, float]]) -> Position:
    """Where a group starts whose engines stand at these positions and make so many steps a second.

    A group that is idle starts with its next step.
    """
    wave, step = max(position for position, _ in stands)
    if all(position[1] == 0 for position, _ in stands):
        return wave, step
    ahead = math.ceil(_LEAD_SECONDS * max(per_second for _, per_second in stands))
    return wave, step + max(_LEAST_LEAD_STEPS, ahead)
