"""One torch profile of a fleet: start everywhere, give or await work, stop, and wait for the files.

It is judged by the files: a worker whose profiler did not start answers 200 all the same.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import aiohttp

from vime_otel.data.summary import counted
from vime_otel.data.urls import shown

from ..router import Worker
from ..traffic import TrafficResult, send_completions
from .torch_profiler import Outcome, ProfileOptions, start_all, stop_all
from .trace_files import Stamp, find_traces, new_since, wait_until_still
from .trace_owners import FoundTrace, Owners, session_prefix
from .uninterrupted import to_its_end


class Teller(Protocol):
    """Tells people how it goes. Never raises."""

    def doing(self, text: str) -> None:
        """What is being done now; the next call may take its place."""

    def note(self, text: str) -> None:
        """What should be read later, too."""


class Silent:
    """Tells nobody."""

    def doing(self, text: str) -> None: ...
    def note(self, text: str) -> None: ...


PROMPT = "profile"
_LOOK_S = 0.5
_TELL_S = 10.0
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
        return session_prefix(self.session, number)


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
    session: aiohttp.ClientSession, workers: Sequence[Worker], plan: ProfilePlan, tell: Teller | None = None
) -> ProfileResult:
    """Carry a plan out. Whatever ends it, every profile that it may have started is stopped. Raises VimeOtelError."""
    return await _Session(session, workers, plan, tell or Silent()).run()


def starting(count: int, restart: bool) -> str:
    """What is being done while workers are started."""
    first = "; what runs there is ended first: writing its traces may take minutes" if restart else ""
    return f"starting on {counted(count, 'worker')}{first}"


async def stop_running(
    session: aiohttp.ClientSession, urls: Sequence[str], timeout_s: float, tell: Teller
) -> list[Outcome]:
    """Stop profiles, telling of each, and how to end by hand what could not be stopped. No interruption ends it."""
    if not urls:
        return []
    tell.doing(f"stopping {len(urls)}; writing the traces may take minutes")
    outcomes = await to_its_end(_stop_telling(session, urls, timeout_s, tell))
    for outcome in outcomes:
        if not outcome.ok:
            tell.note(
                f"{outcome.url} may still be profiling ({outcome.state}: {outcome.detail}); end it with: vime-otel"
                f" profile stop --worker {outcome.url}"
            )
    return outcomes


async def _stop_telling(
    session: aiohttp.ClientSession, urls: Sequence[str], timeout_s: float, tell: Teller
) -> list[Outcome]:
    """Stop profiles, telling of each that answers and, now and then, of those that are waited for."""
    began = time.monotonic()
    waiting = [shown(url) for url in urls]

    def count(outcome: Outcome) -> None:
        waiting.remove(outcome.url)
        tell.doing(f"{len(urls) - len(waiting)} of {len(urls)} answered the stop; {outcome.url} {outcome.state}")

    task = asyncio.ensure_future(stop_all(session, urls, timeout_s, count))
    while not (await asyncio.wait({task}, timeout=_TELL_S))[0]:
        tell.doing(
            f"waiting for {len(waiting)} of {len(urls)} to stop, {', '.join(waiting[:2])} among them, for"
            f" {time.monotonic() - began:.0f} s of at most {timeout_s:g}"
        )
    return task.result()


class _Session:
    """One profile under way."""

    def __init__(
        self, session: aiohttp.ClientSession, workers: Sequence[Worker], plan: ProfilePlan, tell: Teller
    ) -> None:
        self._http = session
        self._plan = plan
        self._tell = tell
        self._before: Mapping[Path, Stamp] = {}
        self._running: set[str] = set()
        self._result = ProfileResult(list(workers))

    async def run(self) -> ProfileResult:
        plan, result = self._plan, self._result
        self._before = await asyncio.to_thread(find_traces, plan.trace_dir)
        try:
            await self._start()
            if self._running:
                await self._work([worker for worker in result.workers if worker.url in self._running])
        finally:
            left = [worker.url for worker in result.workers if worker.url in self._running]
            result.stopped = await stop_running(self._http, left, plan.stop_timeout_s, self._tell)
        try:
            await self._find_files(left)
        except asyncio.CancelledError:
            self._tell.note(f"the traces were not gathered; they lie in {plan.trace_dir}")
            raise
        return result

    async def _start(self) -> None:
        plan, result = self._plan, self._result
        urls = [worker.url for worker in result.workers]
        restart_s = plan.stop_timeout_s if plan.restart else None
        self._tell.doing(starting(len(urls), plan.restart))
        result.started = await start_all(self._http, urls, plan.options, plan.start_timeout_s, restart_s, self._running)
        if plan.restart and any(not _surely_prefixed(outcome) for outcome in result.started):
            # What was running before has written its trace by now, and no prefix would tell it from ours.
            self._before = await asyncio.to_thread(find_traces, plan.trace_dir)
        started = sum(outcome.ok for outcome in result.started)
        self._tell.doing(f"started on {started} of {len(urls)}")

    async def _work(self, running: Sequence[Worker]) -> None:
        plan = self._plan
        if plan.requests:
            await self._send(running)
            return
        self._tell.doing(f"waiting for work, at most {plan.max_seconds:g} s")
        owners = self._owners()
        deadline = time.monotonic() + plan.max_seconds
        while time.monotonic() < deadline:
            await asyncio.sleep(_LOOK_S)
            if owners.all_wrote(await self._new_files()):
                return

    async def _send(self, running: Sequence[Worker]) -> None:
        plan = self._plan
        tokens = plan.iterations + (plan.delay_iterations or 0) + _FLUSHING_STEPS
        self._tell.doing(f"sending {counted(plan.requests, 'completion')} of {tokens} tokens to each")
        sending = {
            worker.url: asyncio.ensure_future(
                send_completions(self._http, worker.url, plan.requests, plan.prompt, tokens)
            )
            for worker in running
        }
        try:
            await asyncio.wait(sending.values(), timeout=plan.max_seconds)
        finally:
            for task in sending.values():
                task.cancel()
        late = TrafficResult(plan.requests, plan.requests, (f"not answered within {plan.max_seconds:g} s",))
        await asyncio.wait(sending.values())
        self._result.traffic = {url: late if task.cancelled() else task.result() for url, task in sending.items()}

    async def _find_files(self, running: Sequence[str]) -> None:
        plan, result = self._plan, self._result
        if running:
            self._tell.doing(f"waiting for the files in {plan.trace_dir}")
            # vLLM answers a stop when the files are written; a shared folder may show them later.
            least = sum(outcome.ok for outcome in result.stopped)
            paths = await wait_until_still(plan.trace_dir, self._before, least, plan.files_timeout_s)
            result.traces = await asyncio.to_thread(self._owners().assign, paths)
        for worker, outcome in zip(result.workers, result.started, strict=True):
            if why := why_missing(worker, outcome, plan, result):
                result.missing[shown(worker.url)] = why

    async def _new_files(self) -> list[Path]:
        return new_since(self._before, await asyncio.to_thread(find_traces, self._plan.trace_dir))

    def _owners(self) -> Owners:
        """Who may have written traces: every worker by its prefix, and some without."""
        ours = [
            (number, worker)
            for number, worker in enumerate(self._result.workers)
            if self._result.started[number].may_run
        ]
        return Owners(
            {self._plan.prefix(number): worker for number, worker in ours},
            [worker for number, worker in ours if not _surely_prefixed(self._result.started[number])],
        )


def _surely_prefixed(outcome: Outcome) -> bool:
    return "profile_prefix" not in ProfileOptions("x").unread(outcome.version)


def why_missing(worker: Worker, outcome: Outcome, plan: ProfilePlan, result: ProfileResult) -> str:
    """Why there is no whole trace of a worker; empty where there is one."""
    own = [trace for trace in result.traces if trace.worker == worker]
    if any(trace.content.whole for trace in own):
        return ""
    if not outcome.ok:
        return f"{outcome.state}: {outcome.detail}"
    sent = result.traffic.get(worker.url)
    no_step = f"no step was made: {'; '.join(sent.reasons)}" if sent is not None and sent.failed == sent.sent else ""
    if own:
        return "; ".join(filter(None, (no_step, *(f"{trace.path.name}: {trace.content.why}" for trace in own))))
    if any(trace.worker is None for trace in result.traces):
        return (
            "there are traces that can't be told apart by worker: profile these one at a time, with --worker URL (vLLM"
            " since 0.32 marks its files)"
        )
    stopped = next((each for each in result.stopped if each.url == outcome.url), None)
    if stopped is not None and not stopped.ok:
        return f"{stopped.state} at the stop: {stopped.detail}"
    if no_step:
        return no_step
    idle = "" if sent is not None else "no step was made meanwhile (--requests N sends work), or "
    return (
        f"no file came: {idle}its torch_profiler_dir is another folder or host than {plan.trace_dir}, or its profiler"
        " did not start (`Failed to start profiler` in the server's log)"
    )
