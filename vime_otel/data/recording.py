"""A finished recording as a value: step rows, per-step totals, and the sums made of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from .folded import Folded, merge_layers

KINDS = ("decode", "prefill")
"""The kinds of an engine's steps. Runs made of something else than steps have kinds of their own, `all` mostly."""

IDLE = "idle"
"""The kind of a step in which an engine kept its lockstep group company with a dummy batch. It counts nowhere."""

ENGINE_PART = "engine"
"""Stands where a rank would, for what the engine process itself spent on a step."""


def in_order(kinds: Iterable[str]) -> list[str]:
    """Step kinds, each once: those of KINDS first, then others by name; idle is none."""
    return sorted({*kinds} - {IDLE}, key=lambda kind: (KINDS.index(kind) if kind in KINDS else len(KINDS), kind))


@dataclass(frozen=True)
class StepRow:
    """One engine step: one scheduler output, from schedule() to update_from_output().

    `interval_ns` is what the step adds to the clock, `duration_ns` its whole length; they differ
    when steps overlap. `context_tokens` belong to prompts not yet computed, `generation_tokens`
    to requests that decode; `speculative_tokens` of these are drafts. `resumed` of the `requests`
    go on after a preemption. The last two are 0 in recordings that are older than they.
    """

    engine: str
    index: int
    kind: str
    mixed: bool
    execution: str
    start_unix_nano: int
    duration_ns: int
    interval_ns: int
    context_tokens: int
    generation_tokens: int
    requests: int
    trace_id: str
    resumed: int = 0
    speculative_tokens: int = 0

    @property
    def overlapped(self) -> bool:
        """Whether another step was under way when this one began."""
        return self.duration_ns != self.interval_ns

    def as_dict(self) -> dict[str, Any]:
        """The row as it stands in steps.json."""
        return asdict(self)

    @classmethod
    def from_dict(cls, row: dict[str, Any]) -> StepRow:
        """The row of a checked steps.json; unknown keys are ignored."""
        return cls(**{name: row[name] for name in cls.__dataclass_fields__ if name in row})


@dataclass(frozen=True)
class StepTotals:
    """What one rank (or the engine process itself) spent on one step, folded.

    `stage` is the rank's pipeline stage, -1 for the engine's own part. The three sequences run
    parallel. `spans_dropped` of the `spans_made` were not sent, yet stand in these totals.
    """

    engine: str
    rank: str
    stage: int
    index: int
    kind: str
    stacks: tuple[str, ...]
    inclusive_ns: tuple[int, ...]
    calls: tuple[int, ...]
    spans_made: int
    spans_dropped: int

    @property
    def key(self) -> tuple[str, str, int]:
        """What makes these totals one of a kind within a recording."""
        return (self.engine, self.rank, self.index)

    def add_to(self, folded: Folded, by_layer: bool = True) -> None:
        """Add these totals to a sum, layers merged unless `by_layer`."""
        stacks = self.stacks if by_layer else map(merge_layers, self.stacks)
        for stack, inclusive_ns, calls in zip(stacks, self.inclusive_ns, self.calls, strict=True):
            folded.add(stack, inclusive_ns, calls)


def sum_overall(totals: Iterable[StepTotals], by_layer: bool = False) -> Folded:
    """The overall view: engines' own frames once, ranks averaged over their stage, stages summed."""
    by_stage: dict[tuple[str, int], Folded] = {}
    ranks: dict[tuple[str, int], set[str]] = {}
    for part in totals:
        stage = (part.engine, part.stage)
        part.add_to(by_stage.setdefault(stage, Folded()), by_layer)
        ranks.setdefault(stage, set()).add(part.rank)
    overall = Folded()
    for stage in sorted(by_stage):
        overall.merge(by_stage[stage].divided(len(ranks[stage])))
    return overall


def sum_rank(totals: Iterable[StepTotals], engine: str, rank: str, by_layer: bool = False) -> Folded:
    """One rank's view: its own frames beside its engine's, unaveraged."""
    folded = Folded()
    for part in totals:
        if part.engine == engine and part.rank in (rank, ENGINE_PART):
            part.add_to(folded, by_layer)
    return folded


@dataclass
class Recording:
    """All that is known of one recording. `header` is what recording.json holds.

    `older_steps` counts, by kind, the steps that have no row any more.
    """

    header: dict[str, Any]
    rows: list[StepRow] = field(default_factory=list)
    totals: list[StepTotals] = field(default_factory=list)
    older_steps: dict[str, int] = field(default_factory=dict)

    def kinds(self) -> list[str]:
        """The step kinds that occur, in their usual order; idle steps are of none."""
        return in_order({row.kind for row in self.rows} | {kind for kind, count in self.older_steps.items() if count})

    def steps(self) -> dict[str, int]:
        """Number of steps by kind, of all engines."""
        return {
            kind: sum(row.kind == kind for row in self.rows) + self.older_steps.get(kind, 0) for kind in self.kinds()
        }

    def ranks(self) -> list[tuple[str, str]]:
        """(engine id, rank) of every worker that sent totals."""
        return sorted({(part.engine, part.rank) for part in self.totals if part.rank != ENGINE_PART})

    def overlap_ns(self) -> int:
        """By how much children exceed their parents in the overall sums."""
        return sum(sum_overall(self.of_kind(kind)).overlap_ns() for kind in self.kinds())

    @property
    def has_layers(self) -> bool:
        """Whether the totals tell layers apart."""
        stacks = {stack for part in self.totals for stack in part.stacks}
        return any(merge_layers(stack) != stack for stack in stacks)

    def of_kind(self, kind: str) -> list[StepTotals]:
        """The totals of the steps of one kind."""
        return [part for part in self.totals if part.kind == kind]

    def select(self, wanted: Callable[[StepRow], bool]) -> Recording:
        """The same recording with only the steps for which `wanted` holds."""
        rows = [row for row in self.rows if wanted(row)]
        keys = {(row.engine, row.index) for row in rows}
        return Recording(self.header, rows, [part for part in self.totals if (part.engine, part.index) in keys])
