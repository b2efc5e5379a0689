"""What stands out in the traces of one engine. Figures and events of each finding come from these traces."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from .categories import EXCHANGES, category_of
from .device import WAITING, Usage
from .engines import rank_label
from .gaps import Gap
from .skew import Comparison
from .steps import STEP_KINDS, Step
from .summary import OUTSIDE, TraceSummary

_EVENTS_SHOWN = 3
_TINY_NS = 10_000
_LAUNCHING = re.compile(r"(?:cuda|hip|cu)\w*Launch\w*\Z")
_HOST_COPIES = ("copy HtoD", "copy DtoH")
_NO_KERNELS = ("copy", "memset")
_NAME_SHOWN = 90


@dataclass
class Finding:
    """`what` stands out, `where`; what it takes of a step; the events that show it; the threshold that it is above."""

    what: str
    where: str
    ms_per_step: float
    evidence: list[str] = field(default_factory=list)
    threshold: str = ""


@dataclass(frozen=True)
class _Rank:
    """A trace as the rules look at it."""

    trace: TraceSummary
    limits: Mapping[str, float]

    @property
    def label(self) -> str:
        return rank_label(self.trace)

    @property
    def steps(self) -> list[Step]:
        return [step for step in self.trace.steps if step.kind != "empty"]

    @property
    def step_ns(self) -> int:
        """The time of all steps."""
        return sum(step.duration for step in self.steps)

    def per_step(self, nanoseconds: float) -> float:
        """Milliseconds per step."""
        return nanoseconds / 1e6 / max(len(self.steps), 1)

    def at(self, time: int) -> str:
        """A time as the report names it."""
        return f"at {self.trace.seconds(time):.6f} s"

    def kernels(self) -> dict[str, Usage]:
        """Kernels and copies by name."""
        totals: dict[str, Usage] = {}
        for table in self.trace.kernels.values():
            for name, usage in table.items():
                totals.setdefault(name, Usage()).merge(usage)
        return totals

    def usages(self, usages: Mapping[str, Usage]) -> list[str]:
        """The names with most time, each with its longest event."""
        ranking = sorted(usages.items(), key=lambda item: -item[1].total)[:_EVENTS_SHOWN]
        return [
            f"{_short(name)}: {usage.count} times, {usage.total / 1e6:.3f} ms;"
            f" the longest {usage.longest / 1000:.1f} µs {self.at(usage.longest_at)}"
            for name, usage in ranking
        ]


def find(
    traces: Sequence[TraceSummary], comparison: Comparison | None, thresholds: Mapping[str, float]
) -> list[Finding]:
    """The findings of one engine's ranks, the costliest first; alike ones of several ranks become one."""
    found: list[Finding] = []
    for trace in traces:
        rank = _Rank(trace, thresholds)
        for rule in _RULES:
            found += rule(rank)
    if comparison and not comparison.reason:
        found += _of_comparison(traces, comparison, thresholds)
    return sorted(_merged(found), key=lambda finding: -finding.ms_per_step)


def _merged(found: Sequence[Finding]) -> list[Finding]:
    """One finding a threshold: that of the rank it costs most, naming the others."""
    by_threshold: dict[str, list[Finding]] = {}
    for finding in found:
        by_threshold.setdefault(finding.threshold, []).append(finding)
    merged = []
    for alike in by_threshold.values():
        alike.sort(key=lambda finding: -finding.ms_per_step)
        worst, others = alike[0], alike[1:]
        if others:
            worst.evidence.append("also " + ", ".join(f"{o.where} ({o.ms_per_step:.3f} ms per step)" for o in others))
        merged.append(worst)
    return merged


def _short(name: str) -> str:
    return name if len(name) <= _NAME_SHOWN else f"{name[: _NAME_SHOWN - 1]}…"


def _device_idle(rank: _Rank) -> Iterator[Finding]:
    timeline = rank.trace.timeline
    if not rank.trace.has_device or rank.trace.cut or timeline.idle <= rank.limits["idle"] * timeline.span:
        return
    yield Finding(
        f"the device is idle for {timeline.idle / timeline.span:.0%} of its span, in {rank.trace.gap_count} gaps",
        rank.label,
        rank.per_step(timeline.idle),
        _longest_gaps(rank),
        "idle",
    )


def _longest_gaps(rank: _Rank) -> list[str]:
    """What the host did in most of the gaps' time, each with its longest gap."""
    alike: dict[tuple[str, str], list[Gap]] = {}
    for gap in rank.trace.gaps:
        alike.setdefault((gap.explained_by, gap.within), []).append(gap)
    ranking = sorted(alike.items(), key=lambda item: -sum(gap.length for gap in item[1]))[:_EVENTS_SHOWN]
    lines = []
    for (name, within), gaps in ranking:
        longest = max(gaps, key=lambda gap: gap.length)
        lines.append(
            f"{_short(name)}{f' in {_short(within)}' if within else ''}: {len(gaps)} gap{'s' * (len(gaps) != 1)},"
            f" {sum(gap.length for gap in gaps) / 1e6:.3f} ms; the longest {longest.length / 1e6:.3f} ms"
            f" {rank.at(longest.begin)} ({longest.explained:.0%} of it)"
        )
    return lines


