"""One torch profile of a fleet: start everywhere, give or await work, stop, and wait for the files.

It is judged by the files: a worker whose profiler did not start answers 200 all the same.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from .addresses import shown
from .router import Worker
from .torch_profiler import Outcome, ProfileOptions, start_all, stop_all
from .trace_files import Stamp, find_traces, new_since, wait_until_still
from .trace_owners import FoundTrace, assign
from .traffic import TrafficResult, send_completions

Say = Callable[[str], None]

PROMPT = "profile"
_LOOK_S = 0.5
_FLUSHING_STEPS = 2
"""Steps beyond the profiled ones: the trace is written when one more step arrives."""


@dataclass(frozen=True)
class ProfilePlan:
    """What to do. Iterations are engine steps; `requests` completions go to each worker, 0 awaits others' work.

    `max_seconds` bounds the profile where vLLM does not, and the waiting for work.
    """

    session: str
    """16 hex digits: the id of a run of its own, and in the names of its files where the workers read a prefix."""
    trace_dir: Path
    iterations: int = 5
    delay_iterations: int | None = None
    profiler_kwargs: Mapping[str, Any] | None = None
    requests: int = 0
    prompt: str = PROMPT
    max_seconds: float = 60.0
    start_timeout_s: float = 60.0
    stop_timeout_s: float = 1800.0
    files_timeout_s: float = 30.0
    restart: bool = False

    def options(self, number: int) -> ProfileOptions:
        """What the n-th worker is told."""
        return ProfileOptions(self.prefix(number), self.delay_iterations, self.iterations, self.profiler_kwargs)

    def prefix(self, number: int) -> str:
        """What the names of its files begin with."""
        return f"vime-{self.session}-{number}"


@dataclass
class ProfileResult:
    """What came of it. `missing` says for each worker without a whole trace why, as far as it is known."""

    workers: list[Worker]
    started: list[Outcome] = field(default_factory=list)
    stopped: list[Outcome] = field(default_factory=list)
    traffic: dict[str, TrafficResult] = field(default_factory=dict)
    traces: list[FoundTrace] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether every worker was started and left a whole trace."""
        return bool(self.started) and not self.missing


async def run_profile(
    session: aiohttp.ClientSession, workers: Sequence[Worker], plan: ProfilePlan, say: Say = lambda line: None
) -> ProfileResult:
    """Carry a plan out. Whatever ends it, every profile that it started is stopped. Raises VimeOtelError."""
    before = await asyncio.to_thread(find_traces, plan.trace_dir)
    result = ProfileResult(list(workers))
    urls = [worker.url for worker in workers]
    known: list[Outcome] = []
    try:
        result.started = await start_all(
            session,
            urls,
            plan.options,
            plan.start_timeout_s,
            plan.stop_timeout_s if plan.restart else None,
            known.append,
        )
        if plan.restart and any(_reads_no_prefix(plan, outcome) for outcome in result.started):
            # What was running before has written its trace by now, and no prefix would tell it from ours.
            before = await asyncio.to_thread(find_traces, plan.trace_dir)
        running = [worker for worker, outcome in zip(workers, result.started, strict=True) if outcome.ok]
        say(f"started on {len(running)} of {len(workers)}")
        if running:
            await _work(session, running, plan, before, result, say)
    finally:
        await asyncio.shield(_stop(session, workers, plan, known, result, say))
    await _collect(workers, plan, before, result, say)
    return result


