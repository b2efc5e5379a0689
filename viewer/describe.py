"""Runs as values for the pages and the API. Every key of a header but its id may be missing."""

from __future__ import annotations

from typing import Any

from vime_otel.data.errors import VimeOtelError
from vime_otel.data.rundir import RunDirectory
from vime_otel.data.summary import cost_line, notes, opening_line

from .store import Store, addresses, torch_name
from .view import rank_label


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
            "steps": run.steps,
            "ms_per_step": ms_per_step(run),
            "error": None,
        }
    except VimeOtelError as error:
        return {"id": None, "name": run.path.name, "address": run.path.name, "error": str(error)}


def full(store: Store, run: RunDirectory, address: str) -> dict[str, Any]:
    """All of a run but its flame graphs."""
    labels = engine_labels(run)
    return {
        **_brief(run, address),
        "opening": opening_line(run.header, run.rows),
        "cost": cost_line(run.header),
        "notes": notes(run.header, run.rows),
        "has_layers": run.has_layers,
        "header": run.header,
        "ranks": [{"name": name, "label": rank_label(run, name)} for name in run.ranks()],
        "rows": [{**row.as_dict(), "engine_label": labels.get(row.engine, row.engine)} for row in run.rows],
        "torch": [{"name": torch_name(run, path), "bytes": path.stat().st_size} for path in store.torch_traces(run)],
    }


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
