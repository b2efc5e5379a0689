"""Torch traces made for tests, in kineto's layouts, and the real ones from elsewhere."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

CASES = Path(__file__).parents[2] / "shared" / "cases" / "torch-traces"

PID = 4711
MAIN = 4711
STREAM = 7


def case(name: str) -> Path:
    """A real trace; the test is skipped where the cases are not there."""
    path = CASES / name
    if not path.is_file():
        pytest.skip(f"the real trace {name} is not here")
    return path


def plain(path: Path) -> list[dict[str, Any]]:
    """The events of a whole trace, read with plain json."""
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    content = json.loads(text)
    events: list[dict[str, Any]] = content["traceEvents"] if isinstance(content, dict) else content
    return events


class TraceSample:
    """A trace that a test makes. Times in microseconds."""

    def __init__(self, **header: Any) -> None:
        self.header: dict[str, Any] = {"schemaVersion": 1, "baseTimeNanoseconds": 1_790_000_000_000_000_000, **header}
        self.events: list[dict[str, Any]] = []

    def add(self, name: str, ts: float, dur: float, cat: str = "cpu_op", tid: int = MAIN, **args: Any) -> None:
        """An operator or something else on a thread."""
        self.events.append(
            {"ph": "X", "cat": cat, "name": name, "pid": PID, "tid": tid, "ts": ts, "dur": dur, "args": args}
        )

    def step(self, ts: float, dur: float, context: tuple[int, int], generation: tuple[int, int]) -> None:
        """vLLM's annotation: (requests, tokens) of both phases."""
        name = f"execute_context_{context[0]}({context[1]})_generation_{generation[0]}({generation[1]})"
        self.add(name, ts, dur, "user_annotation")

    def kernel(
        self, name: str, ts: float, dur: float, correlation: int, stream: int = STREAM, cat: str = "kernel", **args: Any
    ) -> None:
        """A kernel or a copy on the device."""
        self.events.append(
            {"ph": "X", "cat": cat, "name": name, "pid": 0, "tid": stream, "ts": ts, "dur": dur}
            | {"args": {"correlation": correlation, "stream": stream, **args}}
        )

    def launch(self, ts: float, dur: float, correlation: int, name: str = "cudaLaunchKernel", tid: int = MAIN) -> None:
        """The runtime's call that launches a kernel."""
        self.add(name, ts, dur, "cuda_runtime", tid, correlation=correlation)

    def text(self, pretty: bool = True) -> bytes:
        """The trace as JSON: over several lines as kineto writes it, or compact."""
        content = {**self.header, "traceEvents": self.events, "traceName": "/tmp/made.json"}
        return json.dumps(content, indent=2 if pretty else None, separators=None if pretty else (",", ":")).encode()

    def write(self, path: Path, pretty: bool = True) -> Path:
        """Write it, packed where the name says so."""
        path.parent.mkdir(parents=True, exist_ok=True)
        text = self.text(pretty)
        path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
        return path
