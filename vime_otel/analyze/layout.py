"""The report as headings, lines and tables: what the terminal, Markdown and HTML show alike."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..data.summary import counted
from .beside import Recorded
from .rank_report import KernelRow, OperatorRow, RankReport
from .report import EngineReport, Report
from .step_report import StepRow

Cell = str


@dataclass
class Table:
    """Rows below headings; a heading that begins with `>` is of a column of numbers."""

    headings: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    title: str = ""


@dataclass
class Section:
    """A heading of level 1 to 3, lines of text, then tables, then points with points of their own."""

    title: str
    level: int = 2
    lines: list[str] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    points: list[tuple[str, list[str]]] = field(default_factory=list)


def lay_out(report: Report, all_ranks: bool) -> list[Section]:
    """The sections of a report. Without `all_ranks` one rank of each engine is shown in full."""
    sections = [_opening(report)]
    if report.recorded:
        sections.append(_recorded(report.recorded))
    for engine in report.engines:
        sections.append(_engine(engine))
        sections.append(_findings(engine))
        if len(engine.ranks) > 1:
            sections.append(_ranks(engine))
        for rank in engine.ranks if all_ranks else engine.ranks[:1]:
            sections += _rank(rank)
    if report.baseline:
        sections.append(_baseline(report.baseline))
    return sections


def _opening(report: Report) -> Section:
    traces = sum(len(engine.ranks) for engine in report.engines)
    engines = len(report.engines)
    section = Section(
        f"Torch traces of {report.directory}",
        1,
        [f"{traces} trace{'s' * (traces != 1)} of {engines} engine{'s' * (engines != 1)}"],
    )
    section.lines += [f"left out: {reason}" for reason in report.unread]
    return section


def _recorded(recorded: Recorded) -> Section:
    section = Section("The recording of the same engines", 2, [f"{recorded.run}: {recorded.summary}"])
    section.tables.append(
        Table(
            ["steps", ">recorded", ">ms per step", ">in the traces", ">ms per step"],
            [
                [
                    row["kind"],
                    str(row["recorded_steps"]),
                    _optional(row["recorded_ms"]),
                    str(row["traced_steps"]),
                    _optional(row["traced_ms"]),
                ]
                for row in recorded.rows
            ],
        )
    )
    section.tables.append(
        Table(
            ["recorded frame", "steps", ">self ms/step", ">share", ">calls/step"],
            [
                [f["frame"], f["kind"], f"{f['self_ms']:.3f}", f"{f['share']:.1%}", f"{f['calls']:.1f}"]
                for f in recorded.frames
            ],
        )
    )
    return section


def _optional(value: float | None) -> Cell:
    return "–" if value is None else f"{value:.3f}"


def _engine(engine: EngineReport) -> Section:
    first = engine.ranks[0]
    steps = " · ".join(_step_line(row) for row in first.steps.rows)
    return Section(
        f"{'Frontend' if engine.frontend else 'Engine'} {engine.engine.removeprefix('engine ')}",
        2,
        [f"{steps}; steps from {first.steps.source}" if steps else f"no steps; {first.steps.source}"],
    )


def _step_line(row: StepRow) -> str:
    batch = f"batch {row.batch.p50:.0f}, " if row.batch.most else ""
    return f"{row.kind} {row.step_ms.mean:.3f} ms ({batch}{row.steps} step{'s' * (row.steps != 1)})"


def _findings(engine: EngineReport) -> Section:
    section = Section("Findings", 3, list(_reservations(engine.ranks)))
    if not engine.findings:
        section.lines.append("nothing is above the thresholds")
    section.points = [
        (
            f"{finding.what}: {finding.ms_per_step:.3f} ms per step, {finding.where} [{finding.threshold}]",
            finding.evidence,
        )
        for finding in engine.findings
    ]
    return section


def _reservations(ranks: Sequence[RankReport]) -> Iterator[str]:
    """What the findings on an incomplete trace are to be read with."""
    for rank in ranks:
        if rank.problems:
            idle = "; idle time is not judged" if rank.cut and rank.timeline.of == "device" else ""
            yield f"the trace of {rank.rank} is incomplete, and so is every figure{idle}"


def _ranks(engine: EngineReport) -> Section:
    columns = (
        ("rank", "rank"),
        (">steps", "steps"),
        (">ms/step", "ms_per_step"),
        (">busy", "busy_ms_per_step"),
        (">communication", "communication_ms_per_step"),
        (">exposed", "exposed_ms_per_step"),
        (">waits", "waited_ms_per_step"),
        (">last in", "last_in"),
        (">delays others", "delayed_others_ms_per_step"),
        (">profiler start", "profiler_start_ms"),
        (">clock", "clock_offset_ms"),
    )
    used = [(heading, key) for heading, key in columns if key in engine.rank_table[0]]
    rows = [[_cell(key, row[key]) for _, key in used] for row in engine.rank_table]
    section = Section(
        "Ranks", 3, ["ms per step; waits, delays: collectives, with clocks and profiler starts set right"]
    )
    if engine.comparison and engine.comparison.reason:
        section.lines = [f"ms per step; who waits for whom is not known: {engine.comparison.reason}"]
    section.tables.append(Table([heading for heading, _ in used], rows))
    return section


def _cell(key: str, value: object) -> Cell:
    if key == "last_in" and isinstance(value, float):
        return f"{value:.0%}"
    return f"{round(value, 3) + 0.0:.3f}" if isinstance(value, float) else str(value)


def _rank(rank: RankReport) -> list[Section]:
    about = Section(f"{rank.rank}: {rank.file}", 3, list(_about(rank)))
    timeline = rank.timeline
    span = timeline.span or 1.0
    shares = [
        (f"{timeline.of} span", timeline.span),
        ("busy", timeline.busy),
        ("idle", timeline.idle),
        ("communication", timeline.communication),
        ("exposed communication", timeline.exposed),
    ]
    rows = [
        ["wall", f"{timeline.wall:.3f}", ""],
        *([name, f"{value:.3f}", f"{value / span:.1%}"] for name, value in shares),
    ]
    about.tables.append(Table(["timeline", ">ms", ">of the span"], rows))
    about.tables += _steps(rank)
    kinds = [row.kind for row in rank.steps.rows]
    what = "kernels by category" if timeline.of == "device" else "operators by category (self time)"
    about.tables.append(
        Table(
            [what, ">count", ">ms", ">share", *(f">ms/{kind}" for kind in kinds)],
            [
                [
                    r.category,
                    str(r.count),
                    f"{r.ms:.3f}",
                    f"{r.share:.1%}",
                    *(_optional(r.per_step.get(kind)) for kind in kinds),
                ]
                for r in rank.categories
            ],
        )
    )
    if rank.kernels:
        about.tables.append(_kernels("kernel", rank.kernels))
    if rank.operators:
        about.tables.append(Table(["host (self time)", *_USE], [_use(row) for row in rank.operators]))
    if rank.runtime:
        about.tables.append(_kernels("runtime call", rank.runtime))
    about.tables += _device_tables(rank)
    return [about]


def _about(rank: RankReport) -> Iterable[str]:
    process = f"{rank.process or 'process'} {rank.pid}" if rank.pid is not None else "no process named"
    began = f", from {rank.began}" if rank.began else ""
    yield f"{counted(rank.events, 'event')}, {rank.text_mb:,.1f} MB of JSON; {process}{began}"
    yield from rank.hardware
    if rank.configuration:
        yield ", ".join(f"{key} {value}" for key, value in rank.configuration.items())
    yield from (f"incomplete: {problem}" for problem in rank.problems)
    yield from (f"note: {oddity}" for oddity in rank.oddities)
    if rank.unmatched_kernels:
        have = "has" if rank.unmatched_kernels == 1 else "have"
        yield f"note: {counted(rank.unmatched_kernels, 'kernel')} {have} no launch in the trace, and so no step"
    if rank.graphs:
        graphs = rank.graphs
        yield (
            f"CUDA graphs: {graphs.launches} launches ({graphs.launch_ms:.3f} ms on the host) ran {graphs.kernels}"
            f" kernels, {graphs.kernel_ms:.3f} ms, {graphs.share:.1%} of the kernel time"
        )
    steps = rank.steps
    if steps.generation_tokens_per_second is not None and steps.context_tokens_per_second is not None:
        yield (
            f"{steps.generation_tokens_per_second:,.1f} generation and {steps.context_tokens_per_second:,.1f} prompt"
            f" tokens per second over {steps.seconds:.3f} s, as scheduled"
        )
    if steps.empty:
        yield f"{steps.empty} steps without tokens are counted nowhere"


def _steps(rank: RankReport) -> list[Table]:
    if not rank.steps.rows:
        return []
    device = rank.timeline.of == "device"
    headings = [
        "steps",
        ">count",
        ">batch",
        ">tokens",
        ">mean ms",
        ">p50",
        ">p90",
        ">p99",
        ">most",
        ">annotated",
        ">cadence",
        ">tokens/s",
    ]
    rows = []
    for row in rank.steps.rows:
        tokens = row.context_tokens + row.generation_tokens
        cells = [row.kind, str(row.steps), _batch(row), str(tokens) if tokens else "–"]
        cells += [
            f"{value:.3f}"
            for value in (row.step_ms.mean, row.step_ms.p50, row.step_ms.p90, row.step_ms.p99, row.step_ms.most)
        ]
        cells += [f"{row.annotated_ms.mean:.3f}", f"{row.cadence_ms.p50:.3f}" if row.cadence_ms else "–"]
        cells.append(f"{row.tokens_per_second:,.1f}" if row.tokens_per_second else "–")
        rows.append(cells + ([_optional(row.device_busy_ms), _optional(row.device_span_ms)] if device else []))
    return [Table(headings + ([">device busy", ">device span"] if device else []), rows)]


def _batch(row: StepRow) -> str:
    if not row.batch.most:
        return "–"
    return (
        f"{row.batch.p50:.0f}" if row.batch.p50 == row.batch.most else f"{row.batch.p50:.0f} (≤ {row.batch.most:.0f})"
    )


_USE = ("category", ">count", ">ms", ">share", ">mean µs")


def _kernels(what: str, found: Sequence[KernelRow]) -> Table:
    return Table(
        [what, *_USE, ">longest µs", ">at s"],
        [[*_use(row), f"{row.longest_us:.1f}", f"{row.longest_at_s:.6f}"] for row in found],
    )


def _use(row: KernelRow | OperatorRow) -> list[Cell]:
    return [row.name, row.category, str(row.count), f"{row.ms:.3f}", f"{row.share:.1%}", f"{row.mean_us:.1f}"]


def _device_tables(rank: RankReport) -> list[Table]:
    tables = []
    if rank.gaps and rank.gaps.explained:
        gaps = rank.gaps
        tables.append(
            Table(
                ["idle gaps: on the host meanwhile", "within", ">gaps", ">ms"],
                [[g["host_activity"], g["within"], str(g["gaps"]), f"{g['ms']:.3f}"] for g in gaps.explained],
                f"{gaps.count} gaps, {gaps.ms:.3f} ms; the {gaps.examined} longest make {gaps.examined_ms:.3f} ms",
            )
        )
        tables.append(
            Table(
                ["longest gaps", ">at s", ">ms", ">explains", "within"],
                [
                    [g["host_activity"], f"{g['at_s']:.6f}", f"{g['ms']:.3f}", f"{g['share']:.0%}", g["within"]]
                    for g in gaps.longest
                ],
            )
        )
    if rank.streams:
        tables.append(
            Table(
                ["device", "stream", ">events", ">busy ms", ">communication ms"],
                [
                    [
                        str(s["device"]),
                        str(s["stream"]),
                        str(s["events"]),
                        f"{s['busy_ms']:.3f}",
                        f"{s['communication_ms']:.3f}",
                    ]
                    for s in rank.streams
                ],
            )
        )
    tables.append(
        Table(
            ["thread", ">tid", ">events", ">traced ms", ">launches"],
            [
                [t["thread"], str(t["tid"]), str(t["events"]), f"{t['traced_ms']:.3f}", str(t["launches"])]
                for t in rank.threads
            ],
        )
    )
    return tables


def _baseline(baseline: dict[str, Any]) -> Section:
    section = Section(f"Compared with {baseline['directory']}", 2, ["ms per step; + is slower than there"])
    section.lines += [f"left out there: {reason}" for reason in baseline["unread"]]
    section.lines += baseline["notes"]
    for title, key in (("steps", "steps"), ("categories", "categories"), ("kernels", "names")):
        if rows := baseline[key]:
            section.tables.append(
                Table(
                    [title, "steps of", ">there", ">here", ">difference", ">ratio"],
                    [
                        [
                            row["name"],
                            row["kind"],
                            f"{row['before_ms']:.3f}",
                            f"{row['after_ms']:.3f}",
                            f"{round(row['after_ms'] - row['before_ms'], 3) + 0.0:+.3f}",
                            f"{row['after_ms'] / row['before_ms']:.2f}" if row["before_ms"] else "new",
                        ]
                        for row in rows
                    ],
                )
            )
    return section
