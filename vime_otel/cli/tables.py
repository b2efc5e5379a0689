"""The summary of a run as a table for people and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from ..data.rundir import RunDirectory
from ..data.selection import Selected, Selection
from ..data.summary import TopFrame, cost_line, counted, notes, opening_line, top_frames
from .selecting import steps_told

_FIGURES_WIDTH = 48
_MOST_LAYER, _MOST_NAME, _LEAST_NAME = 24, 70, 16


@dataclass(frozen=True)
class KindSummary:
    """One step kind of a run: how many steps, their mean interval, and the frames with most self time."""

    kind: str
    steps: int
    ms_per_step: float
    frames: list[TopFrame]

    def as_dict(self) -> dict[str, Any]:
        """The summary for JSON."""
        return {
            "kind": self.kind,
            "steps": self.steps,
            "ms_per_step": self.ms_per_step,
            "frames": [frame.as_dict() for frame in self.frames],
        }


def summarize(limit: int, chosen: Sequence[Selected]) -> list[KindSummary]:
    """A summary of each selection."""
    summaries = []
    for selected in chosen:
        self_us, calls = selected.values()
        frames = top_frames(self_us, calls, selected.steps, limit)
        mean_ms = _mean_ms(selected, self_us)
        summaries.append(KindSummary(selected.selection.kind, selected.steps, mean_ms, frames))
        warn_of_skipped(selected)
    return summaries


def _mean_ms(selected: Selected, self_us: Mapping[str, int]) -> float:
    """Of the steps' intervals; where a run lists no steps, as one of another service's traces, of all self time."""
    rows = selected.rows
    if rows:
        return sum(row.interval_ns for row in rows) / len(rows) / 1e6
    return sum(self_us.values()) / max(selected.steps, 1) / 1000


def warn_of_skipped(selected: Selected) -> None:
    """Say on stderr what was skipped in the folded files of a selection."""
    for sentence in selected.skipped():
        click.echo(f"warning: {sentence}", err=True)


def summary_as_dict(run: RunDirectory, limit: int, chosen: Sequence[Selected]) -> dict[str, Any]:
    """What `print_summary` prints, for JSON."""
    selection = chosen[0].selection if chosen else None
    return {
        "run": str(run.path),
        "id": run.id,
        "complete": run.header.get("complete"),
        "reasons": run.header.get("reasons", []),
        "summary": opening_line(run.header, run.rows),
        "cost": cost_line(run.header),
        "notes": notes(run.header, run.rows),
        "rank": selection.rank if selection else None,
        "by_layer": selection.by_layer if selection else False,
        "kinds": [each.as_dict() for each in summarize(limit, chosen)],
    }


def print_summary(console: Console, run: RunDirectory, limit: int, chosen: Sequence[Selected] | None = None) -> None:
    """The opening line, what recording cost, why the run is incomplete if it is, notes, a table of frames for each.

    Without `chosen` every kind of the run is shown.
    """
    if chosen is None:
        chosen = [Selected(run, Selection(kind)) for kind in run.steps]
    summaries = summarize(limit, chosen)
    console.print(opening_line(run.header, run.rows), soft_wrap=True, style="bold")
    cost = cost_line(run.header)
    if cost:
        console.print(cost, soft_wrap=True)
    if run.header.get("complete") is False:
        for reason in run.header.get("reasons") or ["the run does not say why"]:
            console.print(f"incomplete: {reason}", soft_wrap=True, style="yellow")
    for note in notes(run.header, run.rows):
        console.print(f"note: {note}", soft_wrap=True)
    for summary, selected in zip(summaries, chosen, strict=True):
        console.print(f"\n{_heading(summary, selected.selection)}", soft_wrap=True, style="bold")
        console.print(frames_table(summary, selected.selection.by_layer, console.width))


def _heading(summary: KindSummary, selection: Selection) -> str:
    where = f", rank {selection.rank}" if selection.rank else ""
    if selection.steps:
        where += f", {steps_told(selection.steps)}"
    return f"{summary.kind}: {counted(summary.steps, 'step')}, {summary.ms_per_step:.3f} ms per step{where}"


def frames_table(summary: KindSummary, by_layer: bool, width: int) -> Table:
    """For a terminal of so many columns: where they don't suffice, names are cut, never figures."""
    left = width - _FIGURES_WIDTH
    table = Table(box=None, pad_edge=False)
    if by_layer:
        table.add_column("layer", no_wrap=True, max_width=_MOST_LAYER)
        left -= min(max((len(frame.layer) for frame in summary.frames), default=0), _MOST_LAYER) + 2
    table.add_column("frame", no_wrap=True, max_width=max(min(left, _MOST_NAME), _LEAST_NAME))
    for heading in ("self ms/step", "share", "calls/step", "ms/call"):
        table.add_column(heading, justify="right", no_wrap=True)
    for frame in summary.frames:
        table.add_row(
            *([frame.layer] if by_layer else []),
            frame.frame,
            f"{frame.self_ms:.3f}",
            f"{frame.share:.1%}",
            f"{frame.calls:.1f}",
            f"{frame.ms_per_call:.3f}",
        )
    return table
