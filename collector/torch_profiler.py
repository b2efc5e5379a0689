"""vLLM's torch profiler, started and stopped on every worker at once.

The router is never asked: it would pass `/start_profile` on to one worker of its choice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import aiohttp

from .addresses import shown
from .http_client import why

Action = Literal["start", "stop"]

_DONE = {"start": "started", "stop": "stopped"}
_BODY_SHOWN = 200


@dataclass(frozen=True)
class Outcome:
    """What became of one worker: `state` in one or two words, `detail` with the way out where it failed."""

    url: str
    state: str
    ok: bool
    detail: str = ""

    def as_dict(self) -> dict[str, Any]:
        """The outcome for JSON."""
        return asdict(self)


def judge(url: str, action: Action, status: int, body: str) -> Outcome:
    """What a worker's answer means."""
    url = shown(url)
    if status == 200:
        return Outcome(url, _DONE[action], True)
    if status == 409:
        return Outcome(
            url, "busy", False, f"a profile is running already; end it with `vime-otel profile stop --worker {url}`"
        )
    if status in (404, 405):
        return Outcome(
            url,
            "no route",
            False,
            "the server was started without --profiler-config"
            ' \'{"profiler":"torch","torch_profiler_dir":"/abs/dir","max_iterations":5}\''
            " (vime: --vllm-profiler-config); it must be restarted with it",
        )
    text = " ".join(body.split())[:_BODY_SHOWN]
    return Outcome(url, "refused", False, f"HTTP {status}{f': {text}' if text else ''}; see the server's log")


async def profile_all(
    session: aiohttp.ClientSession, action: Action, urls: Sequence[str], timeout_s: float
) -> list[Outcome]:
    """Ask every worker at the same moment, each within its own `timeout_s`; outcomes in the order of `urls`."""
    return list(await asyncio.gather(*(_ask(session, action, url, timeout_s) for url in urls)))


async def _ask(session: aiohttp.ClientSession, action: Action, url: str, timeout_s: float) -> Outcome:
    try:
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        async with session.post(f"{url}/{action}_profile", timeout=timeout) as response:
            return judge(url, action, response.status, await response.text(errors="replace"))
    except asyncio.TimeoutError:
        return Outcome(shown(url), "timed out", False, f"no answer within {timeout_s:g} s; {_AFTER_TIMEOUT[action]}")
    except (aiohttp.ClientError, OSError, ValueError) as error:
        return Outcome(shown(url), "unreachable", False, f"{why(error)}; is the engine up?")


_AFTER_TIMEOUT = {
    "start": "the engine may be busy or hung",
    "stop": "the worker may still be writing its trace; nothing was ended, ask again with a longer --timeout",
}
