"""A recording of the same engines beside their torch traces: the run in whose folder the traces lie."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..data.recording import KINDS
from ..data.run_files import HEADER_FILE, TORCH_DIR
from ..data.rundir import RunDirectory
from ..data.summary import opening_line, top_frames
from .engines import Engine
from .runs import KIND_OF


@dataclass
class Recorded:
    """What the recorder saw. `rows` have recorded and traced milliseconds per step by kind, `frames` the top frames."""

    run: str
    summary: str
    rows: list[dict[str, Any]]
    frames: list[dict[str, Any]]


def recorded_beside(directory: Path, engines: Sequence[Engine], top_n: int) -> Recorded | None:
    """The recording that the traces below `directory` were gathered for; None where they belong to none.

    Raises VimeOtelError where that run can't be read.
    """
    path = _run_of(directory)
    if path is None:
        return None
    run = RunDirectory(path)
    rows, frames = [], []
    for kind in (kind for kind in KINDS if kind in run.steps):
        own = [row.interval_ns / 1e6 for row in run.rows if row.kind == kind]
        traced = [
            step.duration / 1e6
            for engine in engines
            for step in engine.traces[0].steps
            if KIND_OF.get(step.kind) == kind
        ]
        rows.append(
            {
                "kind": kind,
                "recorded_steps": len(own),
                "recorded_ms": sum(own) / len(own) if own else None,
                "traced_steps": len(traced),
                "traced_ms": sum(traced) / len(traced) if traced else None,
            }
        )
        top = top_frames(run.self_us(kind), run.calls(kind), run.steps[kind], top_n)
        frames += [{"kind": kind, **frame.as_dict()} for frame in top]
    return Recorded(str(path), opening_line(run.header, run.rows), rows, frames)


def _run_of(directory: Path) -> Path | None:
    """The run directory that this is, or whose `torch` folder it lies in."""
    absolute = Path(os.path.abspath(directory))
    within = [parent.parent for parent in (absolute, *absolute.parents) if parent.name == TORCH_DIR]
    return next((path for path in (absolute, *within) if (path / HEADER_FILE).is_file()), None)
