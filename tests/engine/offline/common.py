"""What the scripts in this folder share. Each runs real vLLM offline (`LLM`) in a process of its own.

They leave their findings as JSON in the file that is their last argument; the tests look at it.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from vime_otel.recorder.vllm_targets import AROUND_FORWARD, MOE_PHASES, RUNNER_METHODS

PROMPTS = [
    f"{word} is what this request asks about"
    for word in ["Alpha", "Beta", "Gamma", "Delta", "Epsilon", "Zeta", "Eta", "Theta"]
]


def make_llm(model: str, **options: Any) -> Any:
    """A small engine on the CPU; `options` add to these, or replace them."""
    from vllm import LLM

    usual = {
        "enforce_eager": True,
        "max_model_len": 512,
        "max_num_seqs": 8,
        "gpu_memory_utilization": 0.2,
        "seed": 0,
    }
    return LLM(model=model, **{**usual, **options})


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
    """What still stands on modules, the runner, classes or vLLM's own modules after a window: nothing, one hopes."""
    runner = worker.model_runner
    models = [worker.get_model(), getattr(getattr(runner, "drafter", None), "model", None)]
    found = [
        name
        for model in models
        for name, module in (model.named_modules() if hasattr(model, "named_modules") else ())
        if "forward" in vars(module)
    ]
    found += [name for name in ("execute_model", "sample_tokens") if name in vars(runner)]
    found += [name for name in ("execute_dummy_batch",) if name in vars(worker)]
    for place in {place for target in (*MOE_PHASES, *RUNNER_METHODS, *AROUND_FORWARD) for place in target.places}:
        class_name, _, name = place.path.rpartition(".")
        holder = sys.modules.get(place.module)
        if class_name:
            holder = getattr(holder, class_name, None)
        names = (name, "__call__") if name == "forward" else (name,)
        found += [f"{owner}.{each}" for owner in _with_subclasses(holder) for each in names if _is_ours(owner, each)]
    for module, name in (("vllm.v1.utils", "_PROFILER_FUNC"), ("vllm.forward_context", "create_forward_context")):
        if _is_ours(sys.modules[module], name):
            found.append(name)
    return found


def _with_subclasses(holder: Any) -> list[Any]:
    """A module by itself; a class with what it inherits from and all that inherit from it."""
    if not isinstance(holder, type):
        return [] if holder is None else [holder]
    below = [cls for sub in holder.__subclasses__() for cls in _with_subclasses(sub)]
    return [*holder.__mro__, *below]


def _is_ours(holder: Any, name: str) -> bool:
    code = getattr(vars(holder).get(name), "__code__", None)
    return "vime_otel" in str(getattr(code, "co_filename", ""))


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
