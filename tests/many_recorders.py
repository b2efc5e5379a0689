"""Very many simulated recorders on one event loop, over real sockets: each polls, obeys, sends one step."""

from __future__ import annotations

import asyncio
import copy
import time
from typing import Any

import aiohttp
from simulated_recorder import POLL, closing_request, make_step, step_requests

IDLE_WAIT_SECONDS = 25.0
BUSY_WAIT_SECONDS = 0.25


class ManyRecorders:
    """So many engines at one collector; `armed_at` is when each got its command, on the monotonic clock."""

    def __init__(self, url: str, count: int) -> None:
        self.armed_at: dict[str, float] = {}
        self.phases: dict[str, str] = {}
        self._url = url
        self._engines = [f"{number:016x}" for number in range(1, count + 1)]

    async def run(self, ended: asyncio.Event) -> None:
        """Until `ended`."""
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=120)) as session:
            tasks = [asyncio.ensure_future(self._live(session, engine)) for engine in self._engines]
            await ended.wait()
            for task in tasks:
                task.cancel()
            for result in await asyncio.gather(*tasks, return_exceptions=True):
                assert isinstance(result, asyncio.CancelledError), result

    async def _live(self, session: aiohttp.ClientSession, engine: str) -> None:
        body = copy.deepcopy(POLL)
        body["recorder"] |= {"engine": engine, "label": f"{engine}/0"}
        self.phases[engine] = "idle"
        while True:
            busy = self.phases[engine] in ("armed", "recording", "exporting")
            body["wait_seconds"] = BUSY_WAIT_SECONDS if busy else IDLE_WAIT_SECONDS
            body["status"]["phase"] = self.phases[engine]
            async with session.post(f"{self._url}/control/v1/recorders/poll", json=body) as answer:
                answer.raise_for_status()
                command = (await answer.json())["command"]
            if command is not None and command["id"] != body["seen"]:
                body["seen"] = command["id"]
                if command["type"] == "arm":
                    self.armed_at[engine] = time.monotonic()
                    body["status"] |= {"recording": command["recording"], "steps_asked": command["steps"]}
                    self.phases[engine] = "recording"
            elif self.phases[engine] == "recording":
                await self._send(session, engine, body["status"])

    async def _send(self, session: aiohttp.ClientSession, engine: str, status: dict[str, Any]) -> None:
        recording = status["recording"]
        step = make_step(recording, engine, 0, 1)
        sent = [*step_requests(recording, step), ("/v1/logs", closing_request(recording, engine, [step]))]
        for path, content in sent:
            headers = {"Content-Type": "application/x-protobuf"}
            async with session.post(f"{self._url}{path}", data=content, headers=headers) as answer:
                assert (answer.status, await answer.read()) == (200, b"")
        status["steps_done"] = status["steps_asked"]
        self.phases[engine] = "done"