async def _work(
    session: aiohttp.ClientSession,
    running: Sequence[Worker],
    plan: ProfilePlan,
    before: Mapping[Path, Stamp],
    result: ProfileResult,
    say: Say,
) -> None:
    if plan.requests:
        tokens = plan.iterations + (plan.delay_iterations or 0) + _FLUSHING_STEPS
        say(f"sending {plan.requests} completions of {tokens} tokens to each")
        sending = (send_completions(session, each.url, plan.requests, plan.prompt, tokens) for each in running)
        for worker, sent in zip(running, await asyncio.gather(*sending), strict=True):
            result.traffic[worker.url] = sent
        return
    say(f"waiting for work, at most {plan.max_seconds:g} s")
    deadline = time.monotonic() + plan.max_seconds
    while time.monotonic() < deadline:
        await asyncio.sleep(_LOOK_S)
        new = new_since(before, await asyncio.to_thread(find_traces, plan.trace_dir))
        if len(new) >= len(running):
            return


async def _stop(
    session: aiohttp.ClientSession,
    workers: Sequence[Worker],
    plan: ProfilePlan,
    known: Sequence[Outcome],
    result: ProfileResult,
    say: Say,
) -> None:
    """Stop what was started, and what may have been; not what was busy with another profile, or refused."""
    spared = {outcome.url for outcome in known if not outcome.ok and outcome.state != "timed out"}
    urls = [worker.url for worker in workers if shown(worker.url) not in spared]
    done = 0

    def count(outcome: Outcome) -> None:
        nonlocal done
        done += 1
        say(f"stopped {done} of {len(urls)}: {outcome.url} {outcome.state}")

    if urls:
        say(f"stopping {len(urls)}; writing the traces may take minutes")
        result.stopped = await stop_all(session, urls, plan.stop_timeout_s, count)


async def _collect(
    workers: Sequence[Worker],
    plan: ProfilePlan,
    before: Mapping[Path, Stamp],
    result: ProfileResult,
    say: Say,
) -> None:
    started = [
        (number, worker)
        for number, (worker, outcome) in enumerate(zip(workers, result.started, strict=True))
        if outcome.ok
    ]
    if started:
        say(f"waiting for the files in {plan.trace_dir}")
        # vLLM answers a stop when the files are written; a shared folder may show them later.
        least = sum(outcome.ok for outcome in result.stopped)
        paths = await wait_until_still(plan.trace_dir, before, least, plan.files_timeout_s)
        unread = {number for number, worker in started if _reads_no_prefix(plan, result.started[number])}
        prefixes = {plan.prefix(number): worker for number, worker in started if number not in unread}
        others = [worker for number, worker in started if number in unread]
        result.traces = await asyncio.to_thread(assign, paths, prefixes, others)
    for worker, outcome in zip(workers, result.started, strict=True):
        why = _why_missing(worker, outcome, plan, result)
        if why:
            result.missing[shown(worker.url)] = why


def _reads_no_prefix(plan: ProfilePlan, outcome: Outcome) -> bool:
    return "profile_prefix" in plan.options(0).unread(outcome.version)


def _why_missing(worker: Worker, outcome: Outcome, plan: ProfilePlan, result: ProfileResult) -> str:
    """Why there is no whole trace of a worker; empty where there is one."""
    if not outcome.ok:
        return f"{outcome.state}: {outcome.detail}"
    own = [trace for trace in result.traces if trace.worker == worker]
    if any(trace.content.whole for trace in own):
        return ""
    if own:
        return "; ".join(f"{trace.path.name}: {trace.content.why}" for trace in own)
    if any(trace.worker is None for trace in result.traces):
        return "there are traces that can't be told apart by worker: give each engine a torch_profiler_dir of its own"
    stopped = next((each for each in result.stopped if each.url == outcome.url), None)
    if stopped is not None and not stopped.ok:
        return f"{stopped.state} at the stop: {stopped.detail}"
    sent = result.traffic.get(worker.url)
    if sent is not None and sent.failed == sent.sent:
        return f"no step was made: {'; '.join(sent.reasons)}"
    idle = "" if sent is not None else "no step was made meanwhile (--requests N sends work), or "
    return (
        f"no file came: {idle}its torch_profiler_dir is another folder or host than {plan.trace_dir}, or its profiler"
        " did not start (`Failed to start profiler` in the server's log)"
    )
