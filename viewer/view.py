"""What of a run is shown: one kind of step, overall or of one rank, layers merged or one by one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from vime_otel.data.errors import UsageError
from vime_otel.data.recording import StepRow
from vime_otel.data.rundir import RunDirectory
from vime_otel.data.summary import TopFrame, top_frames

from . import tree
from .store import RunNotFound

BY_LAYER = "layers"
"""The query's name for showing layers one by one."""


@dataclass(frozen=True)
class View:
    """A kind and a rank (None: overall) of a run, both known to exist; with `by_layer` its layers, too."""

    run: RunDirectory
    kind: str
    rank: str | None
    by_layer: bool = False

    @property
    def rows(self) -> list[StepRow]:
        """The steps that this view sums."""
        return self.run.rows_of(self.kind, self.rank)

    @property
    def steps(self) -> int:
        """How many steps this view sums."""
        return self.run.steps_of(self.kind, self.rank)

    @property
    def title(self) -> str:
        """The view's name for people."""
        parts = [str(self.run.header.get("label") or self.run.id[:8]), self.kind]
        if self.rank:
            parts.append(rank_label(self.run, self.rank))
        if self.by_layer:
            parts.append("by layer")
        return " · ".join(parts)

    @property
    def file_stem(self) -> str:
        """The view's name for files."""
        parts = [self.run.id[:8], self.kind]
        if self.rank:
            parts.append(self.rank)
        if self.by_layer:
            parts.append("layers")
        return "-".join(parts)

    @property
    def query(self) -> dict[str, str]:
        """What an address says beside the kind, so that it shows this view."""
        query = {"rank": self.rank} if self.rank else {}
        return query | ({BY_LAYER: "1"} if self.by_layer else {})

    def self_us(self) -> Mapping[str, int]:
        """Self time in microseconds by stack."""
        return self.run.self_us(self.kind, self.rank, self.by_layer)

    def calls(self) -> Mapping[str, int]:
        """Calls by stack."""
        return self.run.calls(self.kind, self.rank, self.by_layer)

    def skipped(self) -> list[str]:
        """What to tell of lines in the run's files that are not in the format."""
        return self.run.skipped_lines(self.kind, self.rank, self.by_layer)

    def top(self) -> list[TopFrame]:
        """The frames with most self time."""
        return top_frames(self.self_us(), self.calls(), self.steps)

    def categories(self) -> dict[str, str]:
        """What each frame is, by its name: as where it spends most."""
        frames = tree.all_frames(tree.build(self.self_us(), self.calls()))
        return {frame.name: frame.category for frame in sorted(frames, key=lambda frame: frame.self_us)}

    def facts(self) -> list[tuple[str, str]]:
        """The numbers beside the graph, for people: (name, value with its unit)."""
        rows = self.rows
        intervals = [row.interval_ns / 1e6 for row in rows]
        tokens = [row.context_tokens + row.generation_tokens for row in rows]
        if not rows:
            return []
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
        root = tree.build(self.self_us(), self.calls())
        return {
            "kind": self.kind,
            "rank": self.rank,
            "by_layer": self.by_layer,
            "title": self.title,
            "steps": self.steps,
            "skipped": self.skipped(),
            "depth": tree.depth(root),
            "root": root.as_dict(),
        }


def choose(run: RunDirectory, kind: str | None, rank: str | None, layers: str | None) -> View:
    """The view that a query asks for; the first kind where none is named.

    Raises UsageError for what the run does not have, RunNotFound where it has no steps.
    """
    kinds = list(run.steps)
    if not kinds:
        raise RunNotFound(f"run {run.id} has no steps, so it has no flame graph")
    if kind and kind not in kinds:
        raise UsageError(f"this run has no kind {kind!r}; it has {', '.join(kinds)}")
    if rank and rank not in run.ranks():
        raise UsageError(f"this run has no rank {rank!r}; it has {', '.join(run.ranks()) or 'none'}")
    if layers and not run.has_layers:
        raise UsageError("this run does not tell layers apart; `vime-otel collect --per-layer` makes one that does")
    return View(run, kind or kinds[0], rank or None, bool(layers))


def rank_label(run: RunDirectory, name: str) -> str:
    """The rank's name for people: its engine's label and its number."""
    for engine in run.header.get("engines", []):
        engine_id = str(engine.get("id"))
        if name.startswith(f"{engine_id}-"):
            return f"{engine.get('label') or engine_id} rank {name.removeprefix(f'{engine_id}-')}"
    return name
