"""The content of recording.json, and why a recording is not complete. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec
import orjson

from vime_otel.data import run_format
from vime_otel.data.recording import ENGINE_PART, Recording, StepRow
from vime_otel.data.summary import counted, make_notes

from ..otlp.signals import KEPT
from ..totals.span_check import Checked
from ..totals.sums import Sums
from .engine_part import EnginePart
from .messages import RecordingRequest
from .selection import Unmatched


def reasons(
    sums: Sums, checked: Checked, parts: Sequence[EnginePart], unmatched: Sequence[Unmatched], general: Sequence[str]
) -> list[str]:
    """Why the recording is not complete, one sentence each; empty when it is. The `general` ones come first."""
    texts = list(general)
    for part in parts:
        texts += _engine_reasons(sums, part)
    if checked.mismatched:
        steps = len({(engine, index) for engine, _, index in checked.mismatched})
        texts.append(
            f"the spans of {counted(steps, 'step')} do not add up to their totals (mismatched_steps names them)"
        )
    if sums.malformed:
        texts.append(f"malformed and not in the totals: {counted(sums.malformed, 'log event')}")
    texts += [f"{each.url}: {each.reason}" for each in unmatched]
    return list(dict.fromkeys(texts))


def make_recording(
    recording_id: str,
    request: RecordingRequest,
    created: datetime,
    version: str,
    sums: Sums,
    checked: Checked,
    parts: Sequence[EnginePart],
    unmatched: Sequence[Unmatched],
    why_incomplete: list[str],
    notes: Sequence[str],
) -> Recording:
    """What a run directory is written from but each step's totals, which are summed by rank and kind here.

    `notes` stand beside those that follow from what was sent.
    """
    rows = [sums.rows[key] for key in sorted(sums.rows)]
    recording = Recording({}, rows, sums.summed_totals())
    announced = [part for closing in sums.closings.values() for part in closing.parts]
    engines = [_engine(sums, part, rows) for part in parts]
    recording.header = {
        "id": recording_id,
        "label": request.label,
        "complete": not why_incomplete,
        "reasons": why_incomplete,
        "notes": [*make_notes(engines, rows), *notes, *_unchecked(checked)],
        "created": created.isoformat(timespec="milliseconds"),
        "asked": {
            "steps": request.steps,
            "kind": request.kind,
            "timing": request.timing,
            "force_eager": request.force_eager,
            "per_layer": request.per_layer,
        },
        "decode_tokens": next(
            (closing.body["decode_tokens"] for closing in sums.closings.values() if "decode_tokens" in closing.body),
            None,
        ),
        "timing": _timing(sums.closings.values(), request.timing),
        "pause_ms": max((engine["pause_ms"] for engine in engines), default=0.0),
        "overlap_ns": recording.overlap_ns(),
        "engines": engines,
        "unmatched_workers": [each.as_dict() for each in unmatched],
        "spans": {
            "expected": sum(part.spans for part in announced),
            "received": sums.received_spans,
            "duplicate": sums.duplicate_spans,
            "dropped": sum(part.dropped for part in announced),
        },
        "totals": {
            "expected": sum(part.totals for part in announced),
            "received": sums.received_totals,
            "duplicate": sums.duplicate_totals,
        },
        "intake": {signal.key: sums.tallies[signal].as_dict() for signal in KEPT},
        "mismatched_steps": [
            {"engine": engine, "rank": rank, "index": index} for engine, rank, index in sorted(checked.mismatched)
        ],
        "versions": {
            "vime_otel": version,
            "vllm": sorted({part.introduction.vllm_version for part in parts}),
        },
    }
    return recording


def _unchecked(checked: Checked) -> list[str]:
    if not checked.given_up:
        return []
    parts = counted(checked.given_up, "part")
    return [f"the spans of {parts} of steps were not compared with their totals: too many steps were open at once"]


def _engine_reasons(sums: Sums, part: EnginePart) -> list[str]:
    complaint = part.complaint()
    texts = [complaint] if complaint else []
    closing = sums.closings.get(part.engine)
    if closing is not None:
        known = complaint and f"{complaint} {part.reason}"
        told = (reason for reason in _texts(closing.body.get("reasons")) if not known or reason not in known)
        texts += [f"{part.label}: {reason}" for reason in told]
    # What a refusing or silent engine did not send needs no second sentence.
    if closing is not None or not texts:
        texts += [f"{part.label}: {text}" for text in sums.missing(part.engine)]
    return texts


def _engine(sums: Sums, part: EnginePart, rows: Sequence[StepRow]) -> dict[str, Any]:
    """One entry of `engines`."""
    closing = sums.closings.get(part.engine)
    body = _plain(closing.body) if closing else {}
    own = [row for row in rows if row.engine == part.engine]
    errors = _engine_reasons(sums, part)
    return {
        **told_by_closing(body),
        "id": part.engine,
        "label": part.label,
        "model": part.introduction.model,
        "vllm_version": part.introduction.vllm_version,
        "host": part.introduction.host,
        "pid": part.introduction.pid,
        "execution": _typed(body.get("execution"), str) or part.introduction.execution,
        "steps": {kind: sum(row.kind == kind for row in own) for kind in sorted({row.kind for row in own})},
        "ranks": [
            {
                "rank": announced.rank,
                "stage": announced.stage,
                "spans": sums.part_spans(part.engine, announced.rank),
                "dropped": announced.dropped,
            }
            for announced in (closing.parts if closing else ())
            if announced.rank != ENGINE_PART
        ],
        "errors": errors,
        "complete": not errors,
    }


def told_by_closing(body: dict[str, Any]) -> dict[str, Any]:
    """What of an engine's entry comes from the body of its closing event; None for what no reader would take."""
    pause_ns = body.get("pause_ns")
    return {
        **{key: _typed(body.get(key), str) for key in ("label", "model", "vllm_version", "host", "execution")},
        "pid": _typed(body.get("pid"), int),
        "pause_ms": pause_ns / 1e6 if isinstance(pause_ns, (int, float)) else 0.0,
        "hooks": _typed(body.get("hooks"), run_format.Hooks),
        "overhead": _typed(body.get("overhead"), run_format.Overhead),
        "unrecorded": _typed(body.get("unrecorded"), run_format.Unrecorded),
        "notes": _texts(body.get("notes")),
    }


def _timing(closings: Any, asked: str) -> str:
    told = sorted({str(closing.body["timing"]) for closing in closings if closing.body.get("timing")})
    return "+".join(told) or asked


def _plain(body: dict[str, Any]) -> dict[str, Any]:
    """The body as JSON can hold it."""
    plain: dict[str, Any] = orjson.loads(orjson.dumps(body, default=str))
    return plain


def _typed(value: Any, hint: type) -> Any:
    """The value, or None where no reader of the run would take it."""
    try:
        msgspec.convert(value, hint)
    except msgspec.ValidationError:
        return None
    return value


def _texts(value: Any) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list) else []
