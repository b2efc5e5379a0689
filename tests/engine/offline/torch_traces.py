"""An engine under vLLM's own torch profiler: prefill, decode and mixed steps, written where VIME_TEST_TRACES says.

Usage: torch_traces.py MODEL DIRECTORY RESULT, with the number of tensor-parallel ranks in VIME_TEST_RANKS and
`1` in VIME_TEST_STACKS to record Python stacks. The result holds the steps that the client made, to compare with.
"""

import os
import sys
from typing import Any

from common import PROMPTS, make_llm, report

TOKENS = 6
LATER = 3
"""A second request joins after this many tokens of the first."""


def main() -> None:
    traces = os.environ["VIME_TEST_TRACES"]
    llm = make_llm(
        sys.argv[1],
        load_format="dummy",
        enable_prefix_caching=False,
        tensor_parallel_size=int(os.environ["VIME_TEST_RANKS"]),
        profiler_config={
            "profiler": "torch",
            "torch_profiler_dir": traces,
            "torch_profiler_with_stack": os.environ.get("VIME_TEST_STACKS") == "1",
        },
    )
    two_requests(llm)  # the first steps take their time
    llm.start_profile()
    scheduled = two_requests(llm)
    llm.stop_profile()
    report({"steps": scheduled})


def two_requests(llm: Any) -> int:
    """Two requests of which the later one begins while the other decodes; the number of engine steps it took."""
    from vllm import SamplingParams

    sampling = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
    engine = llm.llm_engine
    engine.add_request("first", PROMPTS[0], sampling)
    steps = 0
    while engine.has_unfinished_requests():
        if steps == LATER:
            engine.add_request("second", PROMPTS[1], sampling)
        engine.step()
        steps += 1
    return steps


if __name__ == "__main__":
    main()
