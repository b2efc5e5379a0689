"""A compiled in-process engine: what a plain and a forced eager recording see, and how long its steps take after one.

Keeps a copy of each kind of run beside DIRECTORY: `first`, `forced`, `last`.

Usage: compiled.py MODEL DIRECTORY RESULT
"""

import json
import random
import shutil
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from common import PROMPTS, arm, left_behind, make_llm, report, wait_for_end, wait_until
from vllm import SamplingParams

ROUNDS = 5
TIMED = 80
RECORDED = 10
IN_AND_AFTER_WINDOW = 30
RESAMPLINGS = 2000


class Decoding:
    """Batches of requests on an engine whose steps are counted and timed."""

    def __init__(self, llm: Any, directory: Path):
        self.llm = llm
        self.engine = llm.llm_engine
        self.recorder = self.engine.engine_core.engine_core._vime_otel
        self.directory = directory
        self.batches = 0

    def begin(self) -> None:
        """Drop the last batch for a new one, and make it decode."""
        self.end()
        self.batches += 1
        sampling = SamplingParams(temperature=0, max_tokens=2 * TIMED + 2 * IN_AND_AFTER_WINDOW, ignore_eos=True)
        for number, prompt in enumerate(PROMPTS[:4]):
            self.engine.add_request(f"{self.batches}/{number}", prompt, sampling)
        self.steps(2)

    def end(self) -> None:
        self.engine.abort_request([f"{self.batches}/{number}" for number in range(4)])

    def steps(self, count: int) -> list[float]:
        """Make decode steps; the seconds that each took."""
        times = []
        for _ in range(count):
            start = time.perf_counter()
            self.engine.step()
            times.append(time.perf_counter() - start)
        return times

    def record(self, order: str) -> dict[str, Any]:
        """A window in the middle of a batch's decode steps; recording.json."""
        arm(self.directory, order)
        wait_until(lambda: self.recorder.status.phase == "armed", "arming")
        self.steps(IN_AND_AFTER_WINDOW)
        return wait_for_end(self.directory)

    def keep(self, name: str) -> None:
        shutil.copytree(self.directory, self.directory.with_name(name), dirs_exist_ok=True)


def ratio(rounds: list[dict[str, list[float]]], above: str, below: str) -> dict[str, float]:
    """Median over the rounds of the quotient of their medians, with a 95 % interval by bootstrap."""
    chance = random.Random(0)

    def once(chosen: list[dict[str, list[float]]]) -> float:
        return median(median(each[above]) / median(each[below]) for each in chosen)

    def resampled() -> list[dict[str, list[float]]]:
        return [
            {name: chance.choices(times, k=len(times)) for name, times in each.items()}
            for each in chance.choices(rounds, k=len(rounds))
        ]

    drawn = sorted(once(resampled()) for _ in range(RESAMPLINGS))
    return {
        "ratio": once(rounds),
        "low": drawn[int(0.025 * RESAMPLINGS)],
        "high": drawn[int(0.975 * RESAMPLINGS)],
    }


def main() -> None:
    model, directory = sys.argv[1], Path(sys.argv[2])
    llm = make_llm(model, enforce_eager=False)
    llm.llm_engine.step()  # the first step makes the recorder
    decoding = Decoding(llm, directory)

    decoding.begin()
    decoding.steps(TIMED)
    decoding.record(str(RECORDED))
    decoding.keep("first")

    rounds, windows = [], []
    for _ in range(ROUNDS):
        decoding.begin()
        before = decoding.steps(TIMED)
        windows.append(decoding.record(f"{RECORDED} force-eager per-layer"))
        after = decoding.steps(TIMED)
        rows = json.loads((directory / "steps.json").read_text())["rows"]
        # The first interval reaches back to before the window.
        rounds.append({"before": before, "forced": [row["interval_ns"] / 1e9 for row in rows[1:]], "after": after})
    decoding.keep("forced")

    decoding.begin()
    decoding.record(str(RECORDED))
    decoding.keep("last")
    decoding.end()
    report(
        {
            "windows": windows,
            "medians_ms": [{name: median(times) * 1e3 for name, times in each.items()} for each in rounds],
            "after/before": ratio(rounds, "after", "before"),
            "forced/before": ratio(rounds, "forced", "before"),
            "left_behind": llm.collective_rpc(left_behind),
        }
    )


if __name__ == "__main__":
    main()
