"""Torch traces as a run directory: stacks by step kind, of operators, and of the kernels under what launched them."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ..data.recording import Recording, StepRow, StepTotals
from ..data.write_run import new_run_name, write_run
from ..version import __version__
from .engines import Engine, rank_of, stage_of
from .nesting import Account
from .skew import step_shift
from .steps import Step
from .summary import OUTSIDE, TraceSummary

KIND_OF = {"prefill": "prefill", "mixed": "prefill", "decode": "decode", "step": "all", "whole trace": "all"}
"""A run's kind for each step kind of a trace; as in recordings, a step that also decodes is a prefill with a mark."""

EXECUTION = "traced"
DEFAULT_LABEL = "torch-traces"
_NOTES = (
    "a flame graph of torch traces: operators under their thread by the host's clock, kernels under their device by the"
    " device's; the two run at the same time, so compare frames under one of them",
)


def write(root: Path, engines: Sequence[Engine], label: str | None, beside: str | None = None) -> Path:
    """Write the run of these traces below `root`, in place of one that the same traces made before; its path.

    `beside` is the run that recorded the same engines.
    """
    identity = hashlib.sha256("/".join(engine.id for engine in engines).encode()).hexdigest()[:16]
    traces = [trace for engine in engines for trace in engine.traces]
    directory = root / new_run_name(identity, label or DEFAULT_LABEL, _written(traces))
    made = recording(identity, engines, label)
    if beside:
        made.header["notes"].append(f"the same engines were recorded, too: {beside}")
    write_run(directory, made)
    return directory


def _written(traces: Sequence[TraceSummary]) -> datetime:
    """When the newest of the files was written; now, where they are gone meanwhile."""
    times = []
    for trace in traces:
        with suppress(OSError):
            times.append(Path(trace.path).stat().st_mtime)
    return datetime.fromtimestamp(max(times), timezone.utc) if times else datetime.now(timezone.utc)


def recording(identity: str, engines: Sequence[Engine], label: str | None) -> Recording:
    """The traces as a recording: a row for each step of an engine, totals for each rank and step."""
    rows: list[StepRow] = []
    totals: list[StepTotals] = []
    for engine in engines:
        rows += _rows(engine)
        for trace in engine.traces:
            totals += _totals(engine, trace)
    made = Recording(_header(identity, engines, label), rows, totals)
    made.header["notes"] += _short_ranks(engines, totals)
    made.header["overlap_ns"] = made.overlap_ns()
    return made


def _short_ranks(engines: Sequence[Engine], totals: Sequence[StepTotals]) -> Iterator[str]:
    """A note on each rank whose trace lacks steps: means over ranks lack them, too."""
    found = Counter((part.engine, part.rank) for part in totals if part.kind != OUTSIDE)
    for engine in engines:
        steps = len(_counted(engine.traces[0]))
        for trace in engine.traces:
            there = found[engine.id, str(rank_of(trace))]
            if there < steps:
                name = Path(trace.path).name
                yield f"{name} holds {there} of the {steps} steps: means over the ranks are lower by what it lacks"


def _header(identity: str, engines: Sequence[Engine], label: str | None) -> dict[str, Any]:
    traces = [trace for engine in engines for trace in engine.traces]
    reasons = [f"{Path(trace.path).name}: {problem}" for trace in traces for problem in trace.problems]
    versions = sorted({str(t.header["vllm_version"]) for t in traces if "vllm_version" in t.header})
    return {
        "id": identity,
        "label": label or DEFAULT_LABEL,
        "complete": not reasons,
        "reasons": reasons,
        "notes": [*_NOTES, *(f"{Path(trace.path).name}: {oddity}" for trace in traces for oddity in trace.oddities)],
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "asked": {},
        "decode_tokens": None,
        "timing": "torch profiler",
        "engines": [_engine(engine) for engine in engines],
        "versions": {"vime_otel": [__version__], "vllm": versions},
    }


