"""An in-process engine with 64 tokens in a decode step: the steps of one model, drafted ones if SPECULATIVE says how.

Usage: models.py MODEL DIRECTORY RESULT; SPECULATIVE in the environment is vLLM's `speculative_config`, as JSON.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

from common import PROMPTS, arm, generate, left_behind, make_llm, report, wait_for_end, wait_until

DECODED = 64
STEPS = 24


def main() -> None:
    directory = Path(sys.argv[2])
    options: dict[str, Any] = {"load_format": "dummy", "enable_prefix_caching": False}
    batch = DECODED
    if speculative := os.environ.get("SPECULATIVE"):
        options["speculative_config"] = json.loads(speculative)
        batch //= 1 + options["speculative_config"]["num_speculative_tokens"]
    llm = make_llm(sys.argv[1], max_num_seqs=batch, **options)
    prompts = [f"{number}: {prompt}" for prompt in PROMPTS for number in range(batch // len(PROMPTS))]
    generate(llm, prompts[:4], 4)  # the first steps take their time
    arm(directory, STEPS)
    engine = llm.llm_engine.engine_core.engine_core
    wait_until(lambda: engine._vime_otel.status.phase == "armed", "arming")
    while engine._vime_otel.status.phase in ("armed", "recording"):
        generate(llm, prompts, STEPS)
    header = wait_for_end(directory)
    wait_until(lambda: engine._vime_otel.status.phase != "exporting", "the end of the export")  # spans follow the files
    report(
        {
            "header": header,
            "rows": json.loads((directory / "steps.json").read_text())["rows"],
            "left_behind": llm.collective_rpc(left_behind),
        }
    )


if __name__ == "__main__":
    main()
