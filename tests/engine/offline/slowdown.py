"""An in-process engine, recorded as it is, with a module slowed down by a fifth, as it is again, at half the batch.

Usage: slowdown.py MODEL DIRECTORY RESULT
"""

import shutil
import sys
import time
from pathlib import Path
from typing import Any

from common import PROMPTS, arm, generate, make_llm, report, wait_for_end, wait_until

from vime_otel.data.folded import inclusive
from vime_otel.data.rundir import RunDirectory

TOKENS = 241
STEPS = TOKENS - 1
ALIKE = 4
WITHIN = 1.03
MOST_ROUNDS = 40
UNDISTURBED = 1.02
SLOWDOWN = 0.2
SLOWED = "Qwen3MoeSparseMoeBlock"


def main() -> None:
    llm = make_llm(sys.argv[1], load_format="dummy", enable_prefix_caching=False)
    directory = Path(sys.argv[2])
    settle(llm)
    record(llm, directory, "warm-up", PROMPTS)  # the first recorded steps take their time, too
    settle(llm)
    usual = min(untouched_us(record(llm, directory, "usual", PROMPTS)) for _ in range(5))
    runs = {"before": record_undisturbed(llm, directory, "before", usual)}
    usual = untouched_us(runs["before"])
    usual_us = per_call_us(RunDirectory(Path(runs["before"])))
    llm.collective_rpc(slow_down, args=(int(SLOWDOWN * usual_us * 1000),))
    runs["slower"] = record_undisturbed(llm, directory, "slower", usual)
    llm.collective_rpc(speed_up)
    runs["again"] = record_undisturbed(llm, directory, "again", usual)
    runs["half"] = record(llm, directory, "half", PROMPTS[: len(PROMPTS) // 2])
    report({"runs": runs, "usual_us": usual_us})


def settle(llm: Any) -> None:
    """Generate until it takes the same time again and again: an engine gets faster for some seconds."""
    times: list[float] = []
    while len(times) < MOST_ROUNDS and not (len(times) >= ALIKE and max(times[-ALIKE:]) < WITHIN * min(times[-ALIKE:])):
        begun = time.perf_counter()
        generate(llm, PROMPTS, TOKENS)
        times.append(time.perf_counter() - begun)


def record(llm: Any, directory: Path, name: str, prompts: list[str]) -> str:
    """Record the decode steps of one generation; the run is kept beside the directory."""
    engine = llm.llm_engine.engine_core.engine_core
    arm(directory, STEPS)
    wait_until(lambda: engine._vime_otel.status.phase == "armed", "arming")
    generate(llm, prompts, TOKENS)
    wait_for_end(directory)
    wait_until(lambda: engine._vime_otel.status.phase != "exporting", "the end of the export")
    kept = directory.parent / name
    shutil.rmtree(kept, ignore_errors=True)
    shutil.copytree(directory, kept)
    return str(kept)


def record_undisturbed(llm: Any, directory: Path, name: str, usual: float) -> str:
    """Record until the frames that nobody touched take their usual microseconds.

    The test machine does other things, too; what these do to an engine is a real change, but not the planted one.
    """
    for _ in range(MOST_ROUNDS):
        kept = record(llm, directory, name, PROMPTS)
        if abs(untouched_us(kept) - usual) < (UNDISTURBED - 1) * usual:
            break
    return kept


def untouched_us(path: str) -> float:
    """Mean microseconds of a decode step without the slowed module's own time: what the machine alone decides."""
    run = RunDirectory(Path(path))
    own = sum(us for stack, us in run.self_us("decode").items() if not stack.endswith(f":{SLOWED}"))
    return own / run.steps["decode"]


def per_call_us(run: RunDirectory) -> float:
    """What one call of the module takes in a decode step."""
    total, calls = inclusive(run.self_us("decode")), run.calls("decode")
    (stack,) = [stack for stack in total if stack.endswith(f":{SLOWED}")]
    return total[stack] / calls[stack]


# Run inside the workers, by collective_rpc.


def slow_down(worker: Any, extra_ns: int) -> None:
    """Every call of the module takes so much longer, busily."""

    def slowed(forward: Any) -> Any:
        def slowed_forward(*args: Any, **kwargs: Any) -> Any:
            end = time.perf_counter_ns() + extra_ns
            while time.perf_counter_ns() < end:
                pass
            return forward(*args, **kwargs)

        return slowed_forward

    for module in worker.get_model().modules():
        if type(module).__name__ == SLOWED:
            module.forward = slowed(module.forward)


def speed_up(worker: Any) -> None:
    """Undo that."""
    for module in worker.get_model().modules():
        if type(module).__name__ == SLOWED:
            del module.forward


if __name__ == "__main__":
    main()
