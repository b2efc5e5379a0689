"""What a person reads first of a recording: the opening line and the top frames."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from .folded import unescape_frame
from .recording import StepRow


@dataclass(frozen=True)
class TopFrame:
    """One line of the table: a frame, wherever it stands in a stack. Times per step."""

    frame: str
    self_ms: float
    share: float
    calls: float
    ms_per_call: float

    def as_dict(self) -> dict[str, Any]:
        """The line for JSON."""
        return asdict(self)


def counted(number: int, noun: str) -> str:
    """`1 step`, `2 steps`."""
    return f"{number} {noun}{'s' * (number != 1)}"


def top_frames(self_us: Mapping[str, int], calls: Mapping[str, int], steps: int, limit: int = 25) -> list[TopFrame]:
    """The frames with most self time, in ms per step; `share` is of all time, 0 to 1."""
    own: dict[str, int] = {}
    called: dict[str, int] = {}
    for stack, value in self_us.items():
        frame = stack.rpartition(";")[2]
        own[frame] = own.get(frame, 0) + value
    for stack, value in calls.items():
        frame = stack.rpartition(";")[2]
        called[frame] = called.get(frame, 0) + value
    whole = sum(own.values()) or 1
    steps = max(steps, 1)
    ranking = sorted(own.items(), key=lambda item: (-item[1], item[0]))[:limit]
    return [
        TopFrame(
            unescape_frame(frame),
            value / 1000 / steps,
            value / whole,
            called.get(frame, 0) / steps,
            value / 1000 / called[frame] if called.get(frame) else 0.0,
        )
        for frame, value in ranking
    ]


def opening_line(header: Mapping[str, Any], rows: list[StepRow]) -> str:
    """What was measured and how, in one line for people."""
    parts = []
    for kind in ("decode", "prefill"):
        chosen = [row for row in rows if row.kind == kind]
        if chosen:
            mean_ms = sum(row.interval_ns for row in chosen) / len(chosen) / 1e6
            batch = int(median(row.requests for row in chosen))
            parts.append(f"{kind} step {mean_ms:.1f} ms (batch {batch}, {counted(len(chosen), 'step')})")
    engines = len({row.engine for row in rows})
    executions = ", ".join(sorted({row.execution for row in rows})) or "nothing executed"
    return (
        f"recorded {' · '.join(parts) or 'no steps'} on {counted(engines, 'engine')}"
        f" ({executions}, timing {header.get('timing', '?')})"
    )
