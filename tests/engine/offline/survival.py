"""What a rollout does to an engine between its steps, done in the middle of a window.

Each event is played twice on one in-process engine, without a recording and with one. Beside
DIRECTORY lie `adapter`, a LoRA adapter, and `updated`, the model with other weights.

Usage: survival.py MODEL DIRECTORY RESULT
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common import PROMPTS, arm, left_behind, make_llm, report, wait_for_end, wait_until
from vllm import SamplingParams
from vllm.lora.request import LoRARequest

RECORDED = 12
EVENT_AFTER = 5
TOKENS = 16


class Rollout:
    """Requests on an engine, stepped one by one."""

    def __init__(self, llm: Any, weights: str, updated_weights: str, adapter: LoRARequest):
        self.llm = llm
        self.engine = llm.llm_engine
        self.weights = weights
        self.updated_weights = updated_weights
        self.adapter = adapter
        self.tokens: dict[str, list[list[float]]] = {}

    def add(self, name: str, prompt: str, lora: LoRARequest | None = None) -> None:
        sampling = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True, logprobs=1)
        self.engine.add_request(name, prompt, sampling, lora_request=lora)

    def step(self) -> None:
        for output in self.engine.step():
            answer = output.outputs[0]
            self.tokens[output.request_id] = [
                [token, entry[token].logprob] for token, entry in zip(answer.token_ids, answer.logprobs, strict=True)
            ]

    def play(self, event: Callable[["Rollout"], None]) -> dict[str, list[list[float]]]:
        """Every request's tokens with their log probabilities; `event` comes after EVENT_AFTER steps."""
        self.tokens = {}
        self.llm.reset_prefix_cache()
        for number, prompt in enumerate(PROMPTS[:4]):
            self.add(f"request {number}", prompt)
        for _ in range(EVENT_AFTER):
            self.step()
        event(self)
        while self.engine.has_unfinished_requests():
            self.step()
        return self.tokens

    def reload(self, weights: str) -> None:
        self.llm.collective_rpc("reload_weights", kwargs={"weights_path": weights})

    def take_back(self) -> None:
        """Undo what events leave behind."""
        self.reload(self.weights)
        self.engine.remove_lora(self.adapter.lora_int_id)

    # -- events ------------------------------------------------------------------------------------

    def sleep_and_wake(self) -> None:
        self.llm.sleep(level=1, mode="keep")
        self.step()  # schedules nothing
        self.llm.wake_up()

    def weight_update(self) -> None:
        self.reload(self.updated_weights)

    def add_lora(self) -> None:
        self.engine.add_lora(self.adapter)
        self.add("with the adapter", PROMPTS[0], self.adapter)

    def reset_prefix_cache(self) -> None:
        self.llm.reset_prefix_cache(reset_running_requests=True)

    def abort(self) -> None:
        self.engine.abort_request(["request 1"])

    def next_rollout(self) -> None:
        self.llm.sleep(level=2, mode="keep")
        self.weight_update()
        self.llm.wake_up()
        self.llm.reset_prefix_cache()
        self.add("of the next rollout", PROMPTS[4])


EVENTS = (
    Rollout.sleep_and_wake,
    Rollout.weight_update,
    Rollout.add_lora,
    Rollout.reset_prefix_cache,
    Rollout.abort,
    Rollout.next_rollout,
)


def main() -> None:
    model, directory = sys.argv[1], Path(sys.argv[2])
    llm = make_llm(model, enable_lora=True, max_lora_rank=8, max_loras=1)
    adapter = LoRARequest("adapter", 1, str(directory.with_name("adapter")))
    rollout = Rollout(llm, model, str(directory.with_name("updated")), adapter)
    core = llm.llm_engine.engine_core.engine_core
    results: dict[str, Any] = {"no_event": rollout.play(lambda _: None)}
    for event in EVENTS:
        plain = rollout.play(event)
        rollout.take_back()
        own = sorted(vars(core))
        arm(directory, RECORDED)
        wait_until(lambda: core._vime_otel.status.phase == "armed", "arming")
        recorded = rollout.play(event)
        header = wait_for_end(directory)
        rollout.take_back()
        results[event.__name__] = {
            "plain": plain,
            "recorded": recorded,
            "header": header,
            "rows": json.loads((directory / "steps.json").read_text())["rows"],
            "left_behind": llm.collective_rpc(left_behind),
            "engine_clean": sorted(vars(core)) == own and "schedule" not in vars(core.scheduler),
        }
    report(results)


if __name__ == "__main__":
    main()
