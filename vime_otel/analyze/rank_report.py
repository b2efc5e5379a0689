"""The report of one rank: one trace. Milliseconds unless a name says otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from .categories import category_of
from .device import Usage
from .engines import rank_label
from .step_report import Steps, ms, step_report
from .steps import STEP_KINDS
from .summary import OUTSIDE, HostUse, TraceSummary


@dataclass
class Timeline:
    """Of the device, or where there is none of the host. `exposed` is communication that nothing else covers."""

    of: str
    wall: float
    span: float
    busy: float
    idle: float
    communication: float
    exposed: float


@dataclass
class CategoryRow:
    """One kind of work; `per_step` has its milliseconds per step by step kind, as far as the steps are known."""

    category: str
    count: int
    ms: float
    share: float
    per_step: dict[str, float]


@dataclass
class KernelRow:
    """A kernel, or a call of the device's runtime."""

    name: str
    category: str
    count: int
    ms: float
    share: float
    mean_us: float
    longest_us: float
    longest_at_s: float


@dataclass
class OperatorRow:
    """An operator, a Python function or a call on the host, by its self time."""

    name: str
    category: str
    count: int
    ms: float
    share: float
    mean_us: float


@dataclass
class Gaps:
    """The device's idle gaps. Of the longest the launching thread's activity is known: `explained` sums it up."""

    count: int
    ms: float
    examined: int
    examined_ms: float
    explained: list[dict[str, Any]]
    longest: list[dict[str, Any]]


@dataclass
class Graphs:
    """CUDA graph launches."""

    launches: int
    launch_ms: float
    kernels: int
    kernel_ms: float
    share: float


@dataclass
class RankReport:
    """One trace. `cut` says that its end is missing."""

    rank: str
    file: str
    events: int
    text_mb: float
    pid: int | None
    process: str
    began: str | None
    hardware: list[str]
    configuration: dict[str, str]
    problems: list[str]
    oddities: list[str]
    timeline: Timeline
    categories: list[CategoryRow]
    kernels: list[KernelRow]
    operators: list[OperatorRow]
    runtime: list[KernelRow]
    graphs: Graphs | None
    steps: Steps
    gaps: Gaps | None
    streams: list[dict[str, Any]]
    threads: list[dict[str, Any]]
    unmatched_kernels: int
    cut: bool


def rank_report(trace: TraceSummary, top_n: int) -> RankReport:
    """The report of one trace."""
    timeline = trace.timeline
    return RankReport(
        rank=rank_label(trace),
        file=trace.path,
        events=trace.events,
        text_mb=trace.text_bytes / 1e6,
        pid=trace.pid,
        process=trace.process_name,
        began=_began(trace),
        hardware=_hardware(trace),
        configuration=_configuration(trace),
        problems=trace.problems,
        oddities=trace.oddities,
        timeline=Timeline(
            "device" if trace.has_device else "host",
            ms(trace.end - trace.begin),
            ms(timeline.span),
            ms(timeline.busy),
            ms(timeline.idle),
            ms(timeline.communication),
            ms(timeline.exposed),
        ),
        categories=_categories(trace),
        kernels=_kernels(trace, top_n),
        operators=_operators(trace, top_n),
        runtime=_usages(trace, trace.runtime, top_n, sum(usage.total for usage in trace.runtime.values())),
        graphs=_graphs(trace),
        steps=step_report(trace.steps, trace.step_source),
        gaps=_gaps(trace, top_n),
        streams=[
            {
                "device": stream.device,
                "stream": stream.stream,
                "events": stream.events,
                "busy_ms": ms(stream.busy),
                "communication_ms": ms(stream.communication),
            }
            for stream in trace.device.streams
        ],
        threads=[
            {
                "thread": use.label,
                "tid": use.tid,
                "events": use.events,
                "traced_ms": ms(use.traced),
                "launches": use.launches,
            }
            for use in sorted(trace.threads, key=lambda use: -use.traced)
        ],
        unmatched_kernels=trace.unmatched_kernels,
        cut=trace.cut,
    )


def _began(trace: TraceSummary) -> str | None:
    seconds = trace.unix_ns(trace.begin) / 1e9
    # A trace without a base may count from the machine's start.
    if (not trace.unix_base_ns and seconds < 1e9) or seconds > 1e11:
        return None
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="milliseconds")


def _hardware(trace: TraceSummary) -> list[str]:
    devices = trace.header.get("deviceProperties")
    alike: dict[str, list[str]] = {}
    for device in devices if isinstance(devices, list) else ():
        if not isinstance(device, dict):
            continue
        memory = device.get("totalGlobalMem")
        size = f", {memory / 2**30:.0f} GiB" if isinstance(memory, int | float) else ""
        capability = (
            f", compute {device.get('computeMajor')}.{device.get('computeMinor')}" if "computeMajor" in device else ""
        )
        units = f", {device['numSms']} SMs" if "numSms" in device else ""
        alike.setdefault(f"{device.get('name')}{size}{units}{capability}", []).append(str(device.get("id")))
    found = [f"device{'s' * (len(ids) > 1)} {', '.join(ids)}: {what}" for what, ids in alike.items()]
    return found or (["CPU only"] if not trace.has_device else [])


