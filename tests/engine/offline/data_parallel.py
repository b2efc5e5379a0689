"""Two data-parallel engines of one group: what each records in windows that begin idle, busy, and at a wave's end.

Usage: data_parallel.py MODEL DIRECTORY RESULT
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from common import PROMPTS, arm, report

PATIENCE_S = 90
ONE = 101
SHORT = 12
TWO_WAVES = 80
LONG = 200


class Group:
    """The engines behind one client, which sends every request to the rank that it is meant for."""

    def __init__(self, model: str, directory: Path) -> None:
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        self.directory = directory
        self.sent = 0
        self.llm = AsyncLLM.from_engine_args(
            AsyncEngineArgs(
                model=model,
                load_format="dummy",
                enforce_eager=True,
                max_model_len=512,
                max_num_seqs=8,
                gpu_memory_utilization=0.2,
                seed=0,
                enable_prefix_caching=False,
                data_parallel_size=2,
                disable_log_stats=True,
            )
        )

    async def stream(self, rank: int, tokens: int) -> list[int]:
        """When each token of a request to one rank came, in nanoseconds."""
        from vllm import SamplingParams

        self.sent += 1
        sampling = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
        came, prompt = [], PROMPTS[self.sent % len(PROMPTS)]
        async for _ in self.llm.generate(prompt, sampling, str(self.sent), data_parallel_rank=rank):
            came.append(time.perf_counter_ns())
        return came

    async def look(self) -> list[dict[str, Any]]:
        """How each engine's recorder stands."""
        found: list[dict[str, Any]] = await self.llm.engine_core.call_utility_all_async("vime_test_look")
        return found

    async def wait_until_idle(self) -> None:
        """The end of the wave."""
        await until(lambda looks: not any(look["running"] for look in looks), self, "the end of the wave")

    async def order(self, order: str) -> None:
        """Have the idle group wait for its next step with open windows."""
        await self.wait_until_idle()
        arm(self.directory, order)
        await until(lambda looks: all(look["armed"] for look in looks), self, "arming")

    async def end(self, name: str) -> str:
        """Wait for the merged recording; the answer is where a copy of it lies."""
        deadline = time.monotonic() + PATIENCE_S
        while (self.directory / "start").exists():
            if time.monotonic() > deadline:
                raise SystemExit(f"{name} did not end: {await self.look()}")
            await asyncio.sleep(0.1)
        # Its spans are sent after that; until then an engine takes no order.
        await until(lambda looks: all(look["phase"] == "done" for look in looks), self, "the end of the export")
        copy = self.directory.with_name(f"{self.directory.name}-{name}")
        shutil.copytree(self.directory, copy)
        return str(copy)


async def until(condition: Any, group: Group, what: str) -> None:
    """Wait for the engines."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition(looks := await group.look()):
        if time.monotonic() > deadline:
            raise SystemExit(f"{what} did not come: {looks}")
        await asyncio.sleep(0.05)


async def main() -> None:
    group = Group(sys.argv[1], Path(sys.argv[2]))
    for rank in (0, 1):
        await group.stream(rank, SHORT)
    windows: dict[str, Any] = {}

    # One rank works, the other keeps it company.
    await group.order(str(ONE))
    alone = await group.stream(1, ONE)
    windows["one_rank"] = {"run": await group.end("one_rank"), "outputs_ns": alone}

    # The window is longer than a wave: it goes on in the next one.
    await group.order(str(TWO_WAVES))
    before = await group.look()
    first = await group.stream(0, SHORT)
    await group.wait_until_idle()
    between = await group.look()
    second = await group.stream(1, TWO_WAVES)
    windows["two_waves"] = {
        "run": await group.end("two_waves"),
        "outputs_ns": [first, second],
        "waves": [[look["wave"] for look in looks] for looks in (before, between)],
    }

    windows["running"] = await arm_while_running(group)
    report(windows)
    group.llm.shutdown()


async def arm_while_running(group: Group) -> dict[str, Any]:
    """Both ranks work all the time, in requests that end at different steps."""
    over = asyncio.Event()
    outputs_ns: list[list[int]] = [[], []]

    async def keep_busy(rank: int, tokens: int) -> None:
        while not over.is_set():
            outputs_ns[rank] += await group.stream(rank, tokens)

    work = [asyncio.create_task(keep_busy(rank, LONG + rank)) for rank in (0, 1)]
    await until(lambda looks: all(look["running"] for look in looks), group, "work")
    before = {look["recording"] for look in await group.look()}

    def ended(look: dict[str, Any]) -> bool:
        return look["recording"] not in before and look["phase"] in ("exporting", "done", "failed")

    arm(group.directory, "20")
    await until(lambda looks: all(ended(look) for look in looks), group, "the window's end")
    over.set()
    await asyncio.gather(*work)
    return {"run": await group.end("running"), "outputs_ns": outputs_ns}


if __name__ == "__main__":
    asyncio.run(main())
