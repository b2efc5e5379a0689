"""Engines that run in lockstep: those of one data-parallel group are recorded from one position on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vime_otel.data.lockstep import Position, start_position
from vime_otel.data.summary import counted

from .engine_part import EnginePart
from .messages import Introduction


@dataclass(frozen=True)
class PartialGroup:
    """A lockstep group that can't be recorded as a whole.

    `engines` can; those of the data-parallel ranks `silent` have no recorder, those of `left_out`
    have one and were not chosen.
    """

    engines: tuple[Introduction, ...]
    size: int
    silent: tuple[int, ...]
    left_out: tuple[int, ...]

    @property
    def labels(self) -> str:
        """Its engines that can be recorded, for people."""
        return ", ".join(each.label for each in self.engines)

    @property
    def explanation(self) -> str:
        """What is missing, for people."""
        texts = []
        for ranks, why in ((self.silent, "no recorder"), (self.left_out, "been left out of this recording")):
            if ranks:
                noun = "rank" if len(ranks) == 1 else "ranks"
                has = "has" if len(ranks) == 1 else "have"
                texts.append(f"data-parallel {noun} {', '.join(map(str, ranks))} {has} {why}")
        return f"of its lockstep group of {counted(self.size, 'engine')}, {' and '.join(texts)}"


def partial_groups(chosen: Sequence[Introduction], known: Sequence[Introduction]) -> tuple[PartialGroup, ...]:
    """The groups of which only some engines are `chosen`; `known` are all that have a recorder."""
    found = []
    for group in dict.fromkeys(each.dp_group for each in chosen if each.dp_group):
        engines = tuple(each for each in chosen if each.dp_group == group)
        ranks = {each.dp_rank for each in engines}
        others = {each.dp_rank for each in known if each.dp_group == group} - ranks
        size = max(each.dp_size for each in engines)
        silent = tuple(sorted(set(range(size)) - ranks - others))
        if silent or others:
            found.append(PartialGroup(engines, size, silent, tuple(sorted(others))))
    return tuple(found)


class LockstepGroup:
    """The engines of one group in one recording."""

    def __init__(self, parts: Sequence[EnginePart]) -> None:
        self.parts = tuple(parts)
        self.start: Position | None = None
        """Where they were told to start; None before."""

    def find_start(self) -> Position | None:
        """Where to start, once every engine is armed and tells where it stands; None before, and a second time."""
        stands = [
            (part.position, part.steps_per_second)
            for part in self.parts
            if part.phase == "armed" and part.position is not None
        ]
        if self.start is None and len(stands) == len(self.parts):
            self.start = start_position(stands)
            return self.start
        return None

    @property
    def ready(self) -> bool:
        """Whether every engine that is to start knows where."""
        return all(
            part.cancelled or not part.in_window or (part.start_id is not None and part.seen == part.start_id)
            for part in self.parts
        )


def groups_of(parts: Sequence[EnginePart]) -> list[LockstepGroup]:
    """The groups among these engines."""
    names = dict.fromkeys(part.introduction.dp_group for part in parts if part.introduction.dp_group)
    return [LockstepGroup([part for part in parts if part.introduction.dp_group == name]) for name in names]
