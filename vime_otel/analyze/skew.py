"""Who of an engine's ranks is late: collectives end together, so what differs in their ends is the clocks' doing.

First the ranks' sequences of collectives are laid over each other, since profilers start at different operations. The
median difference of the ends is then the skew of the clocks and is taken off. What is left of the differences in the
begins is real: who comes last makes the others wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from statistics import median

from .device import Collective
from .engines import rank_label
from .summary import TraceSummary

_MOST_SHIFT = 256
_FEWEST = 3
_LOOKED_AT = 512
"""Of so many collectives each shift is judged."""

_ALIKE = 0.9
_MOST_SPREAD = 0.5
"""Ends that scatter by more than this share of the collectives' length do not belong together."""

_LEAST_SPREAD_NS = 10_000


@dataclass
class RankSkew:
    """One rank among its peers. Nanoseconds over all `collectives` that were compared."""

    rank: str
    clock_offset_ns: int = 0
    """By how much its clock, or its trace's, is ahead of the first rank's."""
    profiler_start_ns: int = 0
    """How much later than the earliest rank's its trace begins, the clock offset taken off."""
    collectives: int = 0
    last: int = 0
    """In how many of them it came last."""
    waited_ns: int = 0
    """How long it waited for the last to come."""
    delayed_ns: int = 0
    """How long the others waited for it alone: from the last but one to come until it came."""
    systematic_ns: int = 0
    """What of `delayed_ns` is more than the median of the others': ranks that are late by turns delay alike."""
    latest: list[tuple[str, int, int]] = field(default_factory=list)
    """(collective, its begin in this trace, by how much it delayed) of the worst."""


@dataclass
class Comparison:
    """What was compared, or why nothing was."""

    ranks: list[RankSkew]
    reason: str = ""


@dataclass
class _Fit:
    shift: int
    offset: int
    spread: float


def compare(traces: Sequence[TraceSummary]) -> Comparison:
    """Compare ranks that take part in the same collectives; the first is the reference for the clocks."""
    ranks = [RankSkew(rank_label(trace)) for trace in traces]
    if len(traces) < 2:
        return Comparison(ranks, "there is one rank only")
    if not all(trace.collectives for trace in traces):
        return Comparison(ranks, "the traces hold no collective operations that all ranks take part in")
    reference = traces[0]
    fits = [_Fit(0, 0, 0.0)]
    for trace, rank in zip(traces[1:], ranks[1:], strict=True):
        fit = _fit(reference.collectives, trace.collectives, trace.unix_ns(0) - reference.unix_ns(0))
        if fit is None:
            return Comparison(ranks, f"the collectives of {rank.rank} do not match those of {ranks[0].rank}")
        fits.append(fit)
    _place_clocks(traces, ranks, fits)
    _arrivals(traces, ranks, fits)
    return Comparison(ranks)


def _fit(one: Sequence[Collective], other: Sequence[Collective], clock: int) -> _Fit | None:
    """How the other sequence lies over the first: position n of the one is n + shift of the other.

    `clock` is the Unix time of the other's origin after the first's. Steps that repeat fit under several shifts: then
    sequences of one length begin with the same operation, and others lie where the clocks differ least.
    """
    sample: Sequence[int] = range(len(one))
    if len(one) > _LOOKED_AT:  # by chance: a fixed stride could meet one operation of each step alone
        sample = sorted(Random(0).sample(sample, _LOOKED_AT))
    fits = []
    for shift in range(-_MOST_SHIFT, _MOST_SHIFT + 1):
        together = min(len(one), len(other) - shift) - max(0, -shift)
        if together >= _FEWEST and 2 * together >= min(len(one), len(other)):
            fits += _fit_at(one, other, shift, sample)
    if not fits:
        return None

    def worse(fit: _Fit) -> tuple[float, int]:
        if len(one) == len(other):
            return fit.spread, abs(fit.shift)
        return fit.spread // _LEAST_SPREAD_NS, abs(fit.offset + clock)

    best = _fit_at(one, other, min(fits, key=worse).shift, range(len(one)))
    length = median(each.end - each.start for each in one)
    return next((fit for fit in best if fit.spread <= max(_MOST_SPREAD * length, _LEAST_SPREAD_NS)), None)


