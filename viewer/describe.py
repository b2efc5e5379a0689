"""Runs as values for the pages and the API. Every key of a header but its id may be missing."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from vime_otel.data.errors import VimeOtelError
from vime_otel.data.recording import StepRow
from vime_otel.data.rundir import RunDirectory
from vime_otel.data.summary import cost_line, notes, opening_line
from vime_otel.data.trace_link import trace_link_of

from .store import Store, addresses
from .traces import has_spans, traces_of
from .view import rank_label

OUTLYING = 5.0
"""Robust standard deviations above the median of its kind from which a step is an outlier."""

_TO_DEVIATION = 1.4826
_COLUMNS = (
    "index",
    "kind",
    "mixed",
    "execution",
    "start_unix_nano",
    "duration_ns",
    "interval_ns",
    "context_tokens",
    "generation_tokens",
    "requests",
    "trace_id",
)


def briefs(store: Store) -> list[dict[str, Any]]:
    """The list of recordings."""
    runs = store.runs()
    named = addresses(runs)
    return [_brief(run, named[run.path]) for run in runs]


def _brief(run: RunDirectory, address: str) -> dict[str, Any]:
    """One line of the list; a damaged run says what is wrong with it in `error`."""
    try:
        header = run.header
        return {
            "id": run.id,
            "name": run.path.name,
            "address": address,
            "label": header.get("label"),
            "created": header.get("created"),
            "complete": header.get("complete"),
            "reasons": header.get("reasons", []),
            "engines": len(header.get("engines", [])),
            "source": header.get("source"),
            "steps": run.steps,
            "ms_per_step": ms_per_step(run),
            "error": None,
        }
    except VimeOtelError as error:
        return {"id": None, "name": run.path.name, "address": run.path.name, "error": str(error)}


def full(store: Store, run: RunDirectory, address: str) -> dict[str, Any]:
    """All of a run but its flame graphs and its steps."""
    return {
        **_brief(run, address),
        "opening": opening_line(run.header, run.rows),
        "cost": cost_line(run.header),
        "notes": notes(run.header, run.rows),
        "has_layers": run.has_layers,
        "has_mixed": any(row.mixed for row in run.rows),
        "rows": len(run.rows),
        "lanes": len({row.engine for row in run.rows}),
        "header": run.header,
        "ranks": [{"name": name, "label": rank_label(run, name)} for name in run.ranks()],
        "torch": traces_of(store, run),
        "has_spans": has_spans(store, run),
    }


def step_columns(run: RunDirectory, trace_link: str) -> dict[str, Any]:
    """Every step in columns that run parallel; `engine` is a number into `engines`, `outlier` marks odd ones."""
    labels = engine_labels(run)
    rows = sorted(run.rows, key=lambda row: (row.index, row.engine))
    engines = sorted({row.engine for row in rows})
    number = {engine: place for place, engine in enumerate(engines)}
    columns: dict[str, list[Any]] = {name: [getattr(row, name) for row in rows] for name in _COLUMNS}
    return {
        "engines": [{"id": engine, "label": labels.get(engine, engine)} for engine in engines],
        "trace_link": trace_link_of(run.header, trace_link),
        "count": len(rows),
        **columns,
        "engine": [number[row.engine] for row in rows],
        "outlier": outliers(rows),
    }


def outliers(rows: Sequence[StepRow]) -> list[float]:
    """For each step how many times the median of its kind it took, where that is far from usual; else 0."""
    by_kind: dict[str, list[int]] = {}
    for row in rows:
        by_kind.setdefault(row.kind, []).append(row.interval_ns)
    limits = {}
    for kind, values in by_kind.items():
        middle = median(values)
        deviation = _TO_DEVIATION * median(abs(value - middle) for value in values)
        limits[kind] = (middle, middle + OUTLYING * max(deviation, 0.02 * middle))
    found = []
    for row in rows:
        middle, limit = limits[row.kind]
        found.append(round(row.interval_ns / middle, 2) if middle and row.interval_ns > limit else 0.0)
    return found


def ms_per_step(run: RunDirectory) -> dict[str, float]:
    """Mean interval in milliseconds by kind; idle steps are of none."""
    intervals = {kind: [row.interval_ns for row in run.rows if row.kind == kind] for kind in run.steps}
    return {kind: sum(values) / len(values) / 1e6 for kind, values in intervals.items() if values}


def engine_labels(run: RunDirectory) -> dict[str, str]:
    """The engines' labels by id."""
    labels = {}
    for engine in run.header.get("engines", []):
        engine_id = str(engine.get("id"))
        labels[engine_id] = str(engine.get("label") or engine_id)
    return labels
