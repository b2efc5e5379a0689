"""Runs the exporter subprocess: the engine's own processes encode and send nothing.

Encoding on a thread of EngineCore would hold the GIL that its steps need.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

from .window import Window

_START = """
import sys
sys.path[:] = filter(None, sys.path)  # the engine's folder must not stand in for its packages
if sys.argv[1] not in sys.path:
    sys.path.append(sys.argv[1])
from vime_otel.recorder.exporter_process import main
sys.exit(main())
"""


def run_exporter(window: Window | None, destination: dict[str, Any]) -> str | None:
    """Export a window (None: only merge what engines have written) and wait for the end.

    `destination` is `{"collector": URL, "token": …}` or `{"directory": PATH, "start": KEY}`. The
    answer is None, or what could not be done. The subprocess runs at a low priority.
    """
    here = str(Path(__file__).resolve().parents[2])
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-c", _START, here],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        start_new_session=True,  # Ctrl-C of the server must not cut a recording off
    )
    output, errors = process.communicate(pickle.dumps((window, destination), protocol=5))
    try:
        answer = json.loads(output.splitlines()[-1])
    except (IndexError, ValueError):
        last = errors.decode(errors="replace").strip().splitlines()[-1:]
        return f"the exporter ended with status {process.returncode}: {' '.join(last) or 'no message'}"
    error: str | None = answer["error"]
    return error