def _fit_at(one: Sequence[Collective], other: Sequence[Collective], shift: int, positions: Sequence[int]) -> list[_Fit]:
    """The fit of these positions under a shift; none where the operations differ."""
    pairs = [(one[n], other[n + shift]) for n in positions if 0 <= n + shift < len(other)]
    ends = [b.end - a.end for a, b in pairs if a.label == b.label]
    if not ends or len(ends) < _ALIKE * len(pairs):
        return []
    offset = round(median(ends))
    return [_Fit(shift, offset, median(abs(end - offset) for end in ends))]


def _place_clocks(traces: Sequence[TraceSummary], ranks: Sequence[RankSkew], fits: Sequence[_Fit]) -> None:
    origins = [trace.unix_ns(0) for trace in traces]
    begins = [trace.begin - fit.offset for trace, fit in zip(traces, fits, strict=True)]
    for rank, fit, origin, begin in zip(ranks, fits, origins, begins, strict=True):
        rank.clock_offset_ns = fit.offset + origin - origins[0]
        rank.profiler_start_ns = begin - min(begins)


def _arrivals(traces: Sequence[TraceSummary], ranks: Sequence[RankSkew], fits: Sequence[_Fit]) -> None:
    for number, first in enumerate(traces[0].collectives):
        positions = [number + fit.shift for fit in fits]
        if any(not 0 <= p < len(trace.collectives) for p, trace in zip(positions, traces, strict=True)):
            continue
        found = [trace.collectives[p] for p, trace in zip(positions, traces, strict=True)]
        if any(each.label != first.label for each in found):
            continue
        starts = [each.start - fit.offset for each, fit in zip(found, fits, strict=True)]
        in_turn = sorted(starts)
        last = starts.index(in_turn[-1])
        delay = in_turn[-1] - in_turn[-2]
        for rank, each, start in zip(ranks, found, starts, strict=True):
            rank.collectives += 1
            rank.waited_ns += min(in_turn[-1] - start, each.end - each.start)
        if delay > 0:  # else several came last
            ranks[last].last += 1
        ranks[last].delayed_ns += delay
        ranks[last].latest.append((first.label, found[last].start, delay))
    delays = [rank.delayed_ns for rank in ranks]
    for number, rank in enumerate(ranks):
        rank.systematic_ns = max(rank.delayed_ns - round(median(delays[:number] + delays[number + 1 :])), 0)
        rank.latest = sorted(rank.latest, key=lambda each: -each[2])[:3]


def step_shift(one: TraceSummary, other: TraceSummary) -> int:
    """How far the other rank's steps begin before the first's: step n of the one is n + shift of the other.

    Of the shifts under which steps are alike it is the one that brings their begins closest, clocks set right where
    collectives tell how.
    """
    comparison = compare([one, other])
    offset = 0 if comparison.reason else comparison.ranks[1].clock_offset_ns
    ours = [(step.signature, one.unix_ns(step.start)) for step in one.steps if step.kind != "empty"]
    theirs = [(step.signature, other.unix_ns(step.start) - offset) for step in other.steps if step.kind != "empty"]
    best: tuple[float, int] | None = None
    for shift in range(-_MOST_SHIFT, _MOST_SHIFT + 1):
        first, last = max(0, -shift), min(len(ours), len(theirs) - shift)
        pairs = [(ours[n], theirs[n + shift]) for n in range(first, last)]
        alike = sum(a == b for (a, _), (b, _) in pairs)
        if not pairs or 2 * len(pairs) < min(len(ours), len(theirs)) or alike < _ALIKE * len(pairs):
            continue
        apart = median(abs(b - a) for (_, a), (_, b) in pairs)
        best = min(best or (apart, shift), (apart, shift))
    return best[1] if best else 0
