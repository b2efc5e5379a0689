"""What is going on, on stderr: one line that changes, or lines where nobody can see it change."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.status import Status
from rich.text import Text

from ..data.texts import printable
from .output import unfailing


class StatusLine:
    """Tells what is being done. Nothing that goes wrong with the telling reaches who tells."""

    def __init__(self, console: Console, status: Status | None) -> None:
        self._console = console
        self._status = status

    def doing(self, text: str) -> None:
        """What is being done now, in the place of what was."""
        with contextlib.suppress(Exception):
            if self._status is None:
                self._print(text)
            else:
                self._status.update(Text(printable(text)))

    def note(self, text: str) -> None:
        """What should stay to be read."""
        with contextlib.suppress(Exception):
            self._print(text)

    def _print(self, text: str) -> None:
        self._console.print(Text(printable(text)), soft_wrap=True)


@contextmanager
def status_line() -> Iterator[StatusLine]:
    """A status line while something long is done."""
    console = Console(file=unfailing(sys.stderr), highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        yield StatusLine(console, None)
        return
    with console.status("") as status:
        yield StatusLine(console, status)
