"""The steps of a trace, from annotations alone: vLLM's own, else those of the torch profiler's schedule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from .columns import Annotation, Columns

Kind = Literal["prefill", "decode", "mixed", "empty", "step", "whole trace"]
STEP_KINDS: tuple[Kind, ...] = ("prefill", "mixed", "decode", "step", "whole trace")
"""The kinds that are reported, in this order; `empty` steps had no tokens."""

FROM_VLLM = "vLLM's annotations"
FROM_SCHEDULE = "the profiler's schedule (ProfilerStep)"
FROM_NOTHING = "none: the trace has no annotations of steps"


@dataclass
class Step:
    """One step of a rank. Times in nanoseconds after the trace's origin.

    `annotated` is the annotation's length. `duration` goes on to the end of the last event that begins before the next
    step does: sampling follows the annotation. `cadence` is the time to the next step's begin, None for the last.
    Device times are those of the kernels that the step launched; 0 without a device.
    """

    kind: Kind
    account: int
    start: int
    annotated: int
    duration: int = 0
    cadence: int | None = None
    context_requests: int = 0
    context_tokens: int = 0
    generation_requests: int = 0
    generation_tokens: int = 0
    device_span: int = 0
    device_busy: int = 0
    device_communication: int = 0

    @property
    def batch(self) -> int:
        """Its requests."""
        return self.context_requests + self.generation_requests

    @property
    def signature(self) -> tuple[int, int, int, int]:
        """What tells steps apart on every rank alike."""
        return self.context_requests, self.context_tokens, self.generation_requests, self.generation_tokens


@dataclass
class Found:
    """The steps, where they are from, and the times at which an account of its own begins: one for each annotation."""

    source: str
    steps: list[Step]
    cuts: list[int]


def find_steps(columns: Columns) -> Found:
    """The steps of a trace, still without durations. Without annotations the whole trace is one."""
    for source, found in ((FROM_VLLM, columns.steps), (FROM_SCHEDULE, columns.profiler_steps)):
        if found:
            chosen = _in_turn(found)
            steps = [_step(annotation, number + 1) for number, annotation in enumerate(chosen)]
            for step, following in pairwise(steps):
                step.cadence = following.start - step.start
            return Found(source, steps, [annotation.start for annotation in chosen])
    return Found(FROM_NOTHING, [Step("whole trace", 0, 0, 0)], [])


def _in_turn(annotations: Sequence[Annotation]) -> list[Annotation]:
    """In order of time, without those that begin inside another: the same step, told by a second thread."""
    chosen: list[Annotation] = []
    for annotation in sorted(annotations, key=lambda each: (each.start, -each.end)):
        if not chosen or annotation.start >= chosen[-1].end:
            chosen.append(annotation)
    return chosen


def _step(annotation: Annotation, account: int) -> Step:
    return Step(
        _kind(annotation),
        account,
        annotation.start,
        annotation.end - annotation.start,
        context_requests=annotation.context_requests,
        context_tokens=annotation.context_tokens,
        generation_requests=annotation.generation_requests,
        generation_tokens=annotation.generation_tokens,
    )


def _kind(annotation: Annotation) -> Kind:
    if not annotation.from_vllm:
        return "step"
    if annotation.context_tokens:
        return "mixed" if annotation.generation_tokens else "prefill"
    return "decode" if annotation.generation_tokens else "empty"
