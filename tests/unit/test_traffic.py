"""Completions sent to one worker. The workers are stand-ins."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp import web
from standins import Handler, answer, closed_port_url, hang_up, never, serving

from collector.http_client import new_session
from collector.traffic import TrafficResult, send_completions

MODELS = {"data": [{"id": "tiny"}]}


def send(models: Handler, completions: Handler, count: int = 3, timeout_s: float = 5.0) -> TrafficResult:
    async def run() -> TrafficResult:
        routes = {"GET /v1/models": models, "POST /v1/completions": completions}
        async with serving(routes) as url, new_session() as session:
            return await send_completions(session, url, count, "tell me a story", 64, timeout_s)

    return asyncio.run(run())


def test_all_at_once_with_prompts_that_differ_in_their_first_word() -> None:
    bodies: list[dict[str, Any]] = []
    everyone = asyncio.Event()

    async def complete(request: web.Request) -> web.StreamResponse:
        bodies.append(await request.json())
        if len(bodies) == 5:
            everyone.set()
        await everyone.wait()
        return web.json_response({"choices": []})

    assert send(answer(body=MODELS), complete, 5) == TrafficResult(5, 0)
    assert len({body["prompt"].split()[0] for body in bodies}) == 5
    assert {(body["model"], body["max_tokens"], body["temperature"]) for body in bodies} == {("tiny", 64, 0)}


@pytest.mark.parametrize(
    ("completions", "reason"),
    [
        (answer(500, text="out of memory"), "HTTP 500 out of memory"),
        (hang_up, "closed the connection"),
        (never, "timed out"),
    ],
)
def test_failed_completions_are_counted_and_explained_once(completions: Handler, reason: str) -> None:
    result = send(answer(body=MODELS), completions, 3, 0.5)
    assert (result.sent, result.failed, len(result.reasons)) == (3, 3, 1)
    assert reason in result.reasons[0]


@pytest.mark.parametrize(
    "models", [answer(500), answer(body={"data": []}), answer(body=[]), answer(text="no"), hang_up]
)
def test_a_worker_that_names_no_model(models: Handler) -> None:
    result = send(models, answer())
    assert (result.sent, result.failed) == (0, 3)
    assert "/v1/models" in result.reasons[0]


def test_an_unreachable_worker() -> None:
    async def run() -> TrafficResult:
        async with new_session() as session:
            return await send_completions(session, closed_port_url(), 2, "x", 1)

    assert asyncio.run(run()).failed == 2
