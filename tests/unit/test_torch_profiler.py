"""One outcome for each worker, all asked at once. The workers are stand-ins."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from standins import Handler, Routes, answer, closed_port_url, hang_up, never, serving

from collector.http_client import new_session
from collector.torch_profiles.torch_profiler import Outcome, ProfileOptions, judge, start_all, stop_all

FULL = ProfileOptions("mine", 1, 3, {"with_stack": False})


def ask(
    workers: list[Routes], action: Callable[[aiohttp.ClientSession, list[str]], Awaitable[list[Outcome]]]
) -> list[Outcome]:
    """The outcomes of stand-ins with these routes, and of a port where nothing listens."""

    async def run() -> list[Outcome]:
        async with AsyncExitStack() as stack:
            urls = [await stack.enter_async_context(serving(each)) for each in workers]
            session = await stack.enter_async_context(new_session())
            return await action(session, [*urls, closed_port_url()])

    return asyncio.run(run())


def start(handlers: list[Handler], timeout_s: float = 5.0, options: ProfileOptions = FULL) -> list[Outcome]:
    routes: list[Routes] = [{"POST /start_profile": handler} for handler in handlers]
    return ask(routes, lambda session, urls: start_all(session, urls, lambda number: options, timeout_s))


def stop(handlers: list[Handler], timeout_s: float = 5.0) -> list[Outcome]:
    routes: list[Routes] = [{"POST /stop_profile": handler} for handler in handlers]
    return ask(routes, lambda session, urls: stop_all(session, urls, timeout_s))


class Worker:
    """A stand-in that knows whether its profiler runs, and what it was sent."""

    def __init__(self, version: str, running: bool = False) -> None:
        self.version = version
        self.running = running
        self.calls: list[tuple[str, Any]] = []

    @property
    def routes(self) -> Routes:
        return {
            "GET /version": answer(body={"version": self.version}),
            "POST /start_profile": self._start,
            "POST /stop_profile": self._stop,
        }

    async def _start(self, request: web.Request) -> web.StreamResponse:
        self.calls.append(("start", await request.json() if request.can_read_body else None))
        if self.running and self.version >= "0.32":
            return web.Response(status=409)
        self.running = True
        return web.Response()

    async def _stop(self, request: web.Request) -> web.StreamResponse:
        self.calls.append(("stop", None))
        self.running = False
        return web.Response()

    def started(self, options: ProfileOptions = FULL, restart: bool = False) -> Outcome:
        return ask(
            [self.routes], lambda session, urls: start_all(session, urls, lambda n: options, 5, 5 if restart else None)
        )[0]


@pytest.mark.parametrize(("act", "done"), [(start, "started"), (stop, "stopped")])
def test_every_worker_has_its_own_outcome(act: Callable[[list[Handler], float], list[Outcome]], done: str) -> None:
    handlers = [answer(), answer(409), answer(404), answer(405), answer(500, text="CUDA\nerror"), hang_up, never]
    found = act(handlers, 0.5)
    expected = [done, "busy", "no route", "no route", "refused", "unreachable", "timed out", "unreachable"]
    assert [outcome.state for outcome in found] == expected
    assert [outcome.ok for outcome in found] == [True] + [False] * 7
    assert all(outcome.detail and "\n" not in outcome.detail for outcome in found[1:])


def test_details_name_the_way_out() -> None:
    busy = judge("http://h:1", "start", 409, "").detail
    assert "vime-otel profile stop --worker http://h:1" in busy
    assert "--restart" in busy
    assert "--profiler-config" in judge("u", "start", 404, "").detail
    assert "HTTP 500: CUDA error" in judge("u", "stop", 500, "CUDA\nerror").detail
    assert len(judge("u", "start", 500, "x" * 5000).detail) < 400


def test_all_are_asked_at_the_same_moment() -> None:
    everyone = asyncio.Event()
    arrived = 0

    async def waits_for_the_others(request: web.Request) -> web.StreamResponse:
        nonlocal arrived
        arrived += 1
        if arrived == 40:
            everyone.set()
        await everyone.wait()
        return web.Response()

    found = start([waits_for_the_others] * 40)
    assert sum(outcome.ok for outcome in found) == 40


def test_a_slow_worker_holds_up_nobody_longer_than_its_timeout() -> None:
    began = time.monotonic()
    found = start([never, answer()], 0.3)
    assert time.monotonic() - began < 3
    assert [outcome.state for outcome in found[:2]] == ["timed out", "started"]


@pytest.mark.parametrize(
    ("version", "read"),
    [
        ("0.28.0", []),
        ("0.31.1", []),
        ("0.32.0", ["profile_prefix", "delay_iterations", "max_iterations"]),
        ("0.33.0rc1+cpu", ["profile_prefix", "delay_iterations", "max_iterations", "profiler_kwargs"]),
        ("1.0.0", ["profile_prefix", "delay_iterations", "max_iterations", "profiler_kwargs"]),
    ],
)
def test_a_version_gets_the_options_that_it_reads_and_the_others_are_told(version: str, read: list[str]) -> None:
    worker = Worker(version)
    outcome = worker.started()
    ((_, body),) = worker.calls
    assert list(body or {}) == read
    assert outcome.version == version
    assert outcome.bounded == ("max_iterations" in read)
    unread = [name for name in FULL.given() if name not in read]
    assert all(name in " ".join(outcome.notes) for name in unread)


def test_a_running_profile_is_busy_and_restart_alone_ends_it() -> None:
    worker = Worker("0.32.0", running=True)
    assert worker.started().state == "busy"
    assert worker.started(restart=True).state == "started"
    assert [call for call, _ in worker.calls] == ["start", "start", "stop", "start"]


def test_a_version_that_cannot_tell_says_so_and_restart_stops_it_first() -> None:
    worker = Worker("0.28.0", running=True)
    assert "cannot tell" in " ".join(worker.started().notes)
    outcome = worker.started(restart=True)
    assert "cannot tell" not in " ".join(outcome.notes)
    assert [call for call, _ in worker.calls] == ["start", "stop", "start"]


def test_a_start_without_a_bound_is_known_as_such() -> None:
    assert not Worker("0.33.0").started(ProfileOptions(max_iterations=0)).bounded
