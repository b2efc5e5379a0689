"""What a person reads first of a recording: the opening line, what it cost, notes, and the top frames."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import mean, median
from typing import Any

from .folded import layers_of, unescape_frame
from .recording import IDLE, StepRow, in_order

_MUCH_SLOWER = 1.25
"""Times as long: from here on a recorded step says little about an unrecorded one, or a mean about a usual one."""

_NOT_MS = "read shares, not milliseconds"
_WHOLE_TREE = f"record with --force-eager to see the whole tree (it runs other kernels: {_NOT_MS})"
_EXPLAINED = {
    "compiled": f"compiled regions run as one: modules inside them show no frames of their own; {_WHOLE_TREE}",
    "piecewise": f"CUDA graphs are replayed in place of the modules between attention layers, which show no frames of"
    f" their own; {_WHOLE_TREE}",
    "full_graph": f"one CUDA graph is replayed in place of the whole model, and no module shows a frame of its own;"
    f" {_WHOLE_TREE}",
    "forced_eager": f"compiled code and CUDA graphs were set aside for this recording, so other kernels ran than"
    f" usual: {_NOT_MS}",
}
_LABELS_SHOWN = 3


@dataclass(frozen=True)
class TopFrame:
    """One line of the table: a frame, wherever it stands in a stack. Times per step.

    `layer` are the numbered layers that it stands in, `layers.3`; empty where layers are merged.
    """

    frame: str
    self_ms: float
    share: float
    calls: float
    ms_per_call: float
    layer: str = ""

    def as_dict(self) -> dict[str, Any]:
        """The line for JSON."""
        return asdict(self)


def counted(number: int, noun: str) -> str:
    """`1 step`, `2,000 steps`."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def top_frames(self_us: Mapping[str, int], calls: Mapping[str, int], steps: int, limit: int = 25) -> list[TopFrame]:
    """The frames with most self time, in ms per step; `share` is of all time, 0 to 1. Layers are told apart."""
    own = _by_frame(self_us)
    called = _by_frame(calls)
    whole = sum(own.values()) or 1
    steps = max(steps, 1)
    ranking = sorted(own.items(), key=lambda item: (-item[1], item[0]))[:limit]
    return [
        TopFrame(
            unescape_frame(frame),
            value / 1000 / steps,
            value / whole,
            called.get((layers, frame), 0) / steps,
            value / 1000 / called[layers, frame] if called.get((layers, frame)) else 0.0,
            " ".join(f"{unescape_frame(name)}.{number}" for name, number in layers),
        )
        for (layers, frame), value in ranking
    ]


def _by_frame(values: Mapping[str, int]) -> dict[tuple[tuple[tuple[str, int], ...], str], int]:
    found: dict[tuple[tuple[tuple[str, int], ...], str], int] = {}
    for stack, value in values.items():
        key = (layers_of(stack), stack.rpartition(";")[2])
        found[key] = found.get(key, 0) + value
    return found


def opening_line(header: Mapping[str, Any], rows: Sequence[StepRow]) -> str:
    """What was measured and how, in one line for people."""
    if header.get("source"):
        return f"read from the file {header['source']}"
    if header.get("service"):
        return _service_line(header)
    parts = []
    production_ms = None
    paces = [pace for engine in _engines(header) if (pace := _production(engine))]
    if paces:
        production_ms = mean(ms for ms, _ in paces)
        batch = round(mean(batch for _, batch in paces))
        recorded_on = len({row.engine for row in rows})
        where = f" on {counted(len(paces), 'engine')}" if len(paces) < recorded_on else ""
        parts.append(f"production step {production_ms:.1f} ms (batch {batch}){where}")
    recorded: list[str] = []
    slow, told = False, ""
    for kind in in_order(row.kind for row in rows):
        chosen = [row for row in rows if row.kind == kind]
        step_ms = mean(row.interval_ns for row in chosen) / 1e6
        usual_ms = median(row.interval_ns for row in chosen) / 1e6
        details = [counted(len(chosen), "step")]
        if step_ms > _MUCH_SLOWER * usual_ms:  # a few long steps
            details.append(f"median {usual_ms:.1f} ms")
        if kind == "decode":
            details.insert(0, f"batch {int(median(row.requests for row in chosen))}")
            slow = production_ms is not None and usual_ms > _MUCH_SLOWER * production_ms
        execution = ", ".join(sorted({row.execution for row in chosen})).replace("_", " ")
        if execution != told:
            details.append(execution)
        if not recorded:
            details.append(str(header.get("timing") or "timing unknown"))
        told = execution
        recorded.append(f"{kind} step {step_ms:.1f} ms ({', '.join(details)})")
    idle = sum(row.kind == IDLE for row in rows)
    if idle:
        recorded.append(counted(idle, "idle step"))
    recorded = recorded or ["no steps"]
    parts += [f"recorded {recorded[0]}", *recorded[1:]]
    forced = any("forced_eager" in _executions(row) for row in rows)
    line = f"{' · '.join(parts)} on {counted(len({row.engine for row in rows}), 'engine')}"
    return f"{line}: {_NOT_MS}" if slow or forced else line


