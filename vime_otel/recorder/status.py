"""What doors tell of an engine: where its recording stands, and how its last ones ended."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

from vime_otel.data.lockstep import Position

ACTIVE_PHASES = ("armed", "recording", "exporting")

REMEMBERED = 16
"""Recordings whose end is remembered."""

_Value = TypeVar("_Value")


@dataclass(frozen=True)
class Status:
    """What a door tells of the engine; see docs/formats.md for the phases."""

    phase: str = "idle"
    recording: str | None = None
    steps_done: int = 0
    steps_asked: int = 0
    reason: str | None = None
    position: Position | None = None
    steps_per_second: float = 0.0


class Endings:
    """How the last recordings ended, or that they wait: one door may have begun the next before another asks.

    Callers take care that only one thread writes at a time; `get` may be called on any.
    """

    def __init__(self) -> None:
        self._latest: dict[str, Status] = {}
        self._outcomes: dict[str, Status] = {}
        self._gone: dict[str, str | None] = {}

    def get(self, recording: str) -> Status | None:
        """The last status of a recording that is over, or waits; None for one that is at work, or not remembered."""
        return self._latest.get(recording)

    def note(self, status: Status) -> Status:
        """Remember how the status' recording ended; returns the status."""
        _remember(self._latest, status.recording or "", status)
        return status

    def exported(self, outcome: Status, error: str | None, waits: bool) -> Status:
        """The recording ended with `outcome`, but for an `error` of its export, after which it `waits` or failed."""
        recording = outcome.recording or ""
        if not waits:
            return self.note(_with(outcome, "failed", error))
        if recording in self._gone:
            return self.note(_with(outcome, "failed", self._gone[recording]))
        _remember(self._outcomes, recording, outcome)
        return self.note(_with(outcome, "waiting", error))

    def gone(self, recording: str, error: str | None) -> Status | None:
        """It waits no more: its end, or None where it did not wait. It may do so later: what is told counts then."""
        _remember(self._gone, recording, error)
        outcome = self._outcomes.pop(recording, None)
        return None if outcome is None else self.note(_with(outcome, "failed", error))


def _with(status: Status, phase: str, error: str | None) -> Status:
    """The status, or where there is an error one in `phase` with that among the reasons."""
    if error is None:
        return status
    return replace(status, phase=phase, reason="; ".join(filter(None, (status.reason, error))))


def _remember(values: dict[str, _Value], recording: str, value: _Value) -> None:
    values.pop(recording, None)
    values[recording] = value
    if len(values) > REMEMBERED:
        del values[next(iter(values))]
