"""How long steps take when nothing records: the figure that recorded ones are held against."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable
from statistics import median
from typing import Any

REMEMBERED = 256
"""Steps that are remembered."""

AFTER_STEPS = 16
"""Steps after a window that are waited for, if they come soon."""

AFTER_SECONDS = 0.25

_LEAST = 3


class Pace:
    """The ends of the engine's last steps, and the batch of each.

    `note` is called at every step for as long as the engine runs.
    """

    def __init__(self, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        self._clock = clock
        self._recent: deque[tuple[int, int]] = deque(maxlen=REMEMBERED)
        self._before: list[tuple[int, int]] = []
        self._after: list[tuple[int, int]] | None = None

    def note(self, requests: int) -> None:
        """A step with outputs is over; `requests` go on."""
        self._recent.append((self._clock(), requests))

    def per_second(self) -> float:
        """Steps a second, lately; 0 when none were made."""
        recent = list(self._recent)[-32:]
        if len(recent) < 2 or recent[-1][0] == recent[0][0]:
            return 0.0
        return (len(recent) - 1) / (recent[-1][0] - recent[0][0]) * 1e9

    def window_opens(self) -> None:
        """What follows is recorded."""
        self._before = list(self._recent)

    def window_closes(self) -> None:
        """What follows is not recorded."""
        self._recent.clear()

    def steps_after(self) -> int:
        """Steps since the last window."""
        return len(self._recent)

    def beside(self, batch: int) -> dict[str, Any]:
        """Unrecorded steps before and after the last window, at batches like `batch`: medians in ms, or None."""
        return {
            "batch": batch,
            "before_ms": _median_ms(self._before, batch),
            "after_ms": _median_ms(list(self._recent), batch),
        }


def _median_ms(ends: list[tuple[int, int]], batch: int) -> float | None:
    near = max(1, batch // 10)
    gaps = [end - start for (start, _), (end, requests) in itertools.pairwise(ends) if abs(requests - batch) <= near]
    return round(median(gaps) / 1e6, 4) if len(gaps) >= _LEAST else None
