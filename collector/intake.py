"""The one consumer behind every OTLP door: route by recording, journal, sum, and only then acknowledge."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from vime_otel.data.journal import JournalWriter
from vime_otel.data.otlp import INSTANCE_ID

from .signals import Signal, recording_of, text_attribute
from .sums import Sums


class Taker(Protocol):
    """A recording that takes data; `append` and `add` raise OSError where the disk refuses."""

    def admits(self, engine: str) -> bool: ...
    def append(self, signal: Signal, payload: bytes) -> None: ...
    def add(self, signal: Signal, request: Any) -> int: ...


class OpenRecording:
    """A recording that takes data: its sums, and its journal, made with the first request."""

    def __init__(self, sums: Sums, journal_path: Path, engines: Collection[str], on_news: Callable[[], None]) -> None:
        """`on_news` is called after every request that was summed."""
        self.sums = sums
        self.on_news = on_news
        self.engines = frozenset(engines)
        self._journal_path = journal_path
        self._journal: JournalWriter | None = None

    def admits(self, engine: str) -> bool:
        """Whether the engine is one of those that were told to record."""
        return engine in self.engines

    def add(self, signal: Signal, request: Any) -> int:
        """Sum a request that was appended; returns how many items were malformed."""
        malformed = self.sums.add(signal, request)
        self.on_news()
        return malformed

    def append(self, signal: Signal, payload: bytes) -> None:
        """Write a request into the journal. Raises OSError."""
        if self._journal is None:
            self._journal_path.parent.mkdir(parents=True, exist_ok=True)
            self._journal = JournalWriter(self._journal_path)
        self._journal.append(signal.number, payload)

    def close(self) -> None:
        """Bring the journal to the disk. Raises OSError."""
        if self._journal is not None:
            journal, self._journal = self._journal, None
            journal.close()

    def discard(self) -> None:
        """Take the journal away again, and its folder where nothing else is in it."""
        with contextlib.suppress(OSError):
            self.close()
            self._journal_path.unlink()
            self._journal_path.parent.rmdir()


@dataclass(frozen=True)
class Outcome:
    """How many spans or log records were not taken, and why."""

    rejected: int = 0
    message: str = ""


class Intake:
    """Takes decoded requests for the recordings that are open, and for those that `find` knows by their id."""

    def __init__(self, find: Callable[[str], Taker | None] = lambda recording_id: None) -> None:
        self._open: dict[str, OpenRecording] = {}
        self._find = find

    def open(self, recording: OpenRecording) -> None:
        """Begin to take data of a recording."""
        self._open[recording.sums.recording_id] = recording

    def close(self, recording_id: str) -> None:
        """Take no more data of a recording; its journal is left to the caller."""
        self._open.pop(recording_id, None)

    def take(self, signal: Signal, request: Any, payload: bytes | None) -> Outcome:
        """Journal and sum a request; `payload` is its protobuf form, or None where it came as JSON.

        Raises OSError when the disk refuses; then nothing was counted and the client may retry.
        """
        resources = signal.resources(request)
        routes = [self._route(resource) for resource in resources]
        parts: list[tuple[Taker, Any]] = []
        for recording in dict.fromkeys(route for route in routes if route is not None):
            if all(route is recording for route in routes):
                part, content = request, payload
            else:
                part, content = signal.request_type(), None
                signal.resources(part).extend(
                    resource for resource, route in zip(resources, routes, strict=True) if route is recording
                )
            recording.append(signal, part.SerializeToString() if content is None else content)
            parts.append((recording, part))
        malformed = 0
        for recording, part in parts:
            malformed += recording.add(signal, part)
        strays = [resource for resource, route in zip(resources, routes, strict=True) if route is None]
        return _outcome(signal, strays, malformed)

    def _route(self, resource: Any) -> Taker | None:
        recording_id = recording_of(resource)
        recording = self._open.get(recording_id) or self._find(recording_id)
        return recording if recording is not None and recording.admits(_engine_of(resource)) else None


def _engine_of(resource: Any) -> str:
    return text_attribute(resource.resource.attributes, INSTANCE_ID)


def _outcome(signal: Signal, strays: list[Any], malformed: int) -> Outcome:
    stray = sum(signal.count(resource) for resource in strays)
    texts = []
    if stray:
        names = sorted({_stray_name(resource) for resource in strays})
        shown = ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
        texts.append(f"{stray} {signal.name} belong to no recording that is open here ({shown})")
    if malformed:
        texts.append(f"{malformed} {signal.name} are malformed")
    return Outcome(stray + malformed, "; ".join(texts))


def _stray_name(resource: Any) -> str:
    recording = recording_of(resource)[:40]
    return f"recording {recording}, engine {_engine_of(resource)[:40]}" if recording else "no recording named"
