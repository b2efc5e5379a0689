"""One in-process vLLM engine that decodes on command and times its steps; `engine.py` runs several.

Usage: decoding_engine.py MODEL TORCH_PROFILER_DIR

Commands are read from standard input and answered on standard output, a line of JSON each:
`["decode", STEPS]`, `["beside", STEPS]`, `["record", STEPS]`, `["torch", STEPS]`, `["attach", null]`,
`["detach", null]` call the method of `DecodingEngine` of that name.
Step times are in nanoseconds.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vime_otel.recorder.exporter_process import NICENESS

REQUESTS = 8
PROMPT_TOKENS = 16
SETTLING_STEPS = 5
BATCH_STEPS = 100
"""Decode steps of each batch that count: attention costs more with every token, so all times come from the same."""
TOKENS = 2 * BATCH_STEPS
GIVE_UP_S = 180.0
NEIGHBOUR = f"""
import os, pathlib
os.nice({NICENESS})
try:
    pathlib.Path("/proc/self/autogroup").write_text("{NICENESS}")
except OSError:
    pass
print("ready", flush=True)
while True:
    [(number, str(number)) for number in range(100_000)]
"""
"""A process without anything to do with the engine, as busy and of as low a priority as the exporter."""


class DecodingEngine:
    """A batch of requests that decode together; when it ends, the next one begins.

    A step's time is that from the outputs of the step before to its own. Steps that prefill, and the first ones of
    a batch, have none.
    """

    def __init__(self, model: str, torch_dir: Path):
        from vllm import LLM

        self._torch_dir = torch_dir
        self._llm = LLM(
            model=model,
            load_format="dummy",
            enforce_eager=True,
            max_model_len=PROMPT_TOKENS + TOKENS,
            max_num_seqs=REQUESTS,
            gpu_memory_utilization=0.2,
            enable_prefix_caching=False,
            seed=0,
            profiler_config={"profiler": "torch", "torch_profiler_dir": str(torch_dir)},
        )
        self._engine = self._llm.llm_engine
        self._batches = 0
        self._last_output = 0

    def detach(self, _: None) -> dict[str, Any]:
        """vLLM as it is without a recorder: its own step functions in place, no recorder, no door."""
        from vllm.v1.engine.core import EngineCore

        core = self._engine.engine_core.engine_core
        for door in vars(core).pop("_vime_otel_doors", ()):
            door.close()
            door.join()
        vars(core).pop("_vime_otel", None)
        for name in ("step", "step_with_batch_queue"):
            function = vars(EngineCore)[name]
            setattr(EngineCore, name, getattr(function, "__wrapped__", function))
        self._rebind(core)
        return {}

    def attach(self, _: None) -> dict[str, Any]:
        """With the recorder that the plugin attaches, which idles until it is told otherwise."""
        from vime_otel.recorder.vllm_engine import attach

        attach()
        self._rebind(self._engine.engine_core.engine_core)
        return {}

    @staticmethod
    def _rebind(core: Any) -> None:
        core.step_fn = getattr(core, core.step_fn.__name__)

    def decode(self, steps: int) -> dict[str, Any]:
        """The times of `steps` decode steps."""
        times = itertools.islice((took for _, took in self._steps() if took is not None), steps)
        answer = {"step_ns": list(times)}
        self._end()
        return answer

    def beside(self, steps: int) -> dict[str, Any]:
        """The same beside a process of low priority that keeps a core busy."""
        command = [sys.executable, "-c", NEIGHBOUR]
        with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as neighbour:
            assert neighbour.stdout is not None
            neighbour.stdout.readline()
            try:
                return self.decode(steps)
            finally:
                neighbour.kill()

    def record(self, steps: int) -> dict[str, Any]:
        """Decode while `steps` steps are recorded by file trigger, and on until the files are written.

        Answers the recorded steps' times, those of the steps in which the exporter ran, the seconds from the last
        recorded step to the files, and how many spans were recorded.
        """
        directory = Path(os.environ["VIME_OTEL_DIR"])
        start_file = directory / "start"
        to_unix = time.time_ns() - time.perf_counter_ns()
        timed: list[tuple[int, int]] = []
        ends: list[int] = []
        directory.mkdir(parents=True, exist_ok=True)
        start_file.write_text(str(steps))
        gives_up = time.monotonic() + GIVE_UP_S
        for end, took in self._steps():
            ends.append(end + to_unix)
            if took is not None:
                timed.append((end + to_unix - took, end + to_unix))
            if not start_file.exists():
                break
            if time.monotonic() > gives_up:
                raise SystemExit(f"the files of {steps} steps did not come within {GIVE_UP_S:.0f} s")
        gone = time.time_ns()
        self._end()
        header = json.loads((directory / "recording.json").read_text())
        rows = json.loads((directory / "steps.json").read_text())["rows"]
        if not header["complete"] or len(rows) != steps:
            raise SystemExit(f"the recording is not whole: {header['reasons']}, {len(rows)} steps")
        first, last = rows[0]["start_unix_nano"], rows[-1]["start_unix_nano"]
        over = next(end for end in ends if end > last)
        # Without the first recorded step, which holds the arming, the last one, which holds the fetching, and the last
        # of all, in which the export ends.
        return {
            "step_ns": [end - start for start, end in timed if start > first and end <= last],
            "exporting_step_ns": [end - start for start, end in timed[:-1] if start >= over],
            "flush_s": (gone - over) / 1e9,
            "spans": header["spans"]["received"],
            "pause_ms": header["pause_ms"],
        }

    def torch(self, steps: int) -> dict[str, Any]:
        """`steps` decode steps under vLLM's torch profiler. Answers their times and what stopping it took."""
        self._begin()
        for _ in range(SETTLING_STEPS):
            self._step()
        self._llm.start_profile()
        self._step()
        times = [self._step() for _ in range(steps - 1)]
        started = time.perf_counter_ns()
        self._llm.stop_profile()
        flush_s = (time.perf_counter_ns() - started) / 1e9
        self._end()
        size = 0
        for path in self._torch_dir.iterdir():
            size += path.stat().st_size
            path.unlink()
        return {"step_ns": times, "flush_s": flush_s, "bytes": size}

    def _steps(self) -> Iterator[tuple[int, int | None]]:
        """Decode batch after batch: the end of each step, and its time if it counts. The last batch is to be ended."""
        while True:
            self._begin()
            for number in range(SETTLING_STEPS + BATCH_STEPS):
                took = self._step()
                yield self._last_output, took if number >= SETTLING_STEPS else None
            self._end()

    def _begin(self) -> None:
        from vllm import SamplingParams

        sampling = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True, detokenize=False)
        for number in range(REQUESTS):
            prompt = [1 + (number + token) % 200 for token in range(PROMPT_TOKENS)]
            self._engine.add_request(f"{self._batches}-{number}", {"prompt_token_ids": prompt}, sampling)
        self._batches += 1
        self._step()

    def _step(self) -> int:
        self._engine.step()
        before, self._last_output = self._last_output, time.perf_counter_ns()
        return self._last_output - before

    def _end(self) -> None:
        self._engine.abort_request([f"{self._batches - 1}-{number}" for number in range(REQUESTS)])
        while self._engine.has_unfinished_requests():
            self._step()


def main() -> int:
    """Obey until standard input ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # vLLM prints there, too
    engine = DecodingEngine(sys.argv[1], Path(sys.argv[2]))
    print(json.dumps({"ready": True}), file=answers)
    for line in sys.stdin:
        method, steps = json.loads(line)
        print(json.dumps(getattr(engine, method)(steps)), file=answers)
    return 0


if __name__ == "__main__":
    sys.exit(main())
