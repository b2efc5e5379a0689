"""The viewer as a child process, up when the block begins and gone when it ends."""

from __future__ import annotations

import re
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ..data.errors import VimeOtelError
from .processes import LoggedProcess, stop_all

_POLL_S = 0.1
_START_S = 30.0
_ADDRESS = re.compile(r" at (http://\S+)")


@dataclass(frozen=True)
class Viewer:
    """A viewer that answers at `url`."""

    url: str
    process: LoggedProcess

    def wait(self) -> None:
        """Return when the viewer has ended by itself."""
        self.process.reap()


@contextmanager
def wait_for_viewer(root: Path, port: int, log: Path) -> Iterator[Viewer]:
    """Show the runs below `root` on `port` (0: a free one); raises VimeOtelError if it doesn't come up."""
    command = [sys.executable, "-u", "-m", "vime_otel", "view", "--runs", str(root), "--port", str(port)]
    process = LoggedProcess("viewer", command, log, {})
    try:
        yield Viewer(_await_address(process), process)
    finally:
        stop_all([process])


def _await_address(process: LoggedProcess) -> str:
    """The address that the viewer prints, once it answers there."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline and process.exit_status() is None:
        found = _ADDRESS.search(process.log_tail())
        if found:
            try:
                with opener.open(found[1], timeout=5):
                    return found[1]
            except (OSError, urllib.error.URLError):
                pass
        time.sleep(_POLL_S)
    raise VimeOtelError(f"the viewer did not come up: {process.log_tail() or f'no word in {process.log}'}")
