"""`vime-otel serve` as a process that can be killed and started again on the same ports."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import requests
from running_collector import until

from vime_otel.demo.ports import free_port

_REPOSITORY = Path(__file__).parents[1]


class CollectorProcess:
    """A context manager: up when entered, killed when left. What it logs goes into `log`."""

    def __init__(self, runs: Path, *args: str, program: Sequence[str] = ("-m", "vime_otel", "serve")) -> None:
        """`program` is what Python runs, to be given the options of `serve` and `args`."""
        self.runs = runs
        self.http_port, self.grpc_port = free_port(), free_port()
        self.url = f"http://127.0.0.1:{self.http_port}"
        self.grpc_address = f"127.0.0.1:{self.grpc_port}"
        self.log = runs.parent / "collector.log"
        self._args = args
        self._program = program
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process's id."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it and wait until it answers."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith("VIME_OTEL_")}
        with open(self.log, "ab") as log:
            self._process = subprocess.Popen(
                [
                    sys.executable, *self._program, "--out", str(self.runs),
                    "--http", f"127.0.0.1:{self.http_port}", "--grpc", self.grpc_address, *self._args,
                ],
                env=clean | {"PYTHONPATH": f"{_REPOSITORY}:{_REPOSITORY / 'tests'}"},
                stdout=log,
                stderr=log,
            )  # fmt: skip
        until(self._answers, 60)

    def kill(self) -> None:
        """As `kill -9` does it."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def terminate(self) -> int:
        """As `kill` does it; returns the exit status."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(timeout=60)

    def __enter__(self) -> CollectorProcess:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        if self._process.poll() is None:
            self.kill()
        assert "Traceback" not in self.log.read_text()

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.log.read_text()
        try:
            return requests.get(f"{self.url}/control/v1/recorders", timeout=5).ok
        except requests.RequestException:
            return False
