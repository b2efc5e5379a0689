"""Work for idle engines: a few completions to one worker at its own URL."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import aiohttp

from vime_otel.data.urls import shown

from .http_client import why

_TIMEOUT_S = 300.0
_BODY_SHOWN = 200


@dataclass(frozen=True)
class TrafficResult:
    """How many completions were sent, how many of them failed, and the distinct reasons."""

    sent: int
    failed: int
    reasons: tuple[str, ...] = ()


class _Refused(Exception):
    """A worker's answer that was no completion."""


async def send_completions(
    session: aiohttp.ClientSession,
    worker_url: str,
    count: int,
    prompt: str,
    max_tokens: int,
    timeout_s: float = _TIMEOUT_S,
) -> TrafficResult:
    """Send `count` completions of `max_tokens` tokens at once, at temperature 0, and await them.

    Prompts differ in their first word, so that no request finds another's prefix in the cache. HTTP
    failures are counted, never raised; `timeout_s` bounds each request.
    """
    timeout = aiohttp.ClientTimeout(total=timeout_s)
    try:
        model = await served_model(session, worker_url, timeout)
    except (
        aiohttp.ClientError,
        _Refused,
        asyncio.TimeoutError,
        OSError,
        ValueError,
        LookupError,
        TypeError,
    ) as error:
        return TrafficResult(0, count, (f"{shown(worker_url)}/v1/models: {why(error)}",))

    async def complete(number: int) -> str | None:
        body = {
            "model": model,
            "prompt": f"{number} {prompt}",
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
        }
        try:
            async with session.post(f"{worker_url}/v1/completions", json=body, timeout=timeout) as response:
                await _require_200(response)
                await response.read()
        except (aiohttp.ClientError, _Refused, asyncio.TimeoutError, OSError) as error:
            return f"{shown(worker_url)}/v1/completions: {why(error)}"
        return None

    answers = await asyncio.gather(*(complete(number) for number in range(1, count + 1)))
    failures = [reason for reason in answers if reason is not None]
    return TrafficResult(count, len(failures), tuple(dict.fromkeys(failures)))


async def served_model(session: aiohttp.ClientSession, worker_url: str, timeout: aiohttp.ClientTimeout) -> str:
    """The name of the first model that the worker serves; raises whatever an answer without one leads to."""
    async with session.get(f"{worker_url}/v1/models", timeout=timeout) as response:
        await _require_200(response)
        return str((await response.json(content_type=None))["data"][0]["id"])


async def _require_200(response: aiohttp.ClientResponse) -> None:
    if response.status != 200:
        text = " ".join((await response.text(errors="replace")).split())
        raise _Refused(f"HTTP {response.status} {text[:_BODY_SHOWN]}".strip())
