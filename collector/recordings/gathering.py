"""Whether a recording has all that it will get: what its engines say, what has come, how long neither was heard of."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence

from ..totals.sums import Sums
from .engine_part import EnginePart
from .messages import Poll
from .patience import Patience
from .recorders import Recorders

_SENDING = ("exporting", "waiting")


class Gathering:
    """Of one recording. With `resumed` another collector began it, and its engines are yet to find this one."""

    def __init__(
        self, recording_id: str, recorders: Recorders, patience: Patience, sums: Sums, resumed: bool = False
    ) -> None:
        self._id = recording_id
        self._recorders = recorders
        self._patience = patience
        self._sums = sums
        self._resumed_at = time.monotonic() if resumed else None
        self._last_news = time.monotonic()
        self._last_data = -math.inf
        self._heard: set[str] = set()
        self._elsewhere: set[str] = set()
        self.stopped = False
        """Whether the user, or the collector's end, waits for us."""

    def data_came(self) -> None:
        """A request was summed."""
        self._last_news = self._last_data = time.monotonic()

    def take(self, part: EnginePart, poll: Poll) -> None:
        """Take what the part's recorder tells of itself."""
        self._heard.add(part.engine)
        if self._resumed_at is not None and poll.status.recording != self._id:
            # One that does not wait tells of the past. What it had of this one may be in its outbox, or here.
            if poll.wait_seconds:
                self._elsewhere.add(part.engine)
            return
        self._elsewhere.discard(part.engine)
        if part.update(self._id, poll.status, poll.seen):
            self._last_news = time.monotonic()

    def all_heard(self, parts: Sequence[EnginePart]) -> bool:
        """Whether what these are at is known."""
        return self._resumed_at is None or all(part.engine in self._heard for part in parts)

    def at_work(self, part: EnginePart) -> bool:
        """Whether it has steps to make, and somebody who makes them."""
        return part.in_window and part.engine not in self._elsewhere and not self.gone(part)

    def gone(self, part: EnginePart) -> bool:
        """Whether its recorder has vanished. Its exporter lives longer: as long as that sends it has not."""
        if part.over or part.engine in self._elsewhere:
            return False
        now = time.monotonic()
        silent = self._recorders.silent_seconds(part.engine)
        if part.phase in _SENDING:
            silent = min(silent, now - self._last_data)
        if self._resumed_at is not None and not self.stopped:  # it looks for us every 2-3 s
            silent = min(silent, now - self._resumed_at)
        return silent > self._patience.silent

    def settle(self, parts: Sequence[EnginePart]) -> None:
        """End the parts of which all is here, where no word of their engines is to be expected soon."""
        for part in parts:
            no_word = (
                part.phase == "waiting"
                or part.engine in self._elsewhere
                or self._recorders.silent_seconds(part.engine) > self._patience.word
            )
            if no_word and not part.over and not self._sums.missing(part.engine):
                part.phase = "done"

    async def wait(self, parts: Sequence[EnginePart]) -> None:
        """Wait until all that was announced is here, or nothing comes any more; note what is against each part."""
        self._last_news = time.monotonic()
        while True:
            self.settle(parts)
            here = [part for part in parts if not self.gone(part)]
            limit = self._limit(here)
            if time.monotonic() - self._last_news >= limit:
                break
            await asyncio.sleep(self._patience.tick)
        for part in parts:
            if part.over:
                continue
            if part.engine in self._elsewhere:
                part.phase = "failed"
                part.reason = "it had nothing of this recording when the collector was started again"
            elif self.gone(part):
                when = "before it took the command" if part.phase == "idle" else f"while {part.phase}"
                part.problems.append(f"it vanished {when} ({part.made})")
            else:
                part.problems.append(f"it is still {part.phase} ({part.made}), and nothing came for {limit:g} s")

    def _limit(self, here: Sequence[EnginePart]) -> float:
        """So many seconds without news are the end, with these parts `here`."""
        patience = self._patience
        if all(part.over or part.engine in self._elsewhere for part in here):
            if not any(part.phase != "refused" and self._sums.missing(part.engine) for part in here):
                return 0.0
            return patience.late if self._resumed_at is None else patience.silent
        if any(part.phase in _SENDING for part in here) and not self.stopped:
            return patience.exporting
        return patience.disarming
