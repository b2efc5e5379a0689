"""An in-process engine with batches of 8: tokens, kinds, the file trigger, plain OTLP.

Usage: batches.py MODEL DIRECTORY RESULT
"""

import sys
from pathlib import Path

from common import PROMPTS, add_phase, arm, generate, left_behind, make_llm, report, wait_for_end, wait_until


def main() -> None:
    model, directory = sys.argv[1], Path(sys.argv[2])
    llm = make_llm(model)
    baseline = generate(llm, PROMPTS, 16)
    llm.llm_engine.reset_prefix_cache()

    llm.collective_rpc(add_phase)
    arm(directory, 12)
    # The door looks every quarter of a second; an in-process engine obeys at its next step.
    engine = llm.llm_engine.engine_core.engine_core
    wait_until(lambda: engine._vime_otel.status.phase == "armed", "arming")
    recorded = generate(llm, PROMPTS, 16)
    header = wait_for_end(directory)
    leftovers = llm.collective_rpc(left_behind)

    # Not a number means one step; the next generation starts with a prefill step.
    arm(directory, "some text")
    wait_until(lambda: engine._vime_otel.status.phase == "armed", "arming again")
    generate(llm, PROMPTS[:1], 4)
    second = wait_for_end(directory)
    report(
        {
            "baseline": baseline,
            "recorded": recorded,
            "header": header,
            "left_behind": leftovers,
            "second": second,
            "engine_scheduler_clean": "schedule" not in vars(engine.scheduler),
        }
    )


if __name__ == "__main__":
    main()
