"""Starting with a lockstep group: an engine that is armed waits until the group has come to an agreed position."""

from __future__ import annotations

from collections.abc import Callable

from vime_otel.data.lockstep import Position

from .window import Command


class LockstepStart:
    """A command that waits for its group. `position` tells where the engine stands; see `data.lockstep`."""

    def __init__(self, command: Command, position: Callable[[], Position | None], clock: Callable[[], int]):
        self.command = command
        self.start: Position | None = None
        self._position = position
        self._clock = clock
        self._begun: Position | None = None
        self._since: tuple[Position, int] | None = None

    @property
    def position(self) -> Position | None:
        """Where the engine stands now."""
        return self._position()

    def begin_at(self, position: Position) -> str | None:
        """Begin there, or with the group's next wave; the answer is None, or why that can't be done any more."""
        if self._begun is not None and self._begun >= position:
            return f"the command to start with the group at {position} came when it was at {self._begun} already"
        self.start = position
        return None

    def is_due(self) -> bool:
        """Whether the step that is next is the one to begin with."""
        here = self._position()
        return self.start is not None and here is not None and here >= self.start

    def step_begins(self) -> None:
        """The engine is about to make a step, unrecorded."""
        self._begun = self._position()

    def steps_per_second(self) -> float:
        """The group's pace while it is waited for; dummy batches count, too."""
        here, now = self._position(), self._clock()
        if here is None:
            return 0.0
        (wave, step), since = self._since or (here, now)
        if self._since is None or here == (wave, step) or here[0] != wave:
            self._since = here, now
            return 0.0
        return (here[1] - step) / max(1, now - since) * 1e9
