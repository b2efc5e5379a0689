"""What recording costs: calibrated, and reckoned up for a window."""

from __future__ import annotations

import time

from .eventlog import EventLog
from .window import Window

_CALLS = 2000
_ROUNDS = 5


def span_cost_ns() -> float:
    """Nanoseconds that recording adds to a call (without device synchronisation): the best of some rounds."""

    def nothing() -> None:
        return None

    def measure(function: object) -> float:
        assert callable(function)
        start = time.perf_counter_ns()
        for _ in range(_CALLS):
            function()
        return (time.perf_counter_ns() - start) / _CALLS

    def ignore(error: BaseException) -> None:
        return None

    bare = min(measure(nothing) for _ in range(_ROUNDS))
    recorded = min(measure(EventLog(ignore).timed(nothing, "nothing")) for _ in range(_ROUNDS))
    return max(recorded - bare, 0.0)


def overhead(window: Window, spans: int, steps: int) -> dict[str, float]:
    """What recording added, on average and by calculation: `spans` were made in `steps`, on all ranks together.

    `span_ns` and `sync_ns` are the calibrated costs of one span and of one synchronisation of an idle
    device; `added_us_per_step` is what they come to on each rank.
    """
    ranks = max(len(window.ranks), 1)
    per_rank = spans / max(steps, 1) / ranks
    span_ns = span_cost_ns()
    sync_ns = max((log.sync_ns for log in window.ranks), default=0.0)
    return {
        "span_ns": span_ns,
        "sync_ns": sync_ns,
        "spans_per_step": spans / max(steps, 1),
        "added_us_per_step": per_rank * (span_ns + 2 * sync_ns) / 1000,
    }
