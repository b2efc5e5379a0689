"""SIGINT and SIGTERM as something that can be awaited."""

from __future__ import annotations

import asyncio
import signal
from types import TracebackType

_CAUGHT = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """While entered (in a running event loop), the first of the two signals ends nothing by itself.

    The next one ends the process at once, as it would without us.
    """

    def __enter__(self) -> Interrupts:
        self._caught: asyncio.Future[signal.Signals] = asyncio.get_running_loop().create_future()
        self._before = {number: signal.getsignal(number) for number in _CAUGHT}
        for number in _CAUGHT:
            asyncio.get_running_loop().add_signal_handler(number, self._catch, number)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number in _CAUGHT:
            asyncio.get_running_loop().remove_signal_handler(number)
            signal.signal(number, self._before[number])

    async def wait(self) -> signal.Signals:
        """The first signal, whether it came already or comes yet."""
        return await asyncio.shield(self._caught)

    def _catch(self, number: signal.Signals) -> None:
        self._caught.set_result(number)
        for each in _CAUGHT:
            asyncio.get_running_loop().remove_signal_handler(each)
            signal.signal(each, signal.SIG_DFL)
