"""Recordings that are under way, as the pages and the API show them."""

from __future__ import annotations

from typing import Any

from vime_otel.data.live import LiveRecording, read_live, totals_so_far
from vime_otel.data.profile import MICROSECONDS
from vime_otel.data.recording import sum_overall
from vime_otel.data.selection import self_us

from . import tree
from .store import RunNotFound, Store


def all_live(store: Store) -> list[dict[str, Any]]:
    """Those that a collector is at work on, newest first."""
    found = (read_live(path) for path in store.unfinished())
    return [each.as_dict() for each in found if each is not None and each.alive]


def find(store: Store, name: str) -> LiveRecording:
    """The one in the folder of this name, or with this id; RunNotFound where there is none (any more)."""
    for path in store.unfinished():
        found = read_live(path)
        if found is not None and name in (path.name, found.progress["id"]):
            return found
    raise RunNotFound(f"no recording {name!r} is under way; the list of recordings shows those that are done")


def flamegraph(live: LiveRecording, kind: str | None) -> dict[str, Any]:
    """What has arrived so far, as the flame graph of one kind; the first there is where none is named."""
    recording = totals_so_far(live.path).recording()
    steps = recording.steps()
    shown = kind if kind in steps else next(iter(steps), "")
    folded = sum_overall(recording.of_kind(shown))
    count = steps.get(shown, 0)
    return {
        "kind": shown,
        "kinds": steps,
        "title": f"{live.path.name} · {shown} · so far" if shown else live.path.name,
        "file_stem": live.path.name,
        "unit": MICROSECONDS,
        "steps": count,
        "seconds": None,
        "facts": [["steps so far", str(count)]],
        "skipped": [],
        "tree": tree.build(self_us(folded), folded.calls).as_dict(),
    }
