"""`make bench-engine`: what recording costs the steps of a real vLLM engine, and how soon its files are there.

Two processes that do the same are not equally fast, so every engine is compared with itself: between its rounds the
recorder is taken out of the process ("absent": vLLM's own functions in place) and attached again. Every round is held
against absent ones just before and after it; of these ratios the median is told with a bootstrap interval over the
rounds. Two engines take turns, on one OpenMP thread each; while one decodes the other waits. On a machine of few
cores any busy process slows an engine: one that has nothing to do with it is measured beside the exporter.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from vime_otel.demo.tiny_model import write_tiny_model

SCRIPT = Path(__file__).with_name("decoding_engine.py")
STEPS = 100
LONG_WINDOW = 600
"""Steps of the windows whose export is watched: the exporter should be busy with them, not with starting."""
CYCLES = 40
TORCH_CYCLES = 3
RESAMPLES = 4_000
ENGINE_ENV = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
}


class Engine:
    """An engine in a process of its own; see decoding_engine.py for what it can be asked."""

    def __init__(self, directory: Path, model: Path, env: dict[str, str]):
        torch_dir = directory / "torch"
        torch_dir.mkdir(parents=True)
        self._log = directory / "log"
        own = {name: value for name, value in os.environ.items() if not name.startswith("VIME_OTEL_")}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(SCRIPT), str(model), str(torch_dir)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**own, **ENGINE_ENV, **env},
                text=True,
            )

    def answer(self) -> dict[str, Any]:
        """The next line that the engine says; ends the bench with the log's end when it says no more."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            tail = "\n".join(self._log.read_text(errors="replace").splitlines()[-15:])
            raise SystemExit(f"an engine ended:\n{tail}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ask(self, method: str, steps: int | None) -> dict[str, Any]:
        """Have it do something, and wait for what it found."""
        assert self._process.stdin is not None
        print(json.dumps([method, steps]), file=self._process.stdin, flush=True)
        return self.answer()

    def step_ns(self) -> float:
        """The median time of a plain decode step in a round."""
        times: list[int] = self.ask("decode", STEPS)["step_ns"]
        return statistics.median(times)

    def absent_ns(self) -> float:
        """The same without a recorder."""
        self.ask("detach", None)
        return self.step_ns()

    def idle_ns(self) -> float:
        """The same with one that has nothing to do."""
        self.ask("attach", None)
        return self.step_ns()

    def beside_ns(self) -> float:
        """That without a recorder, beside a busy process of the exporter's priority."""
        self.ask("detach", None)
        times: list[int] = self.ask("beside", STEPS)["step_ns"]
        return statistics.median(times)

    def record(self, steps: int) -> dict[str, Any]:
        """A recording; see decoding_engine.py."""
        self.ask("attach", None)
        return self.ask("record", steps)

    def stop(self) -> None:
        """End it: politely, then by force."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@contextlib.contextmanager
def running_engines(directory: Path) -> Iterator[list[Engine]]:
    """Two engines, warmed up."""
    model = write_tiny_model(directory / "model")
    engines: list[Engine] = []
    try:
        for number in range(2):
            trigger = {"VIME_OTEL_DIR": str(directory / f"trigger-{number}"), "VIME_OTEL_TIMING": "host"}
            engines.append(Engine(directory / f"engine-{number}", model, trigger))
        for engine in engines:
            engine.answer()
        for engine in engines:
            engine.step_ns()
            engine.record(STEPS)
        yield engines
    finally:
        for engine in engines:
            engine.stop()


class Rounds:
    """What the rounds gave: ratios to absent rounds at the same time, and times, by name."""

    def __init__(self) -> None:
        self.ratios: dict[str, list[float]] = {}
        self.values: dict[str, list[float]] = {}

    def ratio(self, name: str, ours: float, other: float) -> None:
        """Note one round's ratio."""
        self.ratios.setdefault(name, []).append(ours / other)

    def value(self, name: str, value: float) -> None:
        """Note one round's time or count."""
        self.values.setdefault(name, []).append(value)

    def median(self, name: str) -> float:
        """The median of what was noted."""
        return statistics.median(self.values[name])


def alternate(engines: list[Engine], rounds: Rounds) -> None:
    """The cycles: an absent round before and after each other one, which comes in changing order."""
    order = random.Random(0)
    for cycle in range(CYCLES):
        engine = engines[cycle % len(engines)]
        kinds = ["absent_again", "busy_neighbour", "idle", "armed_host", "exporting"]
        order.shuffle(kinds)
        before = engine.absent_ns()
        for kind in kinds:
            if kind == "absent_again":
                took = engine.absent_ns()
            elif kind == "busy_neighbour":
                took = engine.beside_ns()
            elif kind == "idle":
                took = engine.idle_ns()
            elif kind == "armed_host":
                window = engine.record(STEPS)
                took = statistics.median(window["step_ns"])
                rounds.value("flush_s", window["flush_s"])
                rounds.value("spans_per_step", window["spans"] / STEPS)
            else:
                window = engine.record(LONG_WINDOW)
                took = statistics.median(window["exporting_step_ns"])
                rounds.value("exporting_steps", len(window["exporting_step_ns"]))
            after = engine.absent_ns()
            rounds.ratio(f"{kind}_vs_absent_time", took, (before + after) / 2)
            rounds.value(f"{kind}_ns", took)
            rounds.value("absent_ns", before)
            before = after


def profile(engines: list[Engine], rounds: Rounds) -> None:
    """As many steps under vLLM's torch profiler with its defaults."""
    for cycle in range(TORCH_CYCLES):
        engine = engines[cycle % len(engines)]
        before = engine.absent_ns()
        profiled = engine.ask("torch", STEPS)
        after = engine.absent_ns()
        under = statistics.median(profiled["step_ns"])
        rounds.ratio("torch_profiler_vs_absent_time", under, (before + after) / 2)
        rounds.value("torch_profiler_ns", under)
        rounds.value("torch_flush_s", profiled["flush_s"])
        rounds.value("torch_bytes", profiled["bytes"])


def interval(measure: Callable[[random.Random], float]) -> str:
    """The bootstrap's 95 % interval of what `measure` makes of resampled rounds."""
    source = random.Random(0)
    found = sorted(measure(source) for _ in range(RESAMPLES))
    return f"[{found[RESAMPLES * 25 // 1000]:.4f}, {found[RESAMPLES * 975 // 1000]:.4f}]"


def resampled_median(source: random.Random, values: Sequence[float]) -> float:
    """The median of as many values, drawn with replacement."""
    return statistics.median(source.choices(values, k=len(values)))


def paired(values: Sequence[float]) -> str:
    """Median, interval and number of paired rounds."""
    return f"{statistics.median(values):.4f}  {interval(lambda source: resampled_median(source, values))}"


def print_results(rounds: Rounds) -> None:
    """What was measured, then the ratios."""
    kinds = ("absent", "idle", "armed_host", "exporting", "torch_profiler")
    ms = {kind: rounds.median(f"{kind}_ns") / 1e6 for kind in kinds}
    print(
        f"decode step, median of the rounds' medians: absent {ms['absent']:.2f} ms · attached and idle"
        f" {ms['idle']:.2f} ms · armed, host timing {ms['armed_host']:.2f} ms · exporter at work"
        f" {ms['exporting']:.2f} ms · torch profiler {ms['torch_profiler']:.2f} ms"
    )
    print(f"spans a recorded step: {rounds.median('spans_per_step'):.0f}")
    print(f"decode steps during an export of {LONG_WINDOW} recorded ones: {rounds.median('exporting_steps'):.0f}")
    print(
        f"from the last of {STEPS} recorded steps to the files: {rounds.median('flush_s'):.2f} s, the engine decoding;"
        f" stop_profile() after as many: {rounds.median('torch_flush_s'):.1f} s, the engine stands;"
        f" {rounds.median('torch_bytes') / 1e6:.1f} MB"
    )
    print(f"absent rounds against absent rounds: {paired(rounds.ratios['absent_again_vs_absent_time'])}")
    print(
        "absent rounds beside a process that has nothing to do with it, as busy and of as low a priority as the"
        f" exporter: {paired(rounds.ratios['busy_neighbour_vs_absent_time'])}"
    )
    print("ratios: median of the rounds, and a 95 % bootstrap interval")
    for name in ("idle", "armed_host", "torch_profiler", "exporting"):
        print(f"RATIO {name}_vs_absent_time {paired(rounds.ratios[f'{name}_vs_absent_time'])}")
    exporting, neighbour = (rounds.ratios[f"{name}_vs_absent_time"] for name in ("exporting", "busy_neighbour"))
    spread = interval(lambda source: resampled_median(source, exporting) / resampled_median(source, neighbour))
    ratio = statistics.median(exporting) / statistics.median(neighbour)
    print(f"RATIO exporting_vs_busy_neighbour_time {ratio:.4f}  {spread}")
    ours, other = rounds.values["flush_s"], rounds.values["torch_flush_s"]
    spread = interval(lambda source: resampled_median(source, ours) / resampled_median(source, other))
    print(f"RATIO flush_vs_torch_profiler_time {statistics.median(ours) / statistics.median(other):.4f}  {spread}")


def main() -> int:
    """Measure, print, end with the ratios."""
    began = time.monotonic()
    rounds = Rounds()
    print(
        f"Qwen3MoE, 2 layers, eager, 8 requests that decode; vLLM {version('vllm-cpu')}, torch {version('torch')},"
        f" Python {platform.python_version()}, {os.cpu_count()} cores",
        flush=True,
    )
    with tempfile.TemporaryDirectory() as directory, running_engines(Path(directory)) as engines:
        alternate(engines, rounds)
        profile(engines, rounds)
    print(
        f"{CYCLES} cycles of rounds of {STEPS} steps on two engines ({TORCH_CYCLES} under the torch profiler with"
        f" vLLM's defaults), {time.monotonic() - began:.0f} s"
    )
    print_results(rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
