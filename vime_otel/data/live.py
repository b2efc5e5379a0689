"""A recording that is under way, as the files of its folder tell it: progress.json, and the journal's totals so far."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict

import msgspec
import orjson
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from .errors import VimeOtelError
from .journal import LOGS, JournalReader
from .otlp import STEP_EVENT, plain_attributes, read_totals
from .recording import Recording, StepRow, StepTotals
from .run_files import HEADER_FILE, JOURNAL_FILE

PROGRESS_FILE = "progress.json"

SILENT_SECONDS = 30.0
"""A collector writes progress.json every second or two; one that is older belongs to none."""


class EngineProgress(TypedDict):
    """How far one engine is."""

    engine: str
    label: str
    phase: str
    steps_done: int
    steps_asked: int
    reason: str | None


class UnmatchedWorker(TypedDict):
    """A worker of the router that is not recorded, and why."""

    url: str
    reason: str


class _OfEveryVersion(TypedDict):
    id: str
    state: str
    message: str
    engines: list[EngineProgress]


class Progress(_OfEveryVersion, total=False):
    """progress.json, as the collector's `GET /control/v1/recordings/<id>` answers; other keys are ignored."""

    unmatched_workers: list[UnmatchedWorker]


@dataclass
class LiveRecording:
    """One folder without recording.json; `label` and `created` may be unknown."""

    path: Path
    progress: Progress
    silent_seconds: float

    @property
    def alive(self) -> bool:
        """Whether a collector is still at work on it."""
        return self.silent_seconds <= SILENT_SECONDS

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        done = sum(min(engine["steps_done"], engine["steps_asked"]) for engine in self.progress["engines"])
        asked = sum(engine["steps_asked"] for engine in self.progress["engines"])
        return {
            **self.progress,
            "name": self.path.name,
            "alive": self.alive,
            "silent_seconds": round(self.silent_seconds, 1),
            "steps_done": done,
            "steps_asked": asked,
        }


def read_live(path: Path, now: float | None = None) -> LiveRecording | None:
    """The recording under way in this folder, or None where there is none (it may have ended)."""
    try:
        written = os.stat(path / PROGRESS_FILE).st_mtime
        content = orjson.loads((path / PROGRESS_FILE).read_bytes())
        msgspec.convert(content, Progress)
    except (OSError, orjson.JSONDecodeError, msgspec.ValidationError):
        return None
    if (path / HEADER_FILE).exists():
        return None
    return LiveRecording(path, content, max((time.time() if now is None else now) - written, 0.0))


@dataclass
class SoFar:
    """What a journal holds until now: each step's totals once. Malformed events are passed over, the run will tell."""

    rows: dict[tuple[str, int], StepRow] = field(default_factory=dict)
    totals: dict[tuple[str, str, int], StepTotals] = field(default_factory=dict)

    def recording(self) -> Recording:
        """As a recording, whose header is empty."""
        return Recording({}, list(self.rows.values()), list(self.totals.values()))


def totals_so_far(path: Path) -> SoFar:
    """The totals that have arrived for the recording in this folder; empty before the first."""
    found = SoFar()
    try:
        for frame in JournalReader(path / JOURNAL_FILE):
            if frame.signal == LOGS:
                _add(found, frame.payload)
    except (OSError, VimeOtelError):
        return found
    return found


def _add(found: SoFar, payload: bytes) -> None:
    try:
        request = ExportLogsServiceRequest.FromString(payload)
    except DecodeError:
        return
    for group in request.resource_logs:
        engine = str(plain_attributes(group.resource.attributes).get("service.instance.id", ""))
        for record in (record for scope in group.scope_logs for record in scope.log_records):
            if record.event_name != STEP_EVENT:
                continue
            try:
                read = read_totals(record, engine)
            except ValueError:
                continue
            found.totals.setdefault(read.totals.key, read.totals)
            if read.row is not None:
                found.rows.setdefault((engine, read.row.index), read.row)
