"""A run's spans as a Perfetto trace, read back with Perfetto's own classes."""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent

from vime_otel.cli.main import main
from vime_otel.data.errors import VimeOtelError
from vime_otel.data.journal import TRACES, JournalReader, JournalWriter
from vime_otel.data.otlp import resource, trace_request
from vime_otel.data.perfetto import perfetto_trace

RUN = Path(__file__).parents[1] / "data" / "run-v1"
Slice = tuple[str, int, int, int]
"""Name, begin, end, depth."""


def read(content: bytes) -> tuple[dict[int, Any], dict[int, list[Slice]]]:
    """Track descriptors by uuid, and each track's slices in the order of their beginnings."""
    descriptors: dict[int, Any] = {}
    slices: dict[int, list[Slice]] = defaultdict(list)
    stacks: dict[int, list[int]] = defaultdict(list)
    names: dict[int, str] = {}
    for packet in Trace.FromString(content).packet:
        names.update({entry.iid: entry.name for entry in packet.interned_data.event_names})
        if packet.HasField("track_descriptor"):
            descriptors[packet.track_descriptor.uuid] = packet.track_descriptor
        if not packet.HasField("track_event"):
            continue
        event = packet.track_event
        track = slices[event.track_uuid]
        if event.type == TrackEvent.TYPE_SLICE_BEGIN:
            stacks[event.track_uuid].append(len(track))
            track.append((names[event.name_iid], packet.timestamp, -1, len(stacks[event.track_uuid])))
        else:
            assert event.type == TrackEvent.TYPE_SLICE_END
            opened = stacks[event.track_uuid].pop()
            name, begin, _, depth = track[opened]
            track[opened] = (name, begin, packet.timestamp, depth)
    assert not any(stacks.values()), "every slice ends"
    return descriptors, slices


def spans_in(journal: Path) -> list[Any]:
    requests = [ExportTraceServiceRequest.FromString(f.payload) for f in JournalReader(journal) if f.signal == TRACES]
    return [
        span
        for request in requests
        for group in request.resource_spans
        for scope in group.scope_spans
        for span in scope.spans
    ]


def test_every_span_is_one_slice_on_a_track_of_its_rank() -> None:
    descriptors, slices = read(b"".join(perfetto_trace(RUN / "spans.otlp")))
    spans = spans_in(RUN / "spans.otlp")
    found = sorted(each[:3] for track in slices.values() for each in track)
    assert found == sorted((span.name, span.start_time_unix_nano, span.end_time_unix_nano) for span in spans)
    engines = {uuid for uuid, descriptor in descriptors.items() if descriptor.HasField("process")}
    ranks = {descriptor.name for uuid, descriptor in descriptors.items() if uuid not in engines}
    assert {descriptors[uuid].parent_uuid for uuid in slices} == engines
    assert {"engine", "rank 0"} <= ranks


def test_slices_nest_as_the_spans_do() -> None:
    _, slices = read(b"".join(perfetto_trace(RUN / "spans.otlp")))
    spans = spans_in(RUN / "spans.otlp")
    for track in slices.values():
        open_until: list[int] = []
        for _, begin, end, depth in track:
            open_until = [*open_until[: depth - 1], end]
            assert all(outer >= end for outer in open_until)
            assert begin <= end
    by_id = {span.span_id: span for span in spans}
    depth_of = {each[:3]: each[3] for track in slices.values() for each in track}
    # A rank's outermost span lies below its engine's step, which is on another track.
    leaf = next(span for span in spans if getattr(by_id.get(span.parent_span_id), "parent_span_id", b"") in by_id)
    parent = by_id[leaf.parent_span_id]

    def depth(span: Any) -> int:
        return depth_of[span.name, span.start_time_unix_nano, span.end_time_unix_nano]

    assert depth(leaf) == depth(parent) + 1


def test_steps_that_overlap_go_to_tracks_of_their_own(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path / "spans.otlp")
    template = spans_in(RUN / "spans.otlp")[0]
    of = resource({"service.instance.id": "e", "vime.rank": "engine", "vime.engine.label": "host:1/0"})
    for number, (begin, end) in enumerate([(0, 10), (5, 15), (10, 20), (10, 10)]):
        span = type(template)(name="step", trace_id=bytes([number] * 16), span_id=bytes([number + 1] * 8))
        span.start_time_unix_nano, span.end_time_unix_nano = begin, end
        writer.append(TRACES, trace_request(of, [span]).SerializeToString())
    writer.close()
    descriptors, slices = read(b"".join(perfetto_trace(tmp_path / "spans.otlp")))
    assert {descriptors[uuid].name: [each[1:3] for each in track] for uuid, track in slices.items()} == {
        "engine": [(0, 10), (10, 20)],
        "engine (2)": [(5, 15)],
        "engine (3)": [(10, 10)],
    }


def test_a_run_without_spans_says_so(tmp_path: Path) -> None:
    with pytest.raises(VimeOtelError, match="holds no spans"):
        list(perfetto_trace(tmp_path / "spans.otlp"))


def test_export_writes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.pftrace"
    assert main(["export", str(RUN), "--format", "perfetto", "-o", str(path)]) == 0
    assert path.read_bytes() == b"".join(perfetto_trace(RUN / "spans.otlp"))
    assert "ui.perfetto.dev" in capsys.readouterr().out
    for option in (["--mixed", "out"], ["--steps", "1"], ["--kind", "decode"]):
        assert main(["export", str(RUN), "--format", "perfetto", *option]) == 2
        assert f"{option[0]} is not of --format perfetto" in capsys.readouterr().err
    to_stdout = [sys.executable, "-m", "vime_otel", "export", str(RUN), "--format", "perfetto"]
    assert subprocess.run(to_stdout, capture_output=True, check=True).stdout == path.read_bytes()
