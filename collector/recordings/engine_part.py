"""One engine's part in a recording, as its polls tell it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from vime_otel.data.lockstep import Position
from vime_otel.data.summary import counted

from .messages import Introduction, Status

_OVER = frozenset({"done", "cancelled", "failed", "refused"})
_FAILED = frozenset({"failed", "refused"})
_IN_WINDOW = frozenset({"idle", "armed", "recording"})


@dataclass
class EnginePart:
    """`problems` are what the collector has against it; `reason` what the recorder said.

    `position` and `steps_per_second` are of one that waits for its lockstep group; `start_id` is the
    command that says where the group starts.
    """

    introduction: Introduction
    url: str
    steps_asked: int
    arm_id: str
    cancelled: bool = False
    phase: str = "idle"
    steps_done: int = 0
    reason: str | None = None
    position: Position | None = None
    steps_per_second: float = 0.0
    start_id: str | None = None
    seen: str | None = None
    problems: list[str] = field(default_factory=list)

    @property
    def engine(self) -> str:
        """The engine's id."""
        return self.introduction.engine

    @property
    def label(self) -> str:
        """The engine's name for people."""
        return self.introduction.label

    @property
    def made(self) -> str:
        """How many steps it made, for people."""
        return f"{self.steps_done} of {counted(self.steps_asked, 'step')} made"

    @property
    def over(self) -> bool:
        """Whether the recorder has said that nothing more will come."""
        return self.phase in _OVER

    @property
    def failed(self) -> bool:
        """Whether the recorder gave up, or would not begin."""
        return self.phase in _FAILED

    @property
    def in_window(self) -> bool:
        """Whether it still has steps to make."""
        return self.phase in _IN_WINDOW

    def update(self, recording_id: str, status: Status, seen: str | None) -> bool:
        """Take a status; returns whether it told something new of this recording."""
        refused = status.phase == "refused" and seen == self.arm_id
        if self.over or not (status.recording == recording_id or refused):
            return False
        phase = status.phase
        if phase == "idle":
            if self.phase == "idle":
                return False
            # It went on to idle between two polls without telling how it ended.
            phase = "failed" if status.reason else "done"
        self.seen, self.position, self.steps_per_second = seen, status.position, status.steps_per_second
        before = (self.phase, self.steps_done)
        self.phase, self.steps_done, self.reason = phase, status.steps_done, status.reason
        return before != (self.phase, self.steps_done)

    def complaint(self) -> str | None:
        """Why this part is not whole, in one sentence for people; None when nothing is known against it."""
        texts = list(self.problems)
        # That it was cancelled needs no words where a problem was why.
        if self.failed or (self.phase == "cancelled" and not texts):
            texts.append(f"{self.phase}: {self.reason or 'it did not say why'}")
        return f"{self.label}: {'; '.join(texts)}" if texts else None

    def as_dict(self) -> dict[str, Any]:
        """For JSON, as docs/formats.md has it."""
        return {
            "engine": self.engine,
            "label": self.label,
            "phase": self.phase,
            "steps_done": self.steps_done,
            "steps_asked": self.steps_asked,
            "reason": "; ".join(self.problems) or self.reason,
        }
