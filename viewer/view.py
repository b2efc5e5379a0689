"""What of a run is shown, as the page gets it: the flame graph's columns, the numbers beside it, the ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import Any

from vime_otel.data.errors import UsageError
from vime_otel.data.profile import MICROSECONDS
from vime_otel.data.recording import StepRow
from vime_otel.data.rundir import RunDirectory
from vime_otel.data.selection import Selected, Selection, read_range

from . import tree
from .store import RunNotFound

KEYS = ("kind", "rank", "layers", "steps", "mixed")
"""What an address says of a view; `layers` shows layers one by one."""


@dataclass(frozen=True)
class View:
    """A selection of a run, known to fit."""

    selected: Selected

    @property
    def run(self) -> RunDirectory:
        """The run that is shown."""
        return self.selected.run

    @property
    def kind(self) -> str:
        """The kind of step."""
        return self.selected.selection.kind

    @property
    def unit(self) -> str:
        """What values count: microseconds, but for some files of other tools."""
        return str(self.run.header.get("unit") or MICROSECONDS)

    @property
    def steps(self) -> int:
        """How many steps this view sums."""
        return self.selected.steps

    @cached_property
    def values(self) -> tuple[Mapping[str, int], Mapping[str, int]]:
        """(self time in microseconds, calls) by stack."""
        return self.selected.values()

    @property
    def title(self) -> str:
        """The view's name for people."""
        chosen = self.selected.selection
        parts = [str(self.run.header.get("label") or self.run.id[:8]), chosen.kind]
        if chosen.rank:
            parts.append(rank_label(self.run, chosen.rank))
        if chosen.by_layer:
            parts.append("by layer")
        if chosen.steps:
            first, last = chosen.steps
            parts.append(f"step {first}" if first == last else f"steps {first}–{last}")
        if chosen.mixed != "in":
            parts.append("mixed steps alone" if chosen.mixed == "only" else "without mixed steps")
        return " · ".join(parts)

    @property
    def file_stem(self) -> str:
        """The view's name for files."""
        chosen = self.selected.selection
        steps = ["-".join(map(str, dict.fromkeys(chosen.steps)))] if chosen.steps else []
        mixed = [f"mixed-{chosen.mixed}"] if chosen.mixed != "in" else []
        parts = [self.run.id[:8], chosen.kind, *([chosen.rank] if chosen.rank else [])]
        return "-".join([*parts, *(["layers"] if chosen.by_layer else []), *steps, *mixed])

    def facts(self) -> list[tuple[str, str]]:
        """The numbers beside the graph, for people: (name, value with its unit)."""
        rows = self.selected.rows
        if not rows:
            return [("steps", f"{self.steps:,}")] if self.steps else []
        intervals = [row.interval_ns / 1e6 for row in rows]
        tokens = [row.context_tokens + row.generation_tokens for row in rows]
        return [
            ("mean step", f"{sum(intervals) / len(rows):.2f} ms"),
            ("median", f"{median(intervals):.2f} ms"),
            ("slowest", f"{max(intervals):.2f} ms"),
            ("steps", f"{self.steps:,}"),
            ("tokens a step", f"{sum(tokens) / len(rows):,.1f}"),
            ("requests a step", f"{sum(row.requests for row in rows) / len(rows):,.1f}"),
        ]

    def flamegraph(self) -> dict[str, Any]:
        """The flame graph for JSON: times in microseconds and calls, summed over `steps` steps."""
        chosen = self.selected.selection
        return {
            "kind": chosen.kind,
            "rank": chosen.rank,
            "by_layer": chosen.by_layer,
            "title": self.title,
            "file_stem": self.file_stem,
            "unit": self.unit,
            "steps": self.steps,
            "seconds": seconds_on_the_clock(self.run, self.selected.rows),
            "facts": self.facts(),
            "skipped": self.selected.skipped(),
            "tree": tree.build(*self.values).as_dict(),
        }

    def ranks(self) -> dict[str, Any]:
        """Every rank's flame graph in one, for JSON: self time in microseconds per step and rank, by stack.

        Stacks are those of any rank; `self` has a row for each of `ranks`.
        """
        found = self.selected.by_rank()
        stacks = sorted({stack for values, _ in found.values() for stack in values})
        return {
            "ranks": [
                {"name": name, "label": rank_label(self.run, name), "steps": n} for name, (_, n) in found.items()
            ],
            "stacks": stacks,
            "self": [
                [round(values.get(stack, 0) / max(steps, 1), 3) for stack in stacks] for values, steps in found.values()
            ],
        }


def choose(run: RunDirectory, query: Mapping[str, str]) -> View:
    """The view that a query asks for; the first kind where none is named.

    Raises NotInRun for what the run does not have, UsageError for what is no query, RunNotFound where it has no steps.
    """
    kinds = list(run.steps)
    if not kinds:
        raise RunNotFound(f"run {run.id} has no steps, so it has no flame graph")
    if query.get("layers", "") not in ("", "1"):
        raise UsageError("layers=1 shows layers one by one; leave it out to merge them")
    return View(
        Selected(
            run,
            Selection(
                query.get("kind") or kinds[0],
                query.get("rank") or None,
                bool(query.get("layers")),
                read_range(query["steps"]) if query.get("steps") else None,
                query.get("mixed") or "in",
            ),
        )
    )


def rank_label(run: RunDirectory, name: str) -> str:
    """The rank's name for people: its engine's label and its number."""
    for engine in run.header.get("engines", []):
        engine_id = str(engine.get("id"))
        label = str(engine.get("label") or engine_id)
        if name == engine_id:
            return label
        if name.startswith(f"{engine_id}-"):
            return f"{label} rank {name.removeprefix(f'{engine_id}-')}"
    return name


def seconds_on_the_clock(run: RunDirectory, chosen: list[StepRow]) -> float | None:
    """From the first to the last of the chosen steps, whatever ran meanwhile, summed over engines.

    None where the clock says nothing: without rows, or where only samples of the steps were recorded.
    """
    if "every" in (run.header.get("asked") or {}):
        return None
    spans: dict[str, tuple[int, int]] = {}
    for row in chosen:
        begin, end = spans.get(row.engine, (row.start_unix_nano, 0))
        spans[row.engine] = (min(begin, row.start_unix_nano), max(end, row.start_unix_nano + row.duration_ns))
    total = sum(end - begin for begin, end in spans.values()) / 1e9
    return total if total > 0 else None