def _exposed(rank: _Rank) -> Iterator[Finding]:
    timeline = rank.trace.timeline
    if not timeline.exposed or timeline.exposed <= rank.limits["exposed-communication"] * timeline.span:
        return
    usages = {name: usage for name, usage in rank.kernels().items() if category_of(name) in EXCHANGES}
    of_all = timeline.exposed / max(timeline.communication, 1)
    yield Finding(
        f"communication that nothing else covers takes {timeline.exposed / timeline.span:.0%} of the span"
        f" ({of_all:.0%} of all communication is exposed)",
        rank.label,
        rank.per_step(timeline.exposed),
        rank.usages(usages) or _longest_collectives(rank),
        "exposed-communication",
    )


def _longest_collectives(rank: _Rank) -> list[str]:
    longest = sorted(rank.trace.collectives, key=lambda each: each.start - each.end)[:_EVENTS_SHOWN]
    return [f"{_short(c.label)}: {(c.end - c.start) / 1e6:.3f} ms {rank.at(c.start)}" for c in longest]


def _synchronisation(rank: _Rank) -> Iterator[Finding]:
    device = rank.trace.device
    busy = device.waited_busy / max(device.waited, 1)
    yield from _runtime_share(
        rank,
        WAITING,
        "synchronisation",
        f"the host waits for the device in synchronising calls for {{share:.0%}} of the steps;"
        f" for {busy:.0%} of that the device is busy",
    )


def _launch_bound(rank: _Rank) -> Iterator[Finding]:
    timeline = rank.trace.timeline
    busy = timeline.busy / max(timeline.span, 1)
    yield from _runtime_share(
        rank,
        _LAUNCHING,
        "launch-bound",
        f"the host spends {{share:.0%}} of the steps in launching kernels;"
        f" the device is busy for {busy:.0%} of its span",
    )


def _runtime_share(rank: _Rank, names: re.Pattern[str], threshold: str, what: str) -> Iterator[Finding]:
    usages = {name: usage for name, usage in rank.trace.runtime.items() if names.match(name)}
    total = sum(usage.total for usage in usages.values())
    share = total / max(rank.step_ns, 1)
    if total and share > rank.limits[threshold]:
        yield Finding(what.format(share=share), rank.label, rank.per_step(total), rank.usages(usages), threshold)


def _tiny_kernels(rank: _Rank) -> Iterator[Finding]:
    kernels = rank.kernels()
    tiny = {name: usage for name, usage in kernels.items() if usage.total < _TINY_NS * usage.count}
    total = sum(usage.total for usage in tiny.values())
    whole = sum(usage.total for usage in kernels.values())
    if not whole or rank.trace.graph_launches.count or total <= rank.limits["tiny-kernels"] * whole:
        return
    count = sum(usage.count for usage in tiny.values())
    yield Finding(
        f"{count / max(len(rank.steps), 1):.0f} kernels a step take less than 10 µs on average and make"
        f" {total / whole:.0%} of the kernel time; no CUDA graph was launched",
        rank.label,
        rank.per_step(total),
        rank.usages(tiny),
        "tiny-kernels",
    )


def _one_kernel(rank: _Rank) -> Iterator[Finding]:
    everything = rank.kernels()
    whole = sum(usage.total for usage in everything.values())
    kernels = {name: usage for name, usage in everything.items() if not category_of(name).startswith(_NO_KERNELS)}
    name, most = max(kernels.items(), key=lambda item: item[1].total, default=("", Usage()))
    if whole and most.total > rank.limits["one-kernel"] * whole:
        yield Finding(
            f"one kernel takes {most.total / whole:.0%} of the kernel time: {_short(name)}",
            rank.label,
            rank.per_step(most.total),
            rank.usages({name: most}),
            "one-kernel",
        )


def _of_category(threshold: str, categories: Sequence[str], what: str) -> Callable[[_Rank], Iterator[Finding]]:
    def rule(rank: _Rank) -> Iterator[Finding]:
        kernels = rank.kernels()
        whole = sum(usage.total for usage in kernels.values())
        chosen = {name: usage for name, usage in kernels.items() if category_of(name) in categories}
        total = sum(usage.total for usage in chosen.values())
        if whole and total > rank.limits[threshold] * whole:
            yield Finding(
                f"{what} take {total / whole:.0%} of the kernel time",
                rank.label,
                rank.per_step(total),
                rank.usages(chosen),
                threshold,
            )

    return rule


