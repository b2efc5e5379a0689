"""Makes a window smaller by folding the spans of its oldest steps, as a rank does whose log is full. Pure."""

from __future__ import annotations

import array
from dataclasses import dataclass, replace

from vime_otel.data.spans import ENTRY, fold, rebuild

from .window import RankLog, Window

_WORD = 8
_DEVICE_WORDS = 2
"""Integers a span has in `RankLog.device`."""


def fold_oldest(window: Window, bytes_to_free: int) -> tuple[Window, int]:
    """The window with the spans of as many of its oldest steps folded as free so many bytes; and how many these are.

    What the steps' totals say is unchanged. A step of which there is nothing to fold is passed over.
    """
    ranks = [_Shrinking(log) for log in window.ranks]
    steps = 0
    for position in range(max((len(log.starts) for log in window.ranks), default=0)):
        if bytes_to_free <= 0:
            break
        freed = sum(rank.fold_next(position) for rank in ranks)
        bytes_to_free -= freed
        steps += freed > 0
    shrunk = replace(window, ranks=[rank.result() for rank in ranks], shortened=window.shortened + steps)
    return shrunk, steps


@dataclass
class _Shrinking:
    """One rank's log while its steps are folded one after the other."""

    log: RankLog

    def __post_init__(self) -> None:
        self._entries = array.array("q", self.log.entries)
        self._device = array.array("q", self.log.device)
        self._bounds = [*self.log.starts, len(self._entries)]
        self._kept = array.array("q")
        self._kept_device = array.array("q")
        self._starts: list[int] = []
        self._folded = dict(self.log.folded)

    def fold_next(self, position: int) -> int:
        """Fold a step, the one after the last; returns how many bytes that frees."""
        if position >= len(self.log.starts):
            return 0
        begin, end = self._bounds[position], self._bounds[position + 1]
        device = self._device[begin // ENTRY * _DEVICE_WORDS : end // ENTRY * _DEVICE_WORDS]
        outermost = rebuild(self._entries[begin:end], device)
        self._starts.append(len(self._kept))
        for node in outermost:
            self._kept.extend((node.frame, *(node.host or (node.start, node.end))))
            if device:
                self._kept_device.extend((node.start, node.end))
        if position not in self._folded:
            self._folded[position] = [(path, *totals) for path, totals in fold(outermost).items()]
        words = ENTRY + (_DEVICE_WORDS if device else 0)
        return ((end - begin) // ENTRY - len(outermost)) * words * _WORD

    def result(self) -> RankLog:
        """The log with those steps folded and the later ones as they were."""
        done = len(self._starts)
        rest = self._bounds[done] if done < len(self._bounds) else len(self._entries)
        shift = len(self._kept) - rest
        return replace(
            self.log,
            entries=(self._kept + self._entries[rest:]).tobytes(),
            device=(self._kept_device + self._device[rest // ENTRY * _DEVICE_WORDS :]).tobytes(),
            starts=[*self._starts, *(start + shift for start in self.log.starts[done:])],
            folded=self._folded,
        )
