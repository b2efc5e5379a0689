"""An in-process engine under the torch profiler, with `record_function` around what the recorder times, too.

Usage: torch_agreement.py MODEL DIRECTORY RESULT
"""

import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from common import PROMPTS, arm, generate, make_llm, report, wait_for_end, wait_until
from torch.profiler import ProfilerActivity, profile

GENERATIONS = 4
TOKENS = 4
PREFIX = "module "

# `torch.profiler.record_function` is an operator call of its own, 10 to 50 µs with cold caches: up to a fifth of the
# shortest modules that are compared. This is how compiled code marks its regions; the profiler's event is the same.
record_function = torch._C._profiler._RecordFunctionFast


def main() -> None:
    llm = make_llm(sys.argv[1], load_format="dummy", enable_prefix_caching=False)
    directory = Path(sys.argv[2])
    generate(llm, PROMPTS, TOKENS)  # the first steps take their time
    llm.collective_rpc(annotate_modules)
    arm(directory, GENERATIONS * TOKENS)
    engine = llm.llm_engine.engine_core.engine_core
    wait_until(lambda: engine._vime_otel.status.phase == "armed", "arming")
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(GENERATIONS):
            generate(llm, PROMPTS, TOKENS)
    calls: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for event in profiler.events():
        if event.name.startswith(PREFIX):
            calls[event.name.removeprefix(PREFIX)].append((event.time_range.start, event.time_range.elapsed_us()))
    header = wait_for_end(directory)
    wait_until(lambda: engine._vime_otel.status.phase != "exporting", "the end of the export")  # spans follow the files
    report(
        {
            "header": header,
            "profiler_us": {path: [took for _, took in sorted(found)] for path, found in calls.items()},
        }
    )


def annotate_modules(worker: Any) -> None:
    """`record_function` around every module's `forward`, inside of what the recorder will put there."""

    def annotated(forward: Any, path: str) -> Any:
        def annotated_forward(*args: Any, **kwargs: Any) -> Any:
            with record_function(PREFIX + path):
                return forward(*args, **kwargs)

        return annotated_forward

    for path, module in worker.get_model().named_modules():
        module.forward = annotated(module.forward, path)


if __name__ == "__main__":
    main()
