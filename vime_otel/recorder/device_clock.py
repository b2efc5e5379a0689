"""Times on the device, read from events after the window: no synchronisation while steps run."""

from __future__ import annotations

import array
import time
from collections.abc import Callable, Sequence
from typing import Any

REBASE_EVERY = 1000
"""Marks after which times are counted from a newer one: a device tells the time between two events
as a 32-bit float, too coarse over a whole window."""


class DeviceClock:
    """Marks moments on a device's current stream. `make_event` gives an event that can tell time.

    An event has `record()`, `synchronize()` and `elapsed_time(later) -> ms`, as torch's have.
    """

    def __init__(
        self,
        make_event: Callable[[], Any],
        synchronize: Callable[[], None],
        clock: Callable[[], int] = time.perf_counter_ns,
    ):
        self._make_event = make_event
        self._synchronize = synchronize
        synchronize()
        before = clock()
        self._base = self.mark()
        synchronize()
        # The event came to pass between these two readings, with an idle device.
        self._base_ticks = (before + clock()) // 2

    def mark(self) -> Any:
        """Note this moment of the stream; costs a launch, waits for nothing."""
        event = self._make_event()
        event.record()
        return event

    def ticks(self, marks: Sequence[Any]) -> array.array[int]:
        """The marks as ticks of the host's clock; waits until the device has passed them all."""
        self._synchronize()
        base, base_ticks = self._base, self._base_ticks
        ticks = array.array("q")
        for number, mark in enumerate(marks, 1):
            ticks.append(base_ticks + round(base.elapsed_time(mark) * 1e6))
            if number % REBASE_EVERY == 0:
                base, base_ticks = mark, ticks[-1]
        return ticks


def torch_device_clock() -> DeviceClock:
    """The clock of this process's accelerator. Raises RuntimeError where its events tell no time."""
    import torch

    device = torch.accelerator.current_accelerator()
    if device is None:
        raise RuntimeError("timing `events` needs an accelerator, and there is none")

    def make_event() -> Any:
        return torch.Event(device, enable_timing=True)

    return DeviceClock(make_event, torch.accelerator.synchronize)
