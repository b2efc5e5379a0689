"""SIGINT, SIGTERM and SIGHUP as something that can be awaited, or that is like Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Iterator
from types import FrameType, TracebackType


def caught() -> tuple[signal.Signals, ...]:
    """The signals that end a command in order. SIGHUP is none where it is ignored, as under nohup."""
    ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return (signal.SIGINT, signal.SIGTERM, *(() if ignored else (signal.SIGHUP,)))


@contextlib.contextmanager
def all_like_ctrl_c() -> Iterator[None]:
    """While entered, SIGTERM and SIGHUP raise KeyboardInterrupt, too: what is to be cleaned up is."""
    before = {number: signal.signal(number, _interrupt) for number in set(caught()) - {signal.SIGINT}}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


_ONE_KEY_S = 0.5
"""`timeout`, and wrappers that pass Ctrl-C on, let one keystroke arrive as two signals within milliseconds."""


class Interrupts:
    """While entered (in a running event loop), the first of the signals ends nothing by itself.

    The next one, unless it comes with the first, ends the process at once, as it would without us; but SIGHUP
    never does, since a terminal that is closed sends it more than once.
    """

    def __enter__(self) -> Interrupts:
        self._caught: asyncio.Future[signal.Signals] = asyncio.get_running_loop().create_future()
        self._before = {number: signal.getsignal(number) for number in caught()}
        self._giving_back: asyncio.TimerHandle | None = None
        for number in self._before:
            asyncio.get_running_loop().add_signal_handler(number, self._catch, number)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._giving_back:
            self._giving_back.cancel()
        for number, before in self._before.items():
            asyncio.get_running_loop().remove_signal_handler(number)
            signal.signal(number, before)

    async def wait(self) -> signal.Signals:
        """The first signal, whether it came already or comes yet."""
        return await asyncio.shield(self._caught)

    def _catch(self, number: signal.Signals) -> None:
        if self._caught.done():
            return
        self._caught.set_result(number)
        self._giving_back = asyncio.get_running_loop().call_later(_ONE_KEY_S, self._let_the_next_end)

    def _let_the_next_end(self) -> None:
        for each in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().remove_signal_handler(each)
            signal.signal(each, signal.SIG_DFL)
