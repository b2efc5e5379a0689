"""Runs the scripts in offline/: real vLLM in a process of its own, its findings as JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
    with log.open("wb") as output:
        process = subprocess.run(
            [sys.executable, str(FOLDER / name), str(model), str(directory), str(result)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **_ENV, "VIME_OTEL_DIR": str(directory), **env},
            timeout=TIMEOUT_S,
            check=False,
        )
    if process.returncode:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-40:])
        raise AssertionError(f"{name} ended with status {process.returncode}:\n{tail}")
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
