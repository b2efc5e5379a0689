"""What of a run is looked at: a kind of step, of all engines, one engine or one rank, in a range of steps."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from .errors import UsageError, VimeOtelError
from .folded import Folded
from .recording import StepRow, StepTotals, sum_overall, sum_rank
from .rundir import RunDirectory

MIXED = ("in", "out", "only")
"""What becomes of steps that both prefill and decode: among the others, left out, or shown alone."""

_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")


class NotInRun(VimeOtelError):
    """What was asked for, the run does not have."""


@dataclass(frozen=True)
class Selection:
    """`rank` is None (all ranks), an engine's id, or `<engine>-<rank>`; `steps` (first, last), both within."""

    kind: str
    rank: str | None = None
    by_layer: bool = False
    steps: tuple[int, int] | None = None
    mixed: str = "in"


class Selected:
    """A selection of a run, both known to fit: its steps, and their sums. Raises NotInRun where they don't."""

    def __init__(self, run: RunDirectory, selection: Selection) -> None:
        self.run = run
        self.selection = selection
        _check(run, selection)

    @cached_property
    def rows(self) -> list[StepRow]:
        """The steps that are summed, as far as they have rows."""
        chosen = self.selection
        rows = self.run.rows_of(chosen.kind, chosen.rank)
        if chosen.steps:
            first, last = chosen.steps
            rows = [row for row in rows if first <= row.index <= last]
        if chosen.mixed != "in":
            rows = [row for row in rows if row.mixed == (chosen.mixed == "only")]
        return rows

    @property
    def in_files(self) -> bool:
        """Whether the run's folded files hold these sums; else they are made from per-step totals."""
        chosen = self.selection
        whole = chosen.steps is None and chosen.mixed == "in"
        return whole and (chosen.rank is None or chosen.rank in self.run.ranks())

    @property
    def steps(self) -> int:
        """How many steps are summed."""
        if self.in_files:
            return self.run.steps_of(self.selection.kind, self.selection.rank)
        return len(self.rows)

    def values(self) -> tuple[Mapping[str, int], Mapping[str, int]]:
        """(self time in microseconds, calls) by stack, summed over the steps."""
        chosen = self.selection
        if self.in_files:
            place = (chosen.kind, chosen.rank, chosen.by_layer)
            return self.run.self_us(*place), self.run.calls(*place)
        folded = self._sum(self._parts())
        return self_us(folded), folded.calls

    def grouped(self, groups: Mapping[tuple[str, int], int]) -> dict[int, Folded]:
        """The sums of groups of these steps: (engine, index) → group."""
        return {group: self._sum(parts) for group, parts in self.run.summed(groups).items()}

    def by_rank(self) -> dict[str, tuple[Mapping[str, int], int]]:
        """(self time in microseconds by stack, steps) of every rank that these sums are made of."""
        chosen = replace(self.selection, rank=None)
        found = {}
        parts = None if self.in_files or not self.rows else self._parts()
        for name in self.run.ranks():
            if self.selection.rank and name != self.selection.rank and not name.startswith(f"{self.selection.rank}-"):
                continue
            rank = Selected(self.run, replace(chosen, rank=name))
            if parts is None:
                found[name] = (rank.values()[0], rank.steps)
            else:
                engine, _, number = name.rpartition("-")
                folded = sum_rank(parts, engine, number, chosen.by_layer)
                found[name] = (self_us(folded), len(rank.rows))
        return {name: entry for name, entry in found.items() if entry[1] and entry[0]}

    def skipped(self) -> list[str]:
        """What to tell of lines in the run's files that are not in the format."""
        chosen = self.selection
        return self.run.skipped_lines(chosen.kind, chosen.rank, chosen.by_layer) if self.in_files else []

    def _parts(self) -> list[StepTotals]:
        if not self.rows:
            raise NotInRun("no step fits this choice; choose other steps")
        return self.run.summed({(row.engine, row.index): 0 for row in self.rows}).get(0, [])

    def _sum(self, parts: list[StepTotals]) -> Folded:
        chosen = self.selection
        if chosen.rank in self.run.ranks() and chosen.rank is not None:
            engine, _, rank = chosen.rank.rpartition("-")
            return sum_rank(parts, engine, rank, chosen.by_layer)
        return sum_overall(parts, chosen.by_layer)


def self_us(folded: Folded) -> dict[str, int]:
    """Self time in whole microseconds by stack."""
    return {stack: (value + 500) // 1000 for stack, value in folded.self_ns().items()}


def read_range(text: str) -> tuple[int, int]:
    """`7` or `3-9` as (first, last); UsageError for anything else."""
    match = _RANGE.fullmatch(text.strip())
    if not match:
        raise UsageError(f"{text!r} is no range of steps such as 12 or 12-40")
    first = int(match[1])
    last = int(match[2] or first)
    return min(first, last), max(first, last)


def _check(run: RunDirectory, chosen: Selection) -> None:
    kinds = list(run.steps)
    if chosen.kind not in kinds:
        raise NotInRun(f"run {run.id} has no {chosen.kind} steps; it has {', '.join(kinds) or 'none'}")
    engines = {str(engine.get("id")) for engine in run.header.get("engines", [])}
    if chosen.rank and chosen.rank not in run.ranks() and chosen.rank not in engines:
        raise NotInRun(f"run {run.id} has no rank {chosen.rank!r}; it has {', '.join(run.ranks()) or 'none'}")
    if chosen.by_layer and not run.has_layers:
        raise NotInRun(f"run {run.id} does not tell layers apart; record with `vime-otel collect --per-layer` for that")
    if chosen.mixed not in MIXED:
        raise UsageError(f"mixed steps can be {', '.join(MIXED)}, not {chosen.mixed!r}")
