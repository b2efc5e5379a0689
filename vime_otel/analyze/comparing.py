"""Two sets of traces side by side: what a step of each kind that both have takes, by category and by kernel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from .categories import category_of
from .engines import Engine
from .rank_report import work
from .step_report import ms
from .steps import STEP_KINDS, Kind
from .summary import OUTSIDE

Means = dict[tuple[str, str], float]
"""(step kind, name) → mean milliseconds per step, over all ranks."""


def compare_engines(directory: str, before: Sequence[Engine], after: Sequence[Engine], top_n: int) -> dict[str, Any]:
    """`steps`, `categories` and `names`: lists of {kind, name, before_ms, after_ms}, the greatest change first.

    `notes` say what can't be compared, and what is missing of the traces before.
    """
    alike = _on_device(before) == _on_device(after)
    steps = _rows(_step_means(before, alike), _step_means(after, alike))
    categories = _rows(_means(before, True), _means(after, True)) if alike else []
    names = _rows(_means(before, False), _means(after, False)) if alike else []
    return {
        "directory": directory,
        "notes": list(_notes(before, after)),
        "steps": steps,
        "categories": categories,
        "names": names[:top_n],
    }


def _on_device(engines: Sequence[Engine]) -> bool:
    return any(trace.has_device for engine in engines for trace in engine.traces)


def _notes(before: Sequence[Engine], after: Sequence[Engine]) -> Iterator[str]:
    there, here = _kinds(before), _kinds(after)
    for where, kinds in (("there", there - here), ("here", here - there)):
        if kinds:
            yield f"only {where}: {', '.join(kind for kind in STEP_KINDS if kind in kinds)} steps"
    if _on_device(before) != _on_device(after):
        yield f"a device was traced only {'there' if _on_device(before) else 'here'}: no kernels to compare"
    for engine in before:
        for trace in engine.traces:
            yield from (f"incomplete there: {Path(trace.path).name}: {problem}" for problem in trace.problems)


def _kinds(engines: Sequence[Engine]) -> set[Kind]:
    kinds = {step.kind for engine in engines for trace in engine.traces for step in trace.steps}
    return kinds - {"empty"}


def _rows(before: Means, after: Means) -> list[dict[str, Any]]:
    both = {kind for kind, _ in before} & {kind for kind, _ in after}
    keys = sorted(
        (key for key in before.keys() | after.keys() if key[0] in both),
        key=lambda key: (-abs(after.get(key, 0.0) - before.get(key, 0.0)), key),
    )
    return [
        {
            "kind": kind,
            "name": name,
            "before_ms": before.get((kind, name), 0.0),
            "after_ms": after.get((kind, name), 0.0),
        }
        for kind, name in keys
    ]


def _step_means(engines: Sequence[Engine], on_device: bool) -> Means:
    means: Means = {}
    for kind in STEP_KINDS:
        steps = [step for engine in engines for trace in engine.traces for step in trace.steps if step.kind == kind]
        if steps:
            means[kind, "step"] = ms(sum(step.duration for step in steps) / len(steps))
            busy = sum(step.device_busy for step in steps)
            if busy and on_device:
                means[kind, "device busy"] = ms(busy / len(steps))
    return means


def _means(engines: Sequence[Engine], by_category: bool) -> Means:
    totals: Means = {}
    counts: dict[str, int] = {}
    for engine in engines:
        for trace in engine.traces:
            for step in trace.steps:
                counts[step.kind] = counts.get(step.kind, 0) + 1
            for kind, names in work(trace).items():
                for name, (_, total) in names.items():
                    key = (kind, category_of(name) if by_category else name)
                    totals[key] = totals.get(key, 0.0) + ms(total)
    return {(kind, name): value / counts[kind] for (kind, name), value in totals.items() if kind != OUTSIDE}