def _uneven_steps(rank: _Rank) -> Iterator[Finding]:
    for kind in STEP_KINDS:
        steps = [step for step in rank.steps if step.kind == kind]
        if len(steps) < 10:
            continue
        usual = median(step.duration for step in steps)
        slow = sorted(steps, key=lambda step: -step.duration)[: max(len(steps) // 10, 1)]
        if slow[-1].duration <= rank.limits["uneven-steps"] * usual:
            continue
        extra = sum(step.duration - usual for step in slow)
        yield Finding(
            f"the slowest tenth of the {kind} steps takes at least {slow[-1].duration / usual:.1f} times the median"
            f" of {usual / 1e6:.3f} ms",
            rank.label,
            rank.per_step(extra),
            [
                f"step {step.account - 1}: {step.duration / 1e6:.3f} ms {rank.at(step.start)}, batch {step.batch},"
                f" device busy {step.device_busy / 1e6:.3f} ms"
                for step in slow[:_EVENTS_SHOWN]
            ],
            "uneven-steps",
        )


def _between_operators(rank: _Rank) -> Iterator[Finding]:
    """CPU-only traces: the annotation's own time is what no operator took."""
    if rank.trace.has_device:
        return
    between = sum(
        use.own
        for kind, table in rank.trace.operators.items()
        if kind != OUTSIDE
        for name, use in table.items()
        if name == "execute_model"
    )
    if between and between > rank.limits["between-operators"] * rank.step_ns:
        steps = sorted(rank.steps, key=lambda step: -step.annotated)[:_EVENTS_SHOWN]
        yield Finding(
            f"no operator runs for {between / rank.step_ns:.0%} of the steps: Python, and the profiler's own cost",
            rank.label,
            rank.per_step(between),
            [f"step {s.account - 1} ({s.kind}): {s.annotated / 1e6:.3f} ms {rank.at(s.start)}" for s in steps],
            "between-operators",
        )


def _mixed_steps(rank: _Rank) -> Iterator[Finding]:
    mixed = [step for step in rank.steps if step.kind == "mixed"]
    decode = [step.duration for step in rank.steps if step.kind == "decode"]
    total = sum(step.duration for step in mixed)
    if not decode or total <= rank.limits["step-kinds"] * rank.step_ns:
        return
    usual = median(decode)
    held = sum(max(step.duration - usual, 0) for step in mixed)
    slow = sorted(mixed, key=lambda step: -step.duration)[:_EVENTS_SHOWN]
    yield Finding(
        f"{len(mixed)} of {len(rank.steps)} steps mix prefill and decode, {total / rank.step_ns:.0%} of the time;"
        f" their decodes wait {held / 1e6 / len(mixed):.3f} ms longer than the median decode step takes",
        rank.label,
        rank.per_step(held),
        [
            f"step {step.account - 1}: {step.duration / 1e6:.3f} ms {rank.at(step.start)},"
            f" {step.context_tokens} tokens of prompts beside {step.generation_requests} decodes"
            for step in slow
        ],
        "step-kinds",
    )


_RULES: tuple[Callable[[_Rank], Iterator[Finding]], ...] = (
    _device_idle,
    _exposed,
    _synchronisation,
    _launch_bound,
    _tiny_kernels,
    _one_kernel,
    _of_category("copies", _HOST_COPIES, "copies between host and device"),
    _of_category("elementwise", ("elementwise",), "unfused elementwise kernels"),
    _uneven_steps,
    _between_operators,
    _mixed_steps,
)


def _of_comparison(
    traces: Sequence[TraceSummary], comparison: Comparison, limits: Mapping[str, float]
) -> Iterator[Finding]:
    """Stragglers, and ranks that wait for others; clocks and profiler starts are set right already."""
    for trace, skew in zip(traces, comparison.ranks, strict=True):
        rank = _Rank(trace, limits)
        if rank.step_ns and skew.systematic_ns > limits["straggler"] * rank.step_ns:
            yield Finding(
                f"{skew.rank} is a straggler: it comes last in {skew.last} of {skew.collectives} collectives and keeps"
                f" the others waiting for {skew.delayed_ns / rank.step_ns:.0%} of the steps,"
                f" {skew.systematic_ns / rank.step_ns:.0%} more than other ranks do",
                rank.label,
                rank.per_step(skew.systematic_ns),
                [
                    f"{_short(label)} {rank.at(at)}: {late / 1e6:.3f} ms after all others"
                    for label, at, late in skew.latest
                ],
                "straggler",
            )
        communication = trace.timeline.communication
        if communication and skew.waited_ns > limits["wait-skew"] * communication:
            yield Finding(
                f"{skew.rank} waits for later ranks in {skew.waited_ns / communication:.0%} of its communication",
                rank.label,
                rank.per_step(skew.waited_ns),
                [f"{skew.collectives} collectives compared, {skew.waited_ns / 1e6:.3f} ms of waiting in all"],
                "wait-skew",
            )
