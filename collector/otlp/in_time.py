"""How long a client may take to send a request: others wait for its room."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

READ_SECONDS = 30.0
"""A request that takes longer to come is given up."""

_LATE = "the request is late"
"""Tells this cancellation from a client's."""


class Late(Exception):
    """The request did not come in time; the client may try again."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"the request did not come within {seconds:g} s")


@contextmanager
def in_time(seconds: float) -> Iterator[None]:
    """Raises Late where the block, which awaits, takes longer.

    `asyncio.wait_for` would do it with a task more for each request, `asyncio.timeout` came with Python 3.11.
    """
    reading = asyncio.current_task()
    assert reading is not None
    timer = asyncio.get_running_loop().call_later(seconds, reading.cancel, _LATE)
    try:
        yield
    except asyncio.CancelledError as cancelled:
        if cancelled.args != (_LATE,):
            raise
        raise Late(seconds) from None
    finally:
        timer.cancel()
