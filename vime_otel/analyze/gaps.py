"""The device's idle gaps: whose doing each is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .device import Device
from .nesting import WalkContext, Walked, innermost
from .paths import TOP, Paths
from .steps import Step

NOTHING_TRACED = "nothing traced on the launching threads"


@dataclass
class Gap:
    """A time in which the device had nothing to do, and what the launching thread did most of it."""

    begin: int
    end: int
    step: int | None
    explained_by: str
    explained_ns: int
    within: str

    @property
    def length(self) -> int:
        """Nanoseconds."""
        return self.end - self.begin

    @property
    def explained(self) -> float:
        """The share of the gap that it explains."""
        return self.explained_ns / max(self.length, 1)


def explain(device: Device, steps: Sequence[Step], walks: Sequence[Walked], context: WalkContext) -> list[Gap]:
    """What was innermost for most of each gap on the thread that launched what ended it: others may just wait for it.

    Where that is not known, or that thread did nothing for longer, on any thread that launches.
    """
    paths = context.paths
    launching = [walked for walked in walks if walked.launches]
    gaps = []
    for number, ((begin, end), correlation) in enumerate(zip(device.gaps, device.ended_by, strict=True)):
        launch = context.launches.get(correlation)
        ended_from = paths.root_of(launch[1]) if launch else None
        path, most, untraced = _innermost_of([w for w in launching if w.root == ended_from], number, end - begin)
        if most < untraced:
            path, most, untraced = _innermost_of(launching, number, end - begin)
        step = next((s.account - 1 for s in reversed(steps) if s.start <= begin), None)
        if most < untraced:
            gaps.append(Gap(begin, end, step, NOTHING_TRACED, untraced, ""))
        else:
            gaps.append(Gap(begin, end, step, paths.name(path), most, _operator_around(paths, path)))
    return gaps


def _innermost_of(walks: Sequence[Walked], number: int, length_ns: int) -> tuple[int, int, int]:
    """(path that was innermost longest in a gap on any of these threads, how long, how long nothing was on all)."""
    path, most, untraced = -1, 0, length_ns
    for walked in walks:
        own = innermost(walked.in_gaps[number])
        untraced = min(untraced, length_ns - sum(own.values()))
        longest = max(own, key=own.__getitem__, default=-1)
        if longest >= 0 and own[longest] > most:
            path, most = longest, own[longest]
    return path, most, untraced


def _operator_around(paths: Paths, path: int) -> str:
    """The outermost frame above a path that is not the thread, nor a step."""
    chain = []
    while path != TOP:
        chain.append(path)
        path = paths.parents[path]
    names = [paths.name(each) for each in reversed(chain[:-1])]
    return next((name for name in names[:-1] if name not in ("execute_model", "ProfilerStep")), "")