def _service_line(header: Mapping[str, Any]) -> str:
    """What a run of another service's spans holds."""
    traces = header.get("traces") or {}
    spans = ((header.get("intake") or {}).get("spans") or {}).get("kept", 0)
    parts = [
        f"{counted(spans, 'span')} in {counted(traces.get('folded', 0), 'trace')} of the service {header['service']}"
        f" on {str(header.get('created'))[:10]}, folded by their parents"
    ]
    if traces.get("orphans"):
        parts.append(f"{counted(traces['orphans'], 'span')} without their parent")
    if traces.get("overlapping"):
        parts.append(f"{counted(traces['overlapping'], 'span')} with overlapping children")
    return " · ".join(parts)


def _production(engine: Mapping[str, Any]) -> tuple[float, int] | None:
    """(ms, batch) of an engine's unrecorded decode steps around the window, where known."""
    pace = (engine.get("unrecorded") or {}).get("decode") or {}
    known = [ms for ms in (pace.get("before_ms"), pace.get("after_ms")) if ms is not None]
    return (mean(known), pace.get("batch", 0)) if known else None


def cost_line(header: Mapping[str, Any]) -> str:
    """What recording cost the engines, in one line for people; empty where a run does not say."""
    overheads = [engine.get("overhead") or {} for engine in _engines(header)]
    added_us = [overhead["added_us_per_step"] for overhead in overheads if "added_us_per_step" in overhead]
    texts = []
    if added_us:
        most = max(added_us)
        amount = f"{most / 1000:.1f} ms" if most >= 1000 else f"{most:.0f} µs"
        texts.append(f"recording added about {amount} to a step (calculated from what a span costs)")
    if "pause_ms" in header:
        texts.append(f"the longest pause between two steps was {header['pause_ms']:.1f} ms")
    return "; ".join(texts)


def notes(header: Mapping[str, Any], rows: Sequence[StepRow]) -> list[str]:
    """What to know when reading a run, one sentence each; worked out here where a run does not hold them."""
    told: list[str] | None = header.get("notes")
    return make_notes(_engines(header), rows) if told is None else told


def make_notes(engines: Sequence[Mapping[str, Any]], rows: Sequence[StepRow]) -> list[str]:
    """Why trees are short, which hooks are missing, and what the engines themselves noted."""
    texts = []
    steps = [_executions(row) for row in rows if row.kind != IDLE]
    for execution, text in _EXPLAINED.items():
        count = sum(execution in each for each in steps)
        if count:
            texts.append(f"{execution.replace('_', ' ')} ({count} of {counted(len(steps), 'step')}): {text}")
    texts += _told_by_engines(engines, _missing)
    texts += _told_by_engines(engines, lambda engine: engine.get("notes") or [])
    return list(dict.fromkeys(texts))


def _missing(engine: Mapping[str, Any]) -> list[str]:
    names = (engine.get("hooks") or {}).get("missing")
    return [f"not found in this vLLM, so without frames of their own: {', '.join(names)}"] if names else []


def _told_by_engines(
    engines: Sequence[Mapping[str, Any]], texts_of: Callable[[Mapping[str, Any]], Sequence[str]]
) -> list[str]:
    """Each text once, with the engines' labels where not all of them tell it."""
    tellers: dict[str, list[str]] = {}
    for engine in engines:
        for text in dict.fromkeys(texts_of(engine)):
            tellers.setdefault(text, []).append(str(engine.get("label") or engine.get("id")))
    return [text if len(by) == len(engines) else f"{text} ({_shown(by)})" for text, by in tellers.items()]


def _shown(labels: Sequence[str]) -> str:
    more = len(labels) - _LABELS_SHOWN
    return ", ".join(labels[:_LABELS_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _executions(row: StepRow) -> list[str]:
    """How the ranks ran a step; more than one where they differ."""
    return row.execution.split("+")


def _engines(header: Mapping[str, Any]) -> list[dict[str, Any]]:
    engines: list[dict[str, Any]] = header.get("engines") or []
    return engines
