"""What one engine has recorded, on its way from the engine to the exporter subprocess."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vime_otel.data.lockstep import Position

MOST_NOTES = 20


@dataclass(frozen=True)
class Command:
    """An order to record: `steps` steps (only those of `kind`, if given, count).

    `deadline_seconds` runs from the receipt; None is no deadline. `every` K records one step in K.
    `together` waits for `EngineRecorder.start_at` before the first step; with `totals_only` no spans are sent.
    """

    recording: str
    steps: int
    kind: str | None = None
    timing: str = "sync"
    deadline_seconds: float | None = None
    force_eager: bool = False
    per_layer: bool = False
    every: int = 1
    together: bool = False
    totals_only: bool = False


@dataclass(frozen=True)
class WorkerOrder:
    """What a rank is told when it is armed: to record one step in `every`, `limit` of them (None: until taken)."""

    limit: int | None
    timing: str = "sync"
    force_eager: bool = False
    per_layer: bool = False
    every: int = 1
    max_spans: int = 2_000_000


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
    """One step as the engine process saw it; times in its perf_counter_ns ticks.

    `position` counts the steps that the ranks recorded, from 0; None where they recorded none, since
    the engine was idle while others of its lockstep group worked. `lockstep` is the group's position.
    `next_schedule_start` is when the next step began, recorded or not; 0 where none was seen to.
    """

    index: int
    counts: StepCounts
    schedule_start: int
    schedule_end: int
    update_start: int = 0
    update_end: int = 0
    previous_update_end: int = 0
    position: int | None = None
    lockstep: Position | None = None
    next_schedule_start: int = 0


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
    """One rank's event log.

    `entries` are packed as int64, `starts` say where each step's begin. `device` holds, packed alike,
    two ticks a span: its begin and end on the device, where device events were recorded; else it
    is empty. `folded` has, by step, what was folded on the way because the log was full: (path of
    frame numbers, inclusive ns, calls); of such a step only the outermost spans are in the log.
    `sync_ns` is what one device synchronisation costs when there is nothing to wait for.
    """

    rank: int
    stage: int
    pid: int
    clock: Clock
    frames: list[tuple[str, str]]
    entries: bytes
    starts: list[int]
    device: bytes = b""
    folded: Mapping[int, list[tuple[tuple[int, ...], int, int]]] = field(default_factory=dict)
    executions: list[str] = field(default_factory=list)
    sync_ns: float = 0.0


@dataclass
class Window:
    """One engine's part of a recording, still as ticks and flat logs.

    `first_index` is that of its first step. `unrecorded` holds, by kind, what steps take without a
    recording, as `Pace.beside` tells it. `events` counts what was asked of the engine meanwhile, by its
    name and the number of steps that were over. Span ids follow from `id_seed`, so that a window that is
    sent again is the same. `shortened` steps lost their spans while the window waited to be sent.
    """

    command: Command
    engine: dict[str, Any]
    clock: Clock
    steps: list[EngineStep] = field(default_factory=list)
    ranks: list[RankLog] = field(default_factory=list)
    pause_ns: int = 0
    hooks_found: list[str] = field(default_factory=list)
    hooks_missing: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    events: dict[tuple[str, int], int] = field(default_factory=dict)
    first_index: int = 0
    unrecorded: dict[str, Any] = field(default_factory=dict)
    outcome: str = "done"
    id_seed: bytes = field(default_factory=lambda: os.urandom(16))
    shortened: int = 0

    @property
    def notes(self) -> list[str]:
        """What to tell of the window, in sentences; not what is wrong with it."""
        told = [
            f"{name} was called{f' {calls} times' if calls > 1 else ''} after {steps} of the recorded steps"
            for (name, steps), calls in self.events.items()
        ]
        more = len(told) - MOST_NOTES
        if more > 0:
            told = [*told[:MOST_NOTES], f"and {more} more such calls"]
        if self.shortened:
            told.append(
                f"the spans of {self.shortened} steps were dropped in the outbox, which was full (VIME_OTEL_OUTBOX_MIB)"
            )
        return told
