"""Writes a window below VIME_OTEL_DIR, and merges the engines' parts when the last one is done."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from vime_otel.data.recording import Recording, StepRow, StepTotals
from vime_otel.data.rundir import RunDirectory
from vime_otel.data.summary import make_notes
from vime_otel.data.write_run import write_run

from .assemble import assemble
from .overhead import overhead
from .shared_directory import SharedDirectory
from .window import Window

_TOLD = ("label", "model", "vllm_version", "host", "pid", "execution", "decode_tokens")
_ASKED = ("steps", "kind", "timing", "force_eager", "per_layer")


def write_window(window: Window | None, directory: Path, start: str) -> None:
    """Write this engine's part (None: it is written already); then merge if all living engines are done.

    Raises OSError when the directory refuses. An engine that is alone writes straight into it.
    """
    engine = window.engine["engine"] if window is not None else ""
    shared = SharedDirectory(directory, engine)
    with shared.locked():
        living = set(shared.living())
        if window is not None:
            alone = living <= {engine} and not shared.vanished(start) and not _parts(directory, start)
            # One that was called off before its first step leaves an older recording alone; a lockstep
            # group's recording tells which engine could not join.
            if window.steps or (window.outcome == "failed" and not alone):
                write_run(directory if alone else directory / engine, to_recording(window))
            shared.mark_done(start)
            if alone:
                shared.remove_start(start)
                return
        if shared.all_done(start):
            parts = [RunDirectory(path).recording() for path in _parts(directory, start)]
            if parts:
                vanished = [f"{label}: it vanished while recording" for label in shared.vanished(start)]
                write_run(directory, merge(parts, vanished))
            shared.remove_start(start)


def _parts(directory: Path, recording_id: str) -> list[Path]:
    found = []
    for path in sorted(directory.iterdir()):
        if (path / "recording.json").is_file() and RunDirectory(path).id == recording_id:
            found.append(path)
    return found


def to_recording(window: Window) -> Recording:
    """One engine's window as a recording."""
    rows: list[StepRow] = []
    totals: list[StepTotals] = []
    for step in assemble(window):
        rows.append(step.row)
        totals += [part.totals for part in step.parts]
    reasons = list(dict.fromkeys(window.reasons))
    made = sum(part.spans_made for part in totals)
    dropped = sum(part.spans_dropped for part in totals)
    engine = window.engine
    header = _header(
        window.command.recording,
        reasons,
        [
            {
                "id": engine["engine"],
                "steps": {kind: sum(row.kind == kind for row in rows) for kind in sorted({row.kind for row in rows})},
                "ranks": [{"rank": str(log.rank), "stage": log.stage} for log in window.ranks],
                "pause_ms": window.pause_ns / 1e6,
                "errors": reasons,
                "complete": not reasons,
                "hooks": {"found": window.hooks_found, "missing": window.hooks_missing},
                "overhead": overhead(window, made, len(rows)),
                "unrecorded": window.unrecorded,
                "notes": window.notes,
                **{key: engine[key] for key in _TOLD},
            }
        ],
        {name: getattr(window.command, name) for name in _ASKED},
        {"expected": made - dropped, "received": made - dropped, "duplicate": 0, "dropped": dropped},
        len(totals),
        engine["vime_otel_version"],
    )
    recording = Recording(header, rows, totals)
    return _with_sums(recording)


def merge(parts: list[Recording], reasons: list[str]) -> Recording:
    """The recordings of several engines, made on one order, as one; `reasons` why some of them have none."""
    headers = [part.header for part in parts]
    header = _header(
        headers[0]["id"],
        list(dict.fromkeys([*reasons, *(reason for h in headers for reason in h["reasons"])])),
        [engine for h in headers for engine in h["engines"]],
        headers[0]["asked"],
        {name: sum(h["spans"][name] for h in headers) for name in headers[0]["spans"]},
        sum(h["totals"]["expected"] for h in headers),
        headers[0]["versions"]["vime_otel"],
    )
    rows = [row for part in parts for row in part.rows]
    totals = [total for part in parts for total in part.totals]
    return _with_sums(Recording(header, rows, totals))


def _header(
    recording_id: str,
    reasons: list[str],
    engines: list[dict[str, Any]],
    asked: dict[str, Any],
    spans: dict[str, int],
    totals: int,
    version: str,
) -> dict[str, Any]:
    return {
        "id": recording_id,
        "label": None,
        "complete": not reasons,
        "reasons": reasons,
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "asked": asked,
        "decode_tokens": engines[0]["decode_tokens"],
        "timing": asked["timing"],
        "pause_ms": max((engine["pause_ms"] for engine in engines), default=0.0),
        "engines": engines,
        "spans": spans,
        "totals": {"expected": totals, "received": totals, "duplicate": 0},
        "versions": {"vime_otel": version, "vllm": sorted({engine["vllm_version"] for engine in engines})},
    }


def _with_sums(recording: Recording) -> Recording:
    """The recording with what its header tells of all its steps together."""
    recording.header["overlap_ns"] = recording.overlap_ns()
    recording.header["notes"] = make_notes(recording.header["engines"], recording.rows)
    return recording