def _configuration(trace: TraceSummary) -> dict[str, str]:
    told: dict[str, str] = {}
    for key in ("vllm_version", "host_name", "cuda_runtime_version", "cuda_driver_version", "hip_runtime_version"):
        if key in trace.header:
            told[key] = str(trace.header[key])
    for key in ("with_stack", "record_shapes", "profile_memory", "with_flops"):
        if trace.header.get(key):
            told[key] = "yes"
    distributed = trace.header.get("distributedInfo")
    if isinstance(distributed, dict):
        told |= {key: str(distributed[key]) for key in ("backend", "world_size", "nccl_version") if key in distributed}
    told |= {name: str(number) for name, number in trace.name.ranks.items()}
    return told


def _step_counts(trace: TraceSummary) -> dict[str, int]:
    counts: dict[str, int] = {}
    for step in trace.steps:
        if step.kind != "empty":
            counts[step.kind] = counts.get(step.kind, 0) + 1
    return {kind: counts[kind] for kind in STEP_KINDS if kind in counts}


def work(trace: TraceSummary) -> dict[str, dict[str, tuple[int, int]]]:
    """By step kind and name (count, nanoseconds): kernels, or on CPU-only traces operators by self time."""
    if trace.has_device:
        return {
            kind: {name: (usage.count, usage.total) for name, usage in table.items()}
            for kind, table in trace.kernels.items()
        }
    return {
        kind: {name: (use.calls, use.own) for name, use in table.items()} for kind, table in trace.operators.items()
    }


def _categories(trace: TraceSummary) -> list[CategoryRow]:
    counts = _step_counts(trace)
    found = work(trace)
    per_step = dict.fromkeys(counts if found.keys() & counts.keys() else (), 0.0)
    rows: dict[str, CategoryRow] = {}
    for kind, names in found.items():
        for name, (count, total) in names.items():
            category = category_of(name)
            row = rows.setdefault(category, CategoryRow(category, 0, 0.0, 0.0, dict(per_step)))
            row.count += count
            row.ms += ms(total)
            if kind != OUTSIDE:
                row.per_step[kind] += ms(total) / counts[kind]
    whole = sum(row.ms for row in rows.values()) or 1.0
    for row in rows.values():
        row.share = row.ms / whole
    return sorted(rows.values(), key=lambda row: -row.ms)


def _kernels(trace: TraceSummary, top_n: int) -> list[KernelRow]:
    totals: dict[str, Usage] = {}
    for table in trace.kernels.values():
        for name, usage in table.items():
            totals.setdefault(name, Usage()).merge(usage)
    return _usages(trace, totals, top_n, sum(usage.total for usage in totals.values()))


def _usages(trace: TraceSummary, usages: Mapping[str, Usage], top_n: int, whole: int) -> list[KernelRow]:
    ranking = sorted(usages.items(), key=lambda item: (-item[1].total, item[0]))[:top_n]
    return [
        KernelRow(
            name,
            category_of(name),
            usage.count,
            ms(usage.total),
            usage.total / (whole or 1),
            usage.total / usage.count / 1000,
            usage.longest / 1000,
            trace.seconds(usage.longest_at),
        )
        for name, usage in ranking
    ]


def _operators(trace: TraceSummary, top_n: int) -> list[OperatorRow]:
    totals: dict[str, HostUse] = {}
    for table in trace.operators.values():
        for name, use in table.items():
            total = totals.setdefault(name, HostUse())
            total.calls += use.calls
            total.own += use.own
    whole = sum(use.own for use in totals.values()) or 1
    ranking = sorted(totals.items(), key=lambda item: (-item[1].own, item[0]))[:top_n]
    return [
        OperatorRow(
            name, category_of(name), use.calls, ms(use.own), use.own / whole, use.own / max(use.calls, 1) / 1000
        )
        for name, use in ranking
    ]


def _graphs(trace: TraceSummary) -> Graphs | None:
    launches = trace.graph_launches
    if not launches.count:
        return None
    whole = sum(usage.total for table in trace.kernels.values() for usage in table.values()) or 1
    return Graphs(
        launches.count, ms(launches.total), trace.graph_kernels, ms(trace.graph_busy), trace.graph_busy / whole
    )


def _gaps(trace: TraceSummary, top_n: int) -> Gaps | None:
    if not trace.has_device:
        return None
    explained: dict[tuple[str, str], list[int]] = {}
    for gap in trace.gaps:
        entry = explained.setdefault((gap.explained_by, gap.within), [0, 0])
        entry[0] += gap.end - gap.begin
        entry[1] += 1
    longest = sorted(trace.gaps, key=lambda gap: gap.begin - gap.end)[:top_n]
    return Gaps(
        trace.gap_count,
        ms(trace.device.timeline.idle),
        len(trace.gaps),
        ms(sum(gap.end - gap.begin for gap in trace.gaps)),
        [
            {"host_activity": name, "within": within, "ms": ms(total), "gaps": count}
            for (name, within), (total, count) in sorted(explained.items(), key=lambda item: -item[1][0])[:top_n]
        ],
        [
            {
                "at_s": trace.seconds(gap.begin),
                "ms": ms(gap.end - gap.begin),
                "step": gap.step,
                "host_activity": gap.explained_by,
                "within": gap.within,
                "share": gap.explained,
            }
            for gap in longest
        ],
    )
