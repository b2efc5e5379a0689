"""One outcome for each worker, all asked at once. The workers are stand-ins."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack

import pytest
from aiohttp import web
from standins import Handler, answer, closed_port_url, hang_up, never, serving

from collector.http_client import new_session
from collector.torch_profiler import Action, Outcome, judge, profile_all


def outcomes(action: Action, handlers: list[Handler], timeout_s: float = 5.0) -> list[Outcome]:
    async def run() -> list[Outcome]:
        async with AsyncExitStack() as stack:
            routes = [{f"POST /{action}_profile": handler} for handler in handlers]
            urls = [await stack.enter_async_context(serving(each)) for each in routes]
            session = await stack.enter_async_context(new_session())
            return await profile_all(session, action, [*urls, closed_port_url()], timeout_s)

    return asyncio.run(run())


@pytest.mark.parametrize(("action", "done"), [("start", "started"), ("stop", "stopped")])
def test_every_worker_has_its_own_outcome(action: Action, done: str) -> None:
    handlers = [answer(), answer(409), answer(404), answer(405), answer(500, text="CUDA\nerror"), hang_up, never]
    found = outcomes(action, handlers, timeout_s=0.5)
    expected = [done, "busy", "no route", "no route", "refused", "unreachable", "timed out", "unreachable"]
    assert [outcome.state for outcome in found] == expected
    assert [outcome.ok for outcome in found] == [True] + [False] * 7
    assert all(outcome.detail and "\n" not in outcome.detail for outcome in found[1:])


def test_details_name_the_way_out() -> None:
    assert "`vime-otel profile stop --worker http://h:1`" in judge("http://h:1", "start", 409, "").detail
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

    found = outcomes("start", [waits_for_the_others] * 40)
    assert sum(outcome.ok for outcome in found) == 40


def test_a_slow_worker_holds_up_nobody_longer_than_its_timeout() -> None:
    began = time.monotonic()
    found = outcomes("start", [never, answer()], timeout_s=0.3)
    assert time.monotonic() - began < 3
    assert [outcome.state for outcome in found[:2]] == ["timed out", "started"]
