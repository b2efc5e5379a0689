"""Runs the scripts in offline/: real vLLM in a process of its own, its findings as JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vime_otel.demo.processes import LoggedProcess, stop_all

FOLDER = Path(__file__).parent / "offline"
TIMEOUT_S = 400
_ENV = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    # Scripts send functions to the workers, to look at them and to plant faults.
    "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",
}


def run_script(name: str, model: Path, directory: Path, env: Mapping[str, str]) -> dict[str, Any]:
    """Run `offline/<name>` on a model; VIME_OTEL_DIR is `directory`. Fails with the log's end when it fails."""
    result, log = directory.with_suffix(".json"), directory.with_suffix(".log")
    script = LoggedProcess(
        name,
        [sys.executable, str(FOLDER / name), str(model), str(directory), str(result)],
        log,
        {**_ENV, "VIME_OTEL_DIR": str(directory), **env},
    )
    try:
        deadline = time.monotonic() + TIMEOUT_S
        while script.exit_status() is None and time.monotonic() < deadline:
            time.sleep(0.1)
        status = script.exit_status()
    finally:
        stop_all([script])  # its workers, too: they would go on taking a core each
    if status != 0:
        how = f"did not end within {TIMEOUT_S} s" if status is None else f"ended with status {status}"
        raise AssertionError(f"{name} {how}:\n{script.log_tail()}")
    found: dict[str, Any] = json.loads(result.read_text())
    return found


def give_weights(model: Path) -> None:
    """Write random weights into a model folder."""
    subprocess.run(
        [sys.executable, str(FOLDER / "save_weights.py"), str(model)],
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        timeout=TIMEOUT_S,
        check=True,
    )
