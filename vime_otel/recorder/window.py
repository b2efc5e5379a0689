"""What one engine has recorded, on its way from the engine to the exporter subprocess."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Command:
    """An order to record: `steps` steps (only those of `kind`, if given, count).

    `deadline_seconds` runs from the receipt; None is no deadline.
    """

    recording: str
    steps: int
    kind: str | None = None
    timing: str = "sync"
    deadline_seconds: float | None = None


@dataclass(frozen=True)
class StepCounts:
    """A scheduler output in numbers; see `data.recording.StepRow`."""

    kind: str
    mixed: bool
    context_tokens: int
    generation_tokens: int
    requests: int
    resumed: int = 0
    speculative_tokens: int = 0


@dataclass
class EngineStep:
    """One step as the engine process saw it; times in its perf_counter_ns ticks."""

    index: int
    counts: StepCounts
    schedule_start: int
    schedule_end: int
    update_start: int = 0
    update_end: int = 0
    previous_update_end: int = 0


@dataclass(frozen=True)
class Clock:
    """What `perf_counter_ns` and `time_ns` said at one moment of one boot of one host."""

    host: str
    ticks: int
    unix_nano: int

    @property
    def ticks_to_unix_nano(self) -> int:
        """To be added to ticks."""
        return self.unix_nano - self.ticks


@dataclass(frozen=True)
class RankLog:
    """One rank's event log: `entries` packed as int64, `starts` where each step's entries begin."""

    rank: int
    stage: int
    pid: int
    clock: Clock
    frames: list[tuple[str, str]]
    entries: bytes
    starts: list[int]


@dataclass
class Window:
    """One engine's part of a recording, still as ticks and flat logs."""

    command: Command
    engine: dict[str, Any]
    clock: Clock
    steps: list[EngineStep] = field(default_factory=list)
    ranks: list[RankLog] = field(default_factory=list)
    pause_ns: int = 0
    hooks_found: list[str] = field(default_factory=list)
    hooks_missing: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    outcome: str = "done"
