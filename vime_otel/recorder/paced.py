"""Work beside an engine, done in small pieces with pauses between them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

_T = TypeVar("_T")

PIECE_SECONDS = 0.002
LONGEST_PAUSE_SECONDS = 0.05


def paced(items: Iterable[_T]) -> Iterator[_T]:
    """The items; after every few milliseconds of work on them a pause of the same length.

    A niced process on a core that idles still takes caches, memory bandwidth and half a core's
    units from an engine on the core beside.
    """
    began = time.perf_counter()
    for item in items:
        yield item
        worked = time.perf_counter() - began
        if worked >= PIECE_SECONDS:
            time.sleep(min(worked, LONGEST_PAUSE_SECONDS))
            began = time.perf_counter()
