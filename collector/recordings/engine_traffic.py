"""Completions for the engines of one recording, so that idle ones have steps to make."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from vime_otel.data.summary import counted
from vime_otel.data.urls import shown

from ..http_client import new_session
from ..traffic import send_completions
from .messages import RecordingRequest

_DEFAULT_PROMPT = "Once upon a time there was an engine that"


class EngineTraffic:
    """Starts once, ends with `stop`; `failures` says in sentences what went wrong so far."""

    def __init__(self, request: RecordingRequest) -> None:
        self.failures: list[str] = []
        self._request = request
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def began(self) -> bool:
        """Whether any were sent."""
        return bool(self._tasks)

    def start(self, urls: Iterable[str]) -> None:
        """Send each engine its completions, where any are asked for and none were sent before."""
        if self._request.requests and not self._tasks:
            self._tasks = [asyncio.ensure_future(self._send(url)) for url in urls]

    async def stop(self) -> None:
        """Give up what is still running."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _send(self, url: str) -> None:
        asked = self._request.requests
        if not url:
            self.failures.append("an engine's port is not known, so it got no requests; name it with --worker URL")
            return
        prompt = self._request.prompt or _DEFAULT_PROMPT
        async with new_session() as session:
            result = await send_completions(
                session, url, asked, prompt, self._request.max_tokens, self._request.timeout_seconds
            )
        if result.failed:
            sent = f"{result.failed} of {counted(asked, 'request')} to {shown(url)}"
            self.failures.append(f"{sent} failed: {'; '.join(result.reasons)}")
