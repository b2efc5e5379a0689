"""Bounded memory: what requests take while they are read, written and summed comes out of one budget.

Where it is spent, requests wait for a moment, then they are refused with an answer that asks to try again.
"""

from __future__ import annotations

import asyncio
from collections import deque

from ..counts import Counts

DEFAULT_LIMIT_BYTES = 256 * 1024 * 1024
RETRY_SECONDS = 1
"""What a refused client is asked to wait."""

_MOST_WAITING = 1000
_LONGEST_WAIT_S = 2.0


class Overloaded(Exception):
    """There is no room for the request now; the client may try again."""

    def __init__(self) -> None:
        super().__init__(f"the collector has more requests than it can take; try again in {RETRY_SECONDS} s")


class Room:
    """What one request has of the budget. A context manager that gives it back."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._bytes = 0

    async def take(self, total: int) -> None:
        """Have `total` bytes in all, waiting for them if need be. Raises Overloaded."""
        more = total - self._bytes
        if more > 0:
            await self._budget.take(more, alone=self._bytes)
        else:
            self._budget.give(-more)
        self._bytes = total

    def __enter__(self) -> Room:
        self._budget.counts.pending_requests += 1
        return self

    def __exit__(self, *_: object) -> None:
        self._budget.counts.pending_requests -= 1
        self._budget.give(self._bytes)


class Budget:
    """A number of bytes that requests share; belongs to the event loop."""

    def __init__(self, counts: Counts, limit_bytes: int) -> None:
        self.counts = counts
        counts.memory_limit_bytes = limit_bytes
        self._limit = limit_bytes
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def room(self) -> Room:
        """Room for a request, none taken yet."""
        return Room(self)

    async def take(self, wanted: int, alone: int = 0) -> None:
        """Take bytes, first come first served; a request that has the `alone` bytes that are taken may have any.

        Raises Overloaded where too many wait, or it takes too long.
        """
        if not self._waiting and self._fits(wanted, alone):
            self.counts.pending_bytes += wanted
            return
        # One that holds bytes must not wait behind those that wait for them.
        if alone or len(self._waiting) >= _MOST_WAITING:
            raise Overloaded
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((wanted, turn))
        try:
            await asyncio.wait_for(turn, _LONGEST_WAIT_S)
        except asyncio.TimeoutError:
            if not turn.done() or turn.cancelled():  # Python 3.12 may time out in the moment in which it is granted
                raise Overloaded from None
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give(wanted)
            raise

    def give(self, taken: int) -> None:
        """Give bytes back; whoever waits for them gets them."""
        self.counts.pending_bytes -= taken
        while self._waiting:
            wanted, turn = self._waiting[0]
            if not turn.done():
                if not self._fits(wanted, 0):
                    return
                self.counts.pending_bytes += wanted
                turn.set_result(None)
            self._waiting.popleft()

    def _fits(self, wanted: int, alone: int) -> bool:
        taken = self.counts.pending_bytes
        return taken + wanted <= self._limit or taken == alone
