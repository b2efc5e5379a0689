"""The report as a value: what `analyze` shows in every format. Milliseconds unless a name says otherwise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .beside import Recorded
from .engines import Engine, rank_of
from .findings import Finding, find
from .rank_report import RankReport, rank_report
from .skew import Comparison, compare
from .step_report import ms


@dataclass
class EngineReport:
    """One engine: its ranks, and how they compare."""

    engine: str
    id: str
    frontend: bool
    ranks: list[RankReport]
    rank_table: list[dict[str, Any]]
    comparison: Comparison | None
    findings: list[Finding]


@dataclass
class Report:
    """All of it. `unread` are files that could not be read at all."""

    directory: str
    engines: list[EngineReport]
    unread: list[str] = field(default_factory=list)
    run: str | None = None
    recorded: Recorded | None = None
    """The recording whose folder the traces lie in."""
    baseline: dict[str, Any] | None = None


def build(
    directory: str, engines: Sequence[Engine], thresholds: Mapping[str, float], top_n: int, unread: Sequence[str] = ()
) -> Report:
    """The report of these engines."""
    return Report(directory, [_engine(engine, thresholds, top_n) for engine in engines], list(unread))


def _engine(engine: Engine, thresholds: Mapping[str, float], top_n: int) -> EngineReport:
    comparison = compare(engine.traces) if len(engine.traces) > 1 else None
    ranks = [rank_report(trace, top_n) for trace in engine.traces]
    return EngineReport(
        engine.label,
        engine.id,
        engine.frontend,
        ranks,
        _rank_table(engine, ranks, comparison),
        comparison,
        find(engine.traces, comparison, thresholds),
    )


def _rank_table(engine: Engine, ranks: Sequence[RankReport], comparison: Comparison | None) -> list[dict[str, Any]]:
    table = []
    for number, (trace, rank) in enumerate(zip(engine.traces, ranks, strict=True)):
        steps = max(sum(row.steps for row in rank.steps.rows), 1)
        row: dict[str, Any] = {
            "rank": rank.rank,
            "number": rank_of(trace),
            "file": Path(trace.path).name,
            "steps": steps,
            "ms_per_step": sum(r.step_ms.mean * r.steps for r in rank.steps.rows) / steps,
            "busy_ms_per_step": rank.timeline.busy / steps,
            "communication_ms_per_step": rank.timeline.communication / steps,
            "exposed_ms_per_step": rank.timeline.exposed / steps,
        }
        if comparison and not comparison.reason:
            skew = comparison.ranks[number]
            row |= {
                "clock_offset_ms": ms(skew.clock_offset_ns),
                "profiler_start_ms": ms(skew.profiler_start_ns),
                "waited_ms_per_step": ms(skew.waited_ns) / steps,
                "last_in": skew.last / max(skew.collectives, 1),
                "delayed_others_ms_per_step": ms(skew.delayed_ns) / steps,
            }
        table.append(row)
    return table
