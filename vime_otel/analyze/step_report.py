"""The steps of a trace as the report has them. Milliseconds unless a name says otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .steps import STEP_KINDS, Step


@dataclass
class Spread:
    """How numbers lie."""

    mean: float
    p50: float
    p90: float
    p99: float
    most: float


@dataclass
class StepRow:
    """The steps of one kind. `step_ms` is from a step's begin to its last event; `cadence_ms` from begin to begin.

    Device times are None where no kernel is known to be of a step.
    """

    kind: str
    steps: int
    batch: Spread
    context_tokens: int
    generation_tokens: int
    step_ms: Spread
    annotated_ms: Spread
    cadence_ms: Spread | None
    device_busy_ms: float | None
    device_span_ms: float | None
    tokens_per_second: float | None


@dataclass
class Steps:
    """All steps. Tokens per second are over `seconds`, from the first step's begin to the last one's end."""

    source: str
    rows: list[StepRow]
    empty: int
    seconds: float
    context_tokens_per_second: float | None
    generation_tokens_per_second: float | None


def ms(nanoseconds: float) -> float:
    """Milliseconds."""
    return nanoseconds / 1e6


def spread(values: Sequence[float]) -> Spread:
    """Mean, percentiles (the nearest value at or above) and the greatest; all 0 for nothing."""
    ordered = sorted(values)
    if not ordered:
        return Spread(0.0, 0.0, 0.0, 0.0, 0.0)

    def at(share: float) -> float:
        return ordered[min(max(-(-int(share * 1000) * len(ordered) // 1000) - 1, 0), len(ordered) - 1)]

    return Spread(sum(ordered) / len(ordered), at(0.5), at(0.9), at(0.99), ordered[-1])


def step_report(steps: Sequence[Step], source: str) -> Steps:
    """All steps of a rank, by kind."""
    counted = [step for step in steps if step.kind != "empty"]
    on_device = any(step.device_busy for step in counted)
    rows = [
        _step_row(kind, [step for step in counted if step.kind == kind], on_device)
        for kind in STEP_KINDS
        if any(step.kind == kind for step in counted)
    ]
    seconds = (counted[-1].start + counted[-1].duration - counted[0].start) / 1e9 if counted else 0.0
    context = sum(step.context_tokens for step in counted)
    generation = sum(step.generation_tokens for step in counted)
    known = bool(context or generation) and seconds > 0
    return Steps(
        source,
        rows,
        len(steps) - len(counted),
        seconds,
        context / seconds if known else None,
        generation / seconds if known else None,
    )


def _step_row(kind: str, steps: Sequence[Step], on_device: bool) -> StepRow:
    cadences = [ms(step.cadence) for step in steps if step.cadence is not None]
    tokens = sum(step.context_tokens + step.generation_tokens for step in steps)
    whole = sum(step.duration for step in steps)
    return StepRow(
        kind,
        len(steps),
        spread([step.batch for step in steps]),
        sum(step.context_tokens for step in steps),
        sum(step.generation_tokens for step in steps),
        spread([ms(step.duration) for step in steps]),
        spread([ms(step.annotated) for step in steps]),
        spread(cadences) if cadences else None,
        ms(sum(step.device_busy for step in steps) / len(steps)) if on_device else None,
        ms(sum(step.device_span for step in steps) / len(steps)) if on_device else None,
        tokens / (whole / 1e9) if tokens and whole else None,
    )
