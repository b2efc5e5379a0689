"""This host's clocks, and which boot of it they belong to."""

from __future__ import annotations

import functools
import socket
import time

from .window import Clock


def clock_now() -> Clock:
    """This process's clocks now."""
    return Clock(_boot_of_this_host(), time.perf_counter_ns(), time.time_ns())


@functools.cache
def _boot_of_this_host() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return socket.gethostname()
