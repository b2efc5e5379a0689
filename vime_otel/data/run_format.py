"""The JSON files of a run as type hints, for msgspec to check what was read; see docs/formats.md."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypedDict

import msgspec

from .recording import StepRow

Id = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{16}$")]
KIND = "[a-z][a-z0-9_-]{0,31}"
"""A kind of step; it is part of files' names."""

Kind = Annotated[str, msgspec.Meta(pattern=f"^{KIND}$")]


class Rank(TypedDict, total=False):
    """One of an engine's `ranks`."""

    rank: str
    stage: int
    spans: int
    dropped: int


class Hooks(TypedDict, total=False):
    """An engine's `hooks`."""

    found: list[str]
    missing: list[str]


class Overhead(TypedDict, total=False):
    """An engine's `overhead`."""

    span_ns: float
    sync_ns: float
    spans_per_step: float
    added_us_per_step: float


class Pace(TypedDict, total=False):
    """What unrecorded steps took, in an engine's `unrecorded`."""

    batch: int
    before_ms: float | None
    after_ms: float | None


class Unrecorded(TypedDict, total=False):
    """An engine's `unrecorded`."""

    decode: Pace


class Engine(TypedDict, total=False):
    """One of the header's `engines`."""

    id: str
    label: str | None
    model: str | None
    vllm_version: str | None
    host: str | None
    pid: int | None
    execution: str | None
    steps: dict[Kind, int]
    ranks: list[Rank]
    pause_ms: float
    errors: list[str]
    complete: bool
    hooks: Hooks | None
    overhead: Overhead | None
    unrecorded: Unrecorded | None
    notes: list[str]


class Counts(TypedDict, total=False):
    """The header's `spans` and `totals`."""

    expected: int
    received: int
    duplicate: int
    dropped: int


class Traces(TypedDict, total=False):
    """The header's `traces`, of a run that holds another service's spans."""

    folded: int
    orphans: int
    overlapping: int


class Taken(TypedDict, total=False):
    """What became of the items that were accepted, in the header's `intake`."""

    accepted: int
    kept: int
    duplicate: int
    dropped: dict[str, int]


class Intake(TypedDict, total=False):
    """The header's `intake`."""

    spans: Taken
    log_records: Taken


class _Identified(TypedDict):
    id: Id


class Header(_Identified, total=False):
    """recording.json: what is read of it. Every key but the id may be absent."""

    label: str | None
    complete: bool | None
    reasons: list[str]
    notes: list[str]
    created: str
    asked: dict[str, Any]
    timing: str
    pause_ms: float
    overlap_ns: int
    unit: Literal["microseconds", "samples", "bytes"]
    source: str
    service: str
    traces: Traces
    intake: Intake
    trace_link: str | None
    engines: list[Engine]
    spans: Counts
    totals: Counts
    versions: dict[str, Any]


class Steps(TypedDict):
    """steps.json: what is read of it."""

    steps: dict[Kind, int]
    rows: list[StepRow]
