"""What the scripts in this folder share. Each runs real vLLM offline (`LLM`) in a process of its own.

They leave their findings as JSON in the file that is their last argument; the tests look at it.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

PROMPTS = [
    f"{word} is what this request asks about"
    for word in ["Alpha", "Beta", "Gamma", "Delta", "Epsilon", "Zeta", "Eta", "Theta"]
]


def make_llm(model: str, **options: Any) -> Any:
    """A small engine on the CPU."""
    from vllm import LLM

    return LLM(
        model=model,
        enforce_eager=True,
        max_model_len=512,
        max_num_seqs=8,
        gpu_memory_utilization=0.2,
        seed=0,
        **options,
    )


def generate(llm: Any, prompts: list[str], tokens: int) -> list[list[list[float]]]:
    """[token id, its log probability] for every token that follows each prompt, at temperature 0.

    The random weights of a dummy model often give the same tokens; the probabilities tell prompts apart.
    """
    from vllm import SamplingParams

    sampling = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, logprobs=1)
    outputs = llm.generate(prompts, sampling, use_tqdm=False)
    return [
        [
            [token, entry[token].logprob]
            for token, entry in zip(o.outputs[0].token_ids, o.outputs[0].logprobs, strict=True)
        ]
        for o in outputs
    ]


def arm(directory: Path, steps: object) -> None:
    """Write the start file, as a user would."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "start").write_text(str(steps))


def wait_until(condition: Any, what: str, seconds: float = 60.0) -> None:
    """Wait for a condition; the script fails when it does not come."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"{what} did not come within {seconds} s")
        time.sleep(0.05)


def wait_for_end(directory: Path) -> dict[str, Any]:
    """Wait until the recording is written and `start` is gone; the answer is recording.json."""
    wait_until(lambda: not (directory / "start").exists(), "the end of the recording")
    header: dict[str, Any] = json.loads((directory / "recording.json").read_text())
    return header


def report(result: dict[str, Any]) -> None:
    """Leave the result for the test: in the file that is the script's last argument."""
    Path(sys.argv[-1]).write_text(json.dumps(result))


# Run inside the workers, by collective_rpc.


def left_behind(worker: Any) -> list[str]:
    """What still stands on modules, the runner or classes after a window: nothing, one hopes."""
    import vllm.v1.utils as utils
    from vllm.model_executor.layers.fused_moe.modular_kernel import FusedMoEKernelModularImpl
    from vllm.model_executor.layers.fused_moe.router.base_router import BaseRouter

    found = [name for name, module in worker.get_model().named_modules() if "forward" in vars(module)]
    found += [name for name in ("execute_model", "sample_tokens") if name in vars(worker.model_runner)]
    found += [name for name in ("execute_dummy_batch",) if name in vars(worker)]
    found += [
        f"{cls.__name__}.{name}"
        for cls in (FusedMoEKernelModularImpl, *BaseRouter.__mro__)
        for name, value in vars(cls).items()
        if "vime_otel" in str(getattr(getattr(value, "__code__", None), "co_filename", ""))
    ]
    if "vime_otel" in str(getattr(utils._PROFILER_FUNC, "__module__", "")):
        found.append("_PROFILER_FUNC")
    return found


def rank_of(worker: Any) -> int:
    """An innocent call, to see whether answers still belong to questions."""
    return int(worker.rank)


def add_phase(worker: Any) -> None:
    """A user's own phase: `vime_otel.span` around the sampler."""
    import vime_otel

    sample = worker.model_runner._sample

    def sample_with_a_phase(*args: Any) -> Any:
        with vime_otel.span("my phase; mine"):
            return sample(*args)

    worker.model_runner._sample = sample_with_a_phase
