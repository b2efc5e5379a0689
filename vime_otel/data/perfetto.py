"""A recording's spans as a Perfetto trace: one process an engine, one track a rank and one for the engine itself.

Format: https://perfetto.dev/docs/reference/synthetic-track-event. Where steps of an engine overlap, its own spans go to
further tracks, since slices of one track must nest.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from .errors import VimeOtelError
from .journal import TRACES, JournalReader
from .otlp import ENGINE_LABEL, INSTANCE_ID, MODULE, RANK, plain_attributes
from .perfetto_schema import NEEDS_STATE, SLICE_BEGIN, SLICE_END, STATE_CLEARED, Trace
from .recording import ENGINE_PART

_SEQUENCE = 1
_SHOWN_PREFIX = "vime.step."


def perfetto_trace(journal: Path) -> Iterator[bytes]:
    """The trace of all spans in a run's journal, in pieces that make one file when written in order.

    A piece holds the spans of one request. Raises VimeOtelError where there are none.
    """
    tracks = _Tracks()
    seen = False
    for frame in JournalReader(journal) if journal.exists() else ():
        if frame.signal != TRACES:
            continue
        trace = Trace()
        for group in ExportTraceServiceRequest.FromString(frame.payload).resource_spans:
            of = plain_attributes(group.resource.attributes)
            spans = [span for scope in group.scope_spans for span in scope.spans]
            tracks.add(trace, of, spans)
            seen = seen or bool(spans)
        yield trace.SerializeToString()
    if not seen:
        raise VimeOtelError(f"{journal.parent.name} holds no spans; only runs that `vime-otel collect` writes do")


class _Tracks:
    """The tracks and names that were written so far."""

    def __init__(self) -> None:
        self._uuids: dict[tuple[str, ...], int] = {}
        self._names: dict[str, int] = {}
        self._lanes: dict[tuple[str, str], list[int]] = {}
        """When each lane of a rank is free again, in Unix nanoseconds."""

    def add(self, trace: Any, of: dict[str, Any], spans: list[Any]) -> None:
        """Append the spans of one rank, which nest, or of its engine."""
        engine, rank = str(of.get(INSTANCE_ID, "?")), str(of.get(RANK, ENGINE_PART))
        label = str(of.get(ENGINE_LABEL, engine))
        by_trace: dict[bytes, list[Any]] = {}
        for span in spans:
            by_trace.setdefault(span.trace_id, []).append(span)
        for step in by_trace.values():
            begin = min(span.start_time_unix_nano for span in step)
            end = max(span.end_time_unix_nano for span in step)
            track = self._track(trace, engine, label, rank, self._lane(engine, rank, begin, end))
            for span, at, kind in _in_order(step):
                self._event(trace, track, span, at, kind)

    def _lane(self, engine: str, rank: str, begin: int, end: int) -> int:
        """The first lane of a rank that is free at `begin`."""
        lanes = self._lanes.setdefault((engine, rank), [])
        for number, free_at in enumerate(lanes):
            if free_at <= begin:
                lanes[number] = end
                return number
        lanes.append(end)
        return len(lanes) - 1

    def _track(self, trace: Any, engine: str, label: str, rank: str, lane: int) -> int:
        """The track of a rank's lane, described in the trace when it is new; so is its process."""
        process = self._uuids.get((engine,))
        if process is None:
            process = self._describe(trace, (engine,), label)
        track = self._uuids.get((engine, rank, str(lane)))
        if track is None:
            name = rank if rank == ENGINE_PART else f"rank {rank}"
            track = self._describe(trace, (engine, rank, str(lane)), f"{name} ({lane + 1})" if lane else name, process)
        return track

    def _describe(self, trace: Any, key: tuple[str, ...], name: str, parent: int | None = None) -> int:
        uuid = self._uuids[key] = len(self._uuids) + 1
        descriptor = trace.packet.add(trusted_packet_sequence_id=_SEQUENCE).track_descriptor
        descriptor.uuid, descriptor.name = uuid, name
        if parent is None:
            descriptor.process.pid, descriptor.process.process_name = uuid, name
        else:
            descriptor.parent_uuid = parent
        return uuid

    def _event(self, trace: Any, track: int, span: Any, at: int, kind: int) -> None:
        packet = trace.packet.add(timestamp=at, trusted_packet_sequence_id=_SEQUENCE)
        packet.track_event.type, packet.track_event.track_uuid = kind, track
        if kind == SLICE_END:
            return
        packet.sequence_flags = NEEDS_STATE if self._names else NEEDS_STATE | STATE_CLEARED
        iid = self._names.get(span.name)
        if iid is None:
            iid = self._names[span.name] = len(self._names) + 1
            packet.interned_data.event_names.add(iid=iid, name=span.name)
        packet.track_event.name_iid = iid
        _annotate(packet.track_event, span)


def _annotate(event: Any, span: Any) -> None:
    """What one wants to know of a slice that is clicked: the module, and of a step its numbers."""
    for key, value in plain_attributes(span.attributes).items():
        if key != MODULE and (span.parent_span_id or not key.startswith(_SHOWN_PREFIX)):
            continue
        if isinstance(value, int):  # of which bool is one
            event.debug_annotations.add(name=key, int_value=int(value))
        else:
            event.debug_annotations.add(name=key, string_value=str(value))


def _in_order(spans: list[Any]) -> Iterator[tuple[Any, int, int]]:
    """(span, Unix nanoseconds, SLICE_BEGIN or SLICE_END) in the order in which slices open and close."""
    open_spans: list[Any] = []
    depths = _depths(spans)
    ordered = sorted(
        spans, key=lambda span: (span.start_time_unix_nano, -span.end_time_unix_nano, depths[span.span_id])
    )
    for span in ordered:
        while open_spans and not _holds(open_spans[-1], span):
            closed = open_spans.pop()
            yield closed, closed.end_time_unix_nano, SLICE_END
        open_spans.append(span)
        yield span, span.start_time_unix_nano, SLICE_BEGIN
    while open_spans:
        closed = open_spans.pop()
        yield closed, closed.end_time_unix_nano, SLICE_END


def _holds(outer: Any, span: Any) -> bool:
    """Whether `outer` is still open when `span` begins; a parent that takes no time holds its children."""
    return bool(outer.end_time_unix_nano > span.start_time_unix_nano or outer.span_id == span.parent_span_id)


def _depths(spans: list[Any]) -> dict[bytes, int]:
    """How many of the spans are above each."""
    parents = {span.span_id: span.parent_span_id for span in spans}
    depths: dict[bytes, int] = {}
    for span_id in parents:
        depth, above = 0, parents[span_id]
        while above in parents and depth <= len(parents):
            depth, above = depth + 1, parents[above]
        depths[span_id] = depth
    return depths
