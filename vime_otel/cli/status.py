"""What is going on, on stderr: one line that changes, or lines where nobody can see it change."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console

from .output import unfailing


@contextmanager
def status_line() -> Iterator[Callable[[str], None]]:
    """A function that says what is being done now."""
    console = Console(file=unfailing(sys.stderr), highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        yield lambda text: console.print(text, soft_wrap=True)
        return
    with console.status("") as status:
        yield lambda text: status.update(text)