def _engine(engine: Engine) -> dict[str, Any]:
    first = engine.traces[0]
    steps: dict[str, int] = {}
    for row in _rows(engine):
        steps[row.kind] = steps.get(row.kind, 0) + 1
    return {
        "id": engine.id,
        "label": engine.label,
        "vllm_version": first.header.get("vllm_version") if isinstance(first.header.get("vllm_version"), str) else None,
        "host": first.header.get("host_name") if isinstance(first.header.get("host_name"), str) else None,
        "pid": first.pid,
        "execution": EXECUTION,
        "steps": steps,
        "ranks": [
            {"rank": str(rank_of(trace)), "stage": stage_of(trace), "spans": trace.events, "dropped": 0}
            for trace in engine.traces
        ],
        "complete": not any(trace.problems for trace in engine.traces),
    }


def _rows(engine: Engine) -> list[StepRow]:
    """The steps, as the engine's first rank saw them, and one row for what lies outside of all."""
    first = engine.traces[0]
    rows = [_row(engine, first, index, step) for index, step in enumerate(_counted(first))]
    if any(_outside(trace) for trace in engine.traces):
        outside = _outside(first)
        span = max((value for path, (value, _) in outside.items() if first.parents[path] < 0), default=0)
        rows.append(
            StepRow(
                engine.id, len(rows), OUTSIDE, False, EXECUTION, first.unix_ns(first.begin), span, span, 0, 0, 0, ""
            )
        )
    return rows


def _row(engine: Engine, trace: TraceSummary, index: int, step: Step) -> StepRow:
    return StepRow(
        engine=engine.id,
        index=index,
        kind=KIND_OF[step.kind],
        mixed=step.kind == "mixed",
        execution=EXECUTION,
        start_unix_nano=trace.unix_ns(step.start),
        duration_ns=step.duration,
        interval_ns=step.duration,
        context_tokens=step.context_tokens,
        generation_tokens=step.generation_tokens,
        requests=step.batch,
        trace_id="",
    )


def _counted(trace: TraceSummary) -> list[Step]:
    return [step for step in trace.steps if step.kind != "empty"]


def _outside(trace: TraceSummary) -> Account:
    """What belongs to no step: the time before the first, and steps without tokens."""
    counted = {step.account for step in _counted(trace)}
    merged: Account = {}
    for number, account in enumerate(trace.accounts):
        if number in counted:
            continue
        for path, (value, calls) in account.items():
            entry = merged.setdefault(path, [0, 0])
            entry[0] += value
            entry[1] += calls
    return merged


def _totals(engine: Engine, trace: TraceSummary) -> list[StepTotals]:
    """A rank's totals; its steps have the numbers that the same steps of the first rank have."""
    first = _counted(engine.traces[0])
    steps = _counted(trace)
    shift = 0 if trace is engine.traces[0] else step_shift(engine.traces[0], trace)
    parts = []
    for number, step in enumerate(steps):
        index = number - shift
        if 0 <= index < len(first) and first[index].kind == step.kind:
            parts.append(_part(engine, trace, index, KIND_OF[step.kind], trace.accounts[step.account]))
    outside = _outside(trace)
    if outside:
        parts.append(_part(engine, trace, len(first), OUTSIDE, outside))
    return parts


def _part(engine: Engine, trace: TraceSummary, index: int, kind: str, account: Account) -> StepTotals:
    sums: dict[str, list[int]] = {}
    for path, (value, calls) in account.items():
        _add(sums, trace.stacks[path], value, calls, path, trace)
    return StepTotals(
        engine=engine.id,
        rank=str(rank_of(trace)),
        stage=stage_of(trace),
        index=index,
        kind=kind,
        stacks=tuple(sums),
        inclusive_ns=tuple(value for value, _ in sums.values()),
        calls=tuple(calls for _, calls in sums.values()),
        spans_made=sum(calls for _, calls in account.values()),
        spans_dropped=0,
    )


def _add(sums: dict[str, list[int]], stack: str, value: int, calls: int, path: int, trace: TraceSummary) -> None:
    """Add a path's value; where its stack was cut to its parent's, the parent has it already."""
    parent = trace.parents[path]
    if parent >= 0 and trace.stacks[parent] == stack:
        return
    entry = sums.setdefault(stack, [0, 0])
    entry[0] += value
    entry[1] += calls
