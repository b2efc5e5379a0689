"""`make bench-engine`: what recording costs the steps of a real vLLM engine, and how soon its files are there.

Engines without the recorder ("absent") and with it ("attached") live in processes of their own, on one OpenMP thread
each, and take turns: while one decodes, the others wait. Every round of theirs is compared with absent rounds just
before and after it; of these ratios the median is told with a bootstrap interval over the rounds. There are two
engines of each sort, since two processes that do the same are not equally fast, and the bench tells by how much.
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
CYCLES = 20
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

    def ask(self, method: str, steps: int) -> dict[str, Any]:
        """Have it do something, and wait for what it found."""
        assert self._process.stdin is not None
        print(json.dumps([method, steps]), file=self._process.stdin, flush=True)
        return self.answer()

    def step_ns(self) -> float:
        """The median time of a plain decode step in a round."""
        times: list[int] = self.ask("decode", STEPS)["step_ns"]
        return statistics.median(times)

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
def running_engines(directory: Path) -> Iterator[tuple[list[Engine], list[Engine]]]:
    """(two engines without a recorder, two with an idle one), warmed up."""
    model = write_tiny_model(directory / "model")
    absent: list[Engine] = []
    attached: list[Engine] = []
    try:
        for number in range(2):
            absent.append(Engine(directory / f"absent-{number}", model, {}))
            trigger = {"VIME_OTEL_DIR": str(directory / f"trigger-{number}"), "VIME_OTEL_TIMING": "host"}
            attached.append(Engine(directory / f"attached-{number}", model, trigger))
            for engine in (absent[-1], attached[-1]):  # two at a time: loading takes a core each
                engine.answer()
        for engine in absent + attached:
            engine.step_ns()
        for engine in attached:
            engine.ask("record", STEPS)
        yield absent, attached
    finally:
        for engine in absent + attached:
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


def alternate(absent: list[Engine], attached: list[Engine], rounds: Rounds) -> None:
    """The cycles: plain rounds of all engines in changing order, then windows between absent rounds."""
    order = random.Random(0)
    for cycle in range(CYCLES):
        engines = absent + attached
        order.shuffle(engines)
        times = {engine: engine.step_ns() for engine in engines}
        before = statistics.mean(times[engine] for engine in absent)
        idle = statistics.mean(times[engine] for engine in attached)
        rounds.ratio("idle_vs_absent_time", idle, before)
        rounds.ratio("absent_vs_absent_time", times[absent[0]], times[absent[1]])
        rounds.value("absent_ns", before)
        rounds.value("idle_ns", idle)
        reference, recorder = absent[cycle % 2], attached[cycle % 2]

        window = recorder.ask("record", STEPS)
        between = reference.step_ns()
        armed = statistics.median(window["step_ns"])
        rounds.ratio("armed_host_vs_absent_time", armed, (before + between) / 2)
        rounds.value("armed_ns", armed)
        rounds.value("flush_s", window["flush_s"])
        rounds.value("spans_per_step", window["spans"] / STEPS)

        window = recorder.ask("record", LONG_WINDOW)
        after = reference.step_ns()
        exporting = statistics.median(window["exporting_step_ns"])
        rounds.ratio("exporting_vs_absent_time", exporting, (between + after) / 2)
        rounds.value("exporting_ns", exporting)
        rounds.value("exporting_steps", len(window["exporting_step_ns"]))


def profile(absent: list[Engine], rounds: Rounds) -> None:
    """As many steps under vLLM's torch profiler with its defaults."""
    for cycle in range(TORCH_CYCLES):
        engine = absent[cycle % 2]
        before = engine.step_ns()
        profiled = engine.ask("torch", STEPS)
        after = engine.step_ns()
        under = statistics.median(profiled["step_ns"])
        rounds.ratio("torch_profiler_vs_absent_time", under, (before + after) / 2)
        rounds.value("torch_ns", under)
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
    ms = {name: rounds.median(name) / 1e6 for name in ("absent_ns", "idle_ns", "armed_ns", "exporting_ns", "torch_ns")}
    print(
        f"decode step, median of the rounds' medians: absent {ms['absent_ns']:.2f} ms · attached and idle"
        f" {ms['idle_ns']:.2f} ms · armed, host timing {ms['armed_ns']:.2f} ms · exporter at work"
        f" {ms['exporting_ns']:.2f} ms · torch profiler {ms['torch_ns']:.2f} ms"
    )
    print(f"spans a recorded step: {rounds.median('spans_per_step'):.0f}")
    print(f"decode steps during an export of {LONG_WINDOW} recorded ones: {rounds.median('exporting_steps'):.0f}")
    print(
        f"from the last of {STEPS} recorded steps to the files: {rounds.median('flush_s'):.2f} s, the engine decoding;"
        f" stop_profile() after as many: {rounds.median('torch_flush_s'):.1f} s, the engine stands;"
        f" {rounds.median('torch_bytes') / 1e6:.1f} MB"
    )
    print(f"two absent engines against each other: {paired(rounds.ratios['absent_vs_absent_time'])}")
    print("ratios: median of the rounds, and a 95 % bootstrap interval")
    for name in ("idle", "armed_host", "torch_profiler", "exporting"):
        print(f"RATIO {name}_vs_absent_time {paired(rounds.ratios[f'{name}_vs_absent_time'])}")
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
    with tempfile.TemporaryDirectory() as directory, running_engines(Path(directory)) as (absent, attached):
        alternate(absent, attached, rounds)
        profile(absent, rounds)
    print(
        f"{CYCLES} cycles of rounds of {STEPS} steps on 2 + 2 engines ({TORCH_CYCLES} under the torch profiler with"
        f" vLLM's defaults), {time.monotonic() - began:.0f} s"
    )
    print_results(rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
