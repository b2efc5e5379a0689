"""vLLM's torch profiler, started and stopped on every worker at once.

The router is never asked: it would pass `/start_profile` on to one worker of its choice. What a worker can be told
depends on its version of vLLM (read in its releases, 0.20 to 0.33): the body of `/start_profile` is ignored up to 0.31.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import aiohttp

from .addresses import shown
from .http_client import why

Action = Literal["start", "stop"]
OnOutcome = Callable[["Outcome"], None]

READ_SINCE = {
    "profile_prefix": (0, 32),
    "delay_iterations": (0, 32),
    "max_iterations": (0, 32),
    "profiler_kwargs": (0, 33),
}
"""From which version on a worker reads an option in the body of `/start_profile`."""

_TELLS_BUSY_SINCE = (0, 32)
_DONE = {"start": "started", "stop": "stopped"}
_BODY_SHOWN = 200
_VERSION_TIMEOUT = aiohttp.ClientTimeout(total=5.0)
_VERSION = re.compile(r"(\d+)\.(\d+)")


@dataclass(frozen=True)
class ProfileOptions:
    """What a start may say; None leaves it to the worker's own `--profiler-config`. Iterations are engine steps."""

    profile_prefix: str | None = None
    delay_iterations: int | None = None
    max_iterations: int | None = None
    profiler_kwargs: Mapping[str, Any] | None = None

    def given(self) -> dict[str, Any]:
        """Those that are set."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def body(self, version: str) -> dict[str, Any]:
        """What this version reads of them; all of them where the version is unknown."""
        return {name: value for name, value in self.given().items() if _reads(version, READ_SINCE[name])}

    def unread(self, version: str) -> list[str]:
        """Those that this version ignores."""
        return [name for name in self.given() if not _reads(version, READ_SINCE[name])]


@dataclass(frozen=True)
class Outcome:
    """What became of one worker: `state` in one or two words, `detail` with the way out where it failed.

    `version` is vLLM's, empty where the worker did not tell. `notes` are worth knowing though nothing failed.
    """

    url: str
    state: str
    ok: bool
    detail: str = ""
    version: str = ""
    bounded: bool = True
    """Whether a started profile ends by itself, after max_iterations."""
    notes: tuple[str, ...] = field(default=())

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
            url,
            "busy",
            False,
            "a profile is running already, perhaps a colleague's; --restart ends it and starts anew, or:"
            f" vime-otel profile stop --worker {url}",
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


async def start_all(
    session: aiohttp.ClientSession,
    urls: Sequence[str],
    options_of: Callable[[int], ProfileOptions],
    timeout_s: float,
    restart_s: float | None = None,
    on_outcome: OnOutcome = lambda outcome: None,
) -> list[Outcome]:
    """Start the profiler on every worker at the same moment, each within its own `timeout_s`.

    Versions are asked first, so that the starts go out together. `options_of(n)` are those for the n-th
    URL. With `restart_s` a profile that is running is ended first, within so many seconds: it writes its
    trace. Outcomes come in the order of `urls`.
    """
    versions = await asyncio.gather(*(ask_version(session, url) for url in urls))
    starts = (
        _start(session, url, version, options_of(number), timeout_s, restart_s, on_outcome)
        for number, (url, version) in enumerate(zip(urls, versions, strict=True))
    )
    return list(await asyncio.gather(*starts))


async def stop_all(
    session: aiohttp.ClientSession,
    urls: Sequence[str],
    timeout_s: float,
    on_outcome: OnOutcome = lambda outcome: None,
) -> list[Outcome]:
    """Stop it everywhere, each worker within its own `timeout_s`: writing a trace takes minutes."""

    async def stop(url: str) -> Outcome:
        outcome = await _post(session, "stop", url, {}, timeout_s)
        on_outcome(outcome)
        return outcome

    return list(await asyncio.gather(*(stop(url) for url in urls)))


async def ask_version(session: aiohttp.ClientSession, url: str) -> str:
    """vLLM's version; empty where the worker does not tell."""
    try:
        async with session.get(f"{url}/version", timeout=_VERSION_TIMEOUT) as response:
            found = json.loads(await response.read())["version"] if response.status == 200 else ""
            return str(found) if _VERSION.match(str(found)) else ""
    except (aiohttp.ClientError, asyncio.TimeoutError, OSError, ValueError, LookupError, TypeError):
        return ""


def tells_busy(version: str) -> bool:
    """Whether this version answers a second start with 409 instead of ignoring it."""
    return _reads(version, _TELLS_BUSY_SINCE)


def _reads(version: str, since: tuple[int, int]) -> bool:
    found = _VERSION.match(version)
    return found is None or (int(found[1]), int(found[2])) >= since


async def _start(
    session: aiohttp.ClientSession,
    url: str,
    version: str,
    options: ProfileOptions,
    timeout_s: float,
    restart_s: float | None,
    on_outcome: OnOutcome,
) -> Outcome:
    if restart_s and not tells_busy(version):
        await _post(session, "stop", url, {}, restart_s)
    outcome = await _post(session, "start", url, options.body(version), timeout_s)
    if restart_s and outcome.state == "busy":
        stopped = await _post(session, "stop", url, {}, restart_s)
        outcome = await _post(session, "start", url, options.body(version), timeout_s) if stopped.ok else stopped
    notes = _notes(version, options, restart_s is not None) if outcome.ok else ()
    bounded = bool(options.max_iterations) and "max_iterations" not in options.unread(version)
    outcome = replace(outcome, version=version, bounded=bounded, notes=notes)
    on_outcome(outcome)
    return outcome


def _notes(version: str, options: ProfileOptions, restart: bool) -> tuple[str, ...]:
    notes = []
    if unread := options.unread(version):
        first = ".".join(map(str, READ_SINCE[unread[0]]))
        notes.append(
            f"vLLM {version} does not read {', '.join(unread)} from a start (since {first}): its own"
            " --profiler-config decides"
        )
    if not restart and not tells_busy(version):
        notes.append(f"vLLM {version} cannot tell whether a profile was running: a second start is ignored silently")
    return tuple(notes)


async def _post(
    session: aiohttp.ClientSession, action: Action, url: str, body: Mapping[str, Any], timeout_s: float
) -> Outcome:
    try:
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        # Without options nothing is sent, as the versions that read nothing expect it.
        async with session.post(f"{url}/{action}_profile", json=body or None, timeout=timeout) as response:
            return judge(url, action, response.status, await response.text(errors="replace"))
    except asyncio.TimeoutError:
        return Outcome(shown(url), "timed out", False, f"no answer within {timeout_s:g} s; {_AFTER_TIMEOUT[action]}")
    except (aiohttp.ClientError, OSError, ValueError) as error:
        return Outcome(shown(url), "unreachable", False, f"{why(error)}; is the engine up?")


_AFTER_TIMEOUT = {
    "start": "the engine may be busy or hung",
    "stop": "the worker may still be writing its trace; nothing was ended, ask again with a longer --stop-timeout",
}
