"""The exporter subprocess: reads a window from standard input, assembles it, sends or writes it.

It prints one line of JSON, `{"error": null or text}`, and ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import sys
from pathlib import Path
from typing import Any

from vime_otel.data import settings
from vime_otel.data.errors import VimeOtelError

from .window import Window

NICENESS = 10
"""A tenth of a core where engines use every core; at 19 an export would take minutes there."""


def main() -> int:
    """Do what the engine process asks on standard input."""
    os.nice(NICENESS)
    with contextlib.suppress(OSError):
        # In a session of its own a process is niced only against itself, where the kernel groups by session.
        Path("/proc/self/autogroup").write_text(str(NICENESS))
    try:
        window, destination = pickle.load(sys.stdin.buffer)
    except (EOFError, pickle.UnpicklingError):
        return 1  # the engine process ended while it wrote
    error = None
    try:
        _export(window, destination)
    except VimeOtelError as failure:
        error = str(failure)
    print(json.dumps({"error": error}))
    return 0


def _export(window: Window | None, destination: dict[str, Any]) -> None:
    # Late: each destination imports a transport of its own.
    if "collector" in destination:
        from .send import send_to_collector

        assert window is not None
        send_to_collector(window, destination["collector"], destination["token"])
        return
    from .send_otlp import send_to_environment
    from .write_directory import write_window

    directory = Path(destination["directory"])
    try:
        write_window(window, directory, destination["start"])
    except OSError as error:
        raise VimeOtelError(f"{directory} can't be written ({error}); mend it, then write `start` again") from error
    # With a collector set, all that leaves the host goes there: a Jaeger must not get it by accident.
    if window is not None and not settings.get(settings.COLLECTOR):
        send_to_environment(window)
