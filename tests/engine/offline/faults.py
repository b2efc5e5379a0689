"""TP=2 with a fault planted in the recorder itself: the engine must not notice.

Usage: VIME_TEST_FAULT=wrapper|arm|take faults.py MODEL DIRECTORY RESULT
"""

import os
import sys
import time
from pathlib import Path
from typing import Any

from common import PROMPTS, arm, generate, left_behind, make_llm, rank_of, report, wait_for_end
from planting import plant_in_arm, plant_in_take, plant_in_wrapper, pull_out

PLANTS = {"wrapper": plant_in_wrapper, "arm": plant_in_arm, "take": plant_in_take}


def main() -> None:
    model, directory = sys.argv[1], Path(sys.argv[2])
    llm = make_llm(model, tensor_parallel_size=2)
    prompt = PROMPTS[:1]
    baseline = generate(llm, prompt, 12)

    def record() -> dict[str, Any]:
        """Generate over and over until the recording is written: some before, some in, some after the window."""
        generations = different = 0
        arm(directory, 8)
        while (directory / "start").exists():
            for _ in range(6):
                llm.llm_engine.reset_prefix_cache()
                generations += 1
                different += generate(llm, prompt, 12) != baseline
                time.sleep(0.25)
            # Either steps are missing, or the exporter is at work: it needs a core, on which workers spin for a second.
            quiet_until = time.monotonic() + 4
            while (directory / "start").exists() and time.monotonic() < quiet_until:
                time.sleep(0.05)
        return {"header": wait_for_end(directory), "generations": generations, "different": different}

    before = record()
    llm.collective_rpc(PLANTS[os.environ["VIME_TEST_FAULT"]])
    faulty = record()
    llm.collective_rpc(pull_out)
    # Ten times: an answer left in the queue would surface in one of the next calls.
    ranks = [llm.collective_rpc(rank_of) for _ in range(10)]
    left = llm.collective_rpc(left_behind)
    report({"before": before, "with": faulty, "after": record(), "ranks": ranks, "left_behind": left})


if __name__ == "__main__":
    main()
