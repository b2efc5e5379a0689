"""The log events of recorders: step totals and closing events, read strictly. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, get_type_hints

from vime_otel.data.otlp import CLOSING_EVENT, INSTANCE_ID, STEP_EVENT, ReadTotals, plain_value, read_totals
from vime_otel.data.recording import ENGINE_PART, IDLE, KINDS, StepRow

from ..otlp.signals import LOGS, text_attribute

_MOST = 2**53
"""Nanoseconds or calls of a step; so that many can be added up in 64 bits."""

_TRACE_ID_BYTES = 16
_ROW_TYPES: dict[str, type] = get_type_hints(StepRow)


@dataclass(frozen=True)
class Part:
    """What an engine's closing event says that it sent of one rank (or of itself)."""

    rank: str
    stage: int
    totals: int
    spans: int
    dropped: int

    @property
    def name(self) -> str:
        """For people: `rank 3`, or `the engine process`."""
        return "the engine process" if self.rank == ENGINE_PART else f"rank {self.rank}"


@dataclass(frozen=True)
class Closing:
    """An engine's closing event; docs/formats.md lists the body."""

    engine: str
    parts: tuple[Part, ...]
    body: dict[str, Any]

    @classmethod
    def read(cls, engine: str, body: Any) -> Closing:
        """From the event's body; raises ValueError where it is malformed."""
        try:
            parts = tuple(
                Part(
                    str(part["rank"]),
                    int(part["stage"]),
                    int(part["totals"]),
                    int(part["spans"]),
                    int(part["dropped"]),
                )
                for part in body["parts"]
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"a {CLOSING_EVENT} event is malformed: {error!r}") from error
        return cls(engine, parts, body)


@dataclass(frozen=True)
class StepEvent:
    """A `vime.step.folded` event: the totals, the row where it has one, and the step's trace id."""

    read: ReadTotals
    trace_id: bytes


class Malformed:
    """Stands for an event of ours that can't be read."""


class Other:
    """Stands for a log record that is no event of ours."""


def read_records(request: Any) -> Iterator[StepEvent | Closing | Malformed | Other]:
    """What each log record of a request is, in their order."""
    for resource in LOGS.resources(request):
        engine = text_attribute(resource.resource.attributes, INSTANCE_ID)
        for record in LOGS.items(resource):
            try:
                yield _read(record, engine)
            except (ValueError, OverflowError):
                yield Malformed()


def _read(record: Any, engine: str) -> StepEvent | Closing | Other:
    if record.event_name == STEP_EVENT:
        read = read_totals(record, engine)
        _validate(read, record.trace_id)
        return StepEvent(read, record.trace_id)
    if record.event_name == CLOSING_EVENT:
        return Closing.read(engine, plain_value(record.body))
    return Other()


def _validate(read: ReadTotals, trace_id: bytes) -> None:
    """Raise ValueError for what could not be written or checked.

    That is numbers beyond 64 bits, a row's field of another type, a kind that is none, no trace.
    """
    part = read.totals
    if part.kind not in (*KINDS, IDLE):
        raise ValueError(f"a {STEP_EVENT} event is of kind {part.kind!r:.40}")
    if len(trace_id) != _TRACE_ID_BYTES:
        raise ValueError(f"a {STEP_EVENT} event has no trace id")
    numbers = (part.index, part.stage, part.spans_made, part.spans_dropped, *part.inclusive_ns, *part.calls)
    if not all(-1 <= number <= _MOST for number in numbers):
        raise ValueError(f"a {STEP_EVENT} event has a number out of range")
    if read.row is not None:
        for name, wanted in _ROW_TYPES.items():
            value = getattr(read.row, name)
            if type(value) is not wanted:
                raise ValueError(f"a {STEP_EVENT} event has {name}={value!r}, which is no {wanted.__name__}")
