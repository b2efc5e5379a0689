"""An engine of several ranks, or one whose steps overlap: each recorded step beside what the client's clock says.

Usage: parallel.py MODEL DIRECTORY RESULT, with the shape of the engine (see SHAPES) in VIME_TEST_SHAPE
"""

import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common import PROMPTS, arm, make_llm, report, wait_for_end, wait_until

SHAPES: dict[str, dict[str, Any]] = {
    "tensor": {"tensor_parallel_size": 2},
    # A pipeline stage runs on the CPU only after a warm-up, which `enforce_eager` leaves out.
    "pipeline": {
        "pipeline_parallel_size": 2,
        "enforce_eager": False,
        "compilation_config": {"mode": 2, "backend": "eager"},
        # The second prompt's chunks of 32 and, beside a token of the first request, of 31 tokens take turns. 95 tokens
        # end in a batch without the first request, whichever came first: from then on each stage has one of the two.
        "max_num_batched_tokens": 32,
    },
    "one_process": {},
    "asynchronous": {},
    "asynchronous_one_process": {},
}
WARM_UP = 12
ONE = TWO = 101
FORCED = 30
TWO_PROMPTS = [PROMPTS[0][:30], " and ".join(PROMPTS[1:4])[:95]]


def main() -> None:
    shape, directory = os.environ["VIME_TEST_SHAPE"], Path(sys.argv[2])
    if shape.startswith("asynchronous"):
        schedule_asynchronously()
    llm = make_llm(sys.argv[1], load_format="dummy", enable_prefix_caching=False, **SHAPES[shape])
    for together in (1, 2):
        stream(llm, TWO_PROMPTS[:together], WARM_UP)

    def record(name: str, order: str, work: Callable[[], list[int]]) -> dict[str, Any]:
        arm(directory, order)
        wait_until(lambda: is_armed(llm), "arming")
        outputs_ns = work()
        header = wait_for_end(directory)
        wait_until(lambda: look(llm)["phase"] == "done", "the end of the export")  # spans are sent last
        copy = directory.with_name(f"{directory.name}-{name}")
        shutil.copytree(directory, copy)
        return {"header": header, "run": str(copy), "outputs_ns": outputs_ns}

    windows = {
        "one": record("one", str(ONE), lambda: stream(llm, TWO_PROMPTS[:1], ONE)),
        "two": record("two", str(TWO), lambda: stream(llm, TWO_PROMPTS, TWO)),
    }
    if shape == "pipeline":
        windows["forced"] = record("forced", f"{FORCED} force-eager", lambda: stream(llm, TWO_PROMPTS, FORCED))
    report({"windows": windows, "asynchronous": is_asynchronous(llm)})


def schedule_asynchronously() -> None:
    """Have the CPU schedule a step while the one before runs, as other devices do: it switches that off."""
    from vllm.platforms.cpu import CpuPlatform

    check = CpuPlatform.check_and_update_config.__func__

    def check_and_update_config(cls: Any, vllm_config: Any) -> None:
        check(cls, vllm_config)
        vllm_config.scheduler_config.async_scheduling = True

    CpuPlatform.check_and_update_config = classmethod(check_and_update_config)


def stream(llm: Any, prompts: list[str], tokens: int) -> list[int]:
    """When each output came, in Unix nanoseconds; the second prompt follows while the first request decodes."""
    from vllm import SamplingParams

    engine, waiting, came = llm.llm_engine, list(enumerate(prompts)), []
    sampling = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    while waiting or engine.has_unfinished_requests():
        if waiting and len(came) >= waiting[0][0] * 3:
            number, prompt = waiting.pop(0)
            engine.add_request(str(number), prompt, sampling)
        if engine.step():
            came.append(time.time_ns())
    return came


def is_armed(llm: Any) -> bool:
    """Whether the next step is recorded. An engine in this process opens its window only right before that."""
    found = look(llm)
    return bool(found["phase"] == "armed" and (found["armed"] or in_process(llm) is not None))


def look(llm: Any) -> dict[str, Any]:
    """How the engine's recorder stands."""
    from vllm_test_plugin import look as look_at

    engine = in_process(llm)
    if engine is not None:
        found: dict[str, Any] = look_at(engine)
    else:
        found = llm.llm_engine.engine_core.call_utility("vime_test_look")
    return found


def in_process(llm: Any) -> Any:
    """The engine, where it is in this process."""
    return getattr(llm.llm_engine.engine_core, "engine_core", None)


def is_asynchronous(llm: Any) -> bool:
    return bool(llm.llm_engine.vllm_config.scheduler_config.async_scheduling)


if __name__ == "__main__":
    main()
