"""The recorders that poll: who they are, where they stand, and the command that each is to get."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .messages import BUSY_PHASES, Introduction, Poll, Status
from .refused import RefusedPolls

LONGEST_POLL_S = 60.0
BUSY_POLL_S = 0.5
"""While a recorder works on a recording its polls return at least this often, as signs of life."""


@dataclass(frozen=True)
class Command:
    """A command on its way to one recorder; `body` is what it gets, its `id` included."""

    id: str
    body: dict[str, Any]


@dataclass
class Recorder:
    """One recorder; times in seconds of the monotonic clock."""

    introduction: Introduction
    status: Status
    first_seen: float
    last_seen: float
    open_polls: int = 0
    command: Command | None = None
    woken: asyncio.Event = field(default_factory=asyncio.Event)

    def silent_seconds(self) -> float:
        """How long nothing was heard; 0 while a poll waits."""
        return 0.0 if self.open_polls else time.monotonic() - self.last_seen


class Recorders:
    """All recorders that are known; those silent for `forget_seconds` are forgotten."""

    def __init__(self, on_poll: Callable[[Poll], None], forget_seconds: float) -> None:
        """`on_poll` is called with each poll as it comes in."""
        self._known: dict[str, Recorder] = {}
        self._on_poll = on_poll
        self._forget_seconds = forget_seconds
        self._closing = False
        self.refused = RefusedPolls(forget_seconds)

    async def poll(self, poll: Poll) -> Command | None:
        """Note what a recorder tells and wait for a command other than the one it has seen."""
        now = time.monotonic()
        recorder = self._known.get(poll.recorder.engine)
        if recorder is None:
            recorder = Recorder(poll.recorder, poll.status, now, now)
            self._known[poll.recorder.engine] = recorder
        recorder.introduction, recorder.status = poll.recorder, poll.status
        self._on_poll(poll)
        longest = BUSY_POLL_S if poll.status.phase in BUSY_PHASES else LONGEST_POLL_S
        deadline = now + min(poll.wait_seconds, longest)
        recorder.open_polls += 1
        try:
            while recorder.command is None or recorder.command.id == poll.seen:
                remaining = deadline - time.monotonic()
                if remaining <= 0 or self._closing:
                    return None
                await _wait(recorder.woken, remaining)
            return recorder.command
        finally:
            recorder.open_polls -= 1
            recorder.last_seen = time.monotonic()

    def send(self, engine: str, command: Command) -> None:
        """Give a recorder a command in place of any earlier one; it gets it with its next poll at the latest."""
        recorder = self._known.get(engine)
        if recorder is not None:
            recorder.command = command
            self._wake(recorder)

    def alive(self) -> list[Recorder]:
        """The recorders that were heard lately, in the order of their coming."""
        for engine, recorder in list(self._known.items()):
            if recorder.silent_seconds() > self._forget_seconds:
                del self._known[engine]
        return list(self._known.values())

    def introductions(self, silent_seconds: float) -> list[Introduction]:
        """What those told of themselves that were heard within `silent_seconds`."""
        return [each.introduction for each in self.alive() if each.silent_seconds() <= silent_seconds]

    def silent_seconds(self, engine: str) -> float:
        """How long nothing was heard of an engine; infinite for one that is not known."""
        recorder = self._known.get(engine)
        return recorder.silent_seconds() if recorder else float("inf")

    def close(self) -> None:
        """End every poll that waits, and those to come, at once."""
        self._closing = True
        for recorder in self._known.values():
            self._wake(recorder)

    @staticmethod
    def _wake(recorder: Recorder) -> None:
        recorder.woken.set()
        recorder.woken = asyncio.Event()


async def _wait(event: asyncio.Event, seconds: float) -> None:
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except asyncio.TimeoutError:
        return
