"""What one recorded span costs on this machine."""

from __future__ import annotations

import time

from .eventlog import EventLog

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
