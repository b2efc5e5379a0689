"""vLLM's torch profiler, started and stopped on every worker at once.

The router is never asked: it would pass `/start_profile` on to one worker of its choice. What a worker can be told
depends on its version of vLLM (read in its releases, 0.20 to 0.33): the body of `/start_profile` is ignored up to 0.31.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import aiohttp

from vime_otel.data.texts import printable
from vime_otel.data.urls import shown

from ..http_client import first_bytes, why

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
_VERSION = re.compile(r"([0-9]{1,5})\.([0-9]{1,5})[0-9A-Za-z.+_-]{0,60}")
_VERSION_BYTES = 4096
_ANSWER_BYTES = 16_384


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
        given = self.given()
        return {name: value for name, value in given.items() if not version or _at_least(version, READ_SINCE[name])}

    def unread(self, version: str) -> list[str]:
        """Those that this version ignores; of an unknown one it may be all."""
        return [name for name in self.given() if not _at_least(version, READ_SINCE[name])]


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
    """Whether a started profile surely ends by itself, after max_iterations."""
    may_run: bool = False
    """Whether a profile of ours may be running there now: also when the answer to the start was lost."""
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """The outcome for JSON."""
        return asdict(self)


def judge(url: str, action: Action, status: int, body: str) -> Outcome:
    """What a worker's answer means."""
    url = shown(url)
    if status == 200 and body.lstrip().startswith("<"):
        return Outcome(url, "refused", False, "it answered with a web page; is this a vLLM server?")
    if status == 200:
        return Outcome(url, _DONE[action], True, may_run=action == "start")
    if status == 409:
        return Outcome(
            url,
            "busy",
            False,
            "a profile is running already, perhaps a colleague's; --restart of `profile run` and `start` ends it and"
            f" starts anew, or: vime-otel profile stop --worker {url}",
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
    if 300 <= status < 400:
        return Outcome(url, "refused", False, f"HTTP {status}: it redirects elsewhere; name the server itself")
    text = " ".join(printable(body).split())[:_BODY_SHOWN]
    detail = f"HTTP {status}{f': {text}' if text else ''}; see the server's log"
    # A fault of the server may have come after some of its ranks had started.
    return Outcome(url, "refused", False, detail, may_run=action == "start" and status >= 500)


async def start_all(
    session: aiohttp.ClientSession,
    urls: Sequence[str],
    options_of: Callable[[int], ProfileOptions],
    timeout_s: float,
    restart_s: float | None = None,
    running: set[str] | None = None,
) -> list[Outcome]:
    """Start the profiler on every worker at the same moment, each within its own `timeout_s`.

    Versions are asked first, so that the starts go out together. `options_of(n)` are those for the n-th
    URL. With `restart_s` a profile that is running is ended first, within so many seconds: it writes its
    trace. `running` holds at any moment the URLs at which a profile of ours may be running, for whoever has
    to stop them when this is cancelled. Outcomes come in the order of `urls`.
    """
    versions = await asyncio.gather(*(ask_version(session, url) for url in urls))
    ours = running if running is not None else set()
    starts = (
        _start(session, url, version, options_of(number), timeout_s, restart_s, ours)
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
        async with session.get(f"{url}/version", timeout=_VERSION_TIMEOUT, allow_redirects=False) as response:
            found = json.loads(await first_bytes(response, _VERSION_BYTES))["version"]
            return str(found) if response.status == 200 and _VERSION.fullmatch(str(found)) else ""
    except (aiohttp.ClientError, asyncio.TimeoutError, OSError, ValueError, LookupError, TypeError, RecursionError):
        return ""


def tells_busy(version: str) -> bool:
    """Whether this version surely answers a second start with 409 instead of ignoring it."""
    return _at_least(version, _TELLS_BUSY_SINCE)


def _at_least(version: str, since: tuple[int, int]) -> bool:
    found = _VERSION.fullmatch(version)
    return found is not None and (int(found[1]), int(found[2])) >= since


async def _start(
    session: aiohttp.ClientSession,
    url: str,
    version: str,
    options: ProfileOptions,
    timeout_s: float,
    restart_s: float | None,
    running: set[str],
) -> Outcome:
    outcome: Outcome | None = None
    if restart_s and not tells_busy(version):
        outcome = await _stop_first(session, url, restart_s)
    if outcome is None:
        outcome = await _start_once(session, url, version, options, timeout_s, running)
    if restart_s and outcome.state == "busy":
        outcome = await _stop_first(session, url, restart_s) or await _start_once(
            session, url, version, options, timeout_s, running
        )
    notes = _notes(version, options, restart_s is not None) if outcome.ok else ()
    bounded = bool(options.max_iterations) and _at_least(version, READ_SINCE["max_iterations"])
    return replace(outcome, version=version, bounded=bounded, notes=notes)


async def _stop_first(session: aiohttp.ClientSession, url: str, timeout_s: float) -> Outcome | None:
    """End what may be running; the answer is None, or what keeps a new start from being one."""
    stopped = await _post(session, "stop", url, {}, timeout_s)
    if stopped.ok:
        return None
    return replace(stopped, detail=f"a profile that may be running could not be stopped first: {stopped.detail}")


async def _start_once(
    session: aiohttp.ClientSession,
    url: str,
    version: str,
    options: ProfileOptions,
    timeout_s: float,
    running: set[str],
) -> Outcome:
    running.add(url)
    outcome = await _post(session, "start", url, options.body(version), timeout_s)
    if not outcome.may_run:
        running.discard(url)
    return outcome


def _notes(version: str, options: ProfileOptions, restart: bool) -> tuple[str, ...]:
    if not version:
        return ("it does not tell its version: whether it reads --iterations is unknown",)
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
    sent = action == "start"
    try:
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        # Without options nothing is sent, as the versions that read nothing expect it.
        async with session.post(
            f"{url}/{action}_profile", json=body or None, timeout=timeout, allow_redirects=False
        ) as response:
            content = await first_bytes(response, _ANSWER_BYTES)
            return judge(url, action, response.status, content.decode(errors="replace"))
    except asyncio.TimeoutError:
        detail = f"no answer within {timeout_s:g} s; {_AFTER_TIMEOUT[action]}"
        return Outcome(shown(url), "timed out", False, detail, may_run=sent)
    except aiohttp.ClientConnectorError as error:
        return Outcome(shown(url), "unreachable", False, f"{why(error)}; is the engine up?")
    except (aiohttp.ClientError, OSError, ValueError) as error:
        return Outcome(shown(url), "unreachable", False, f"{why(error)}; is the engine up?", may_run=sent)


_AFTER_TIMEOUT = {
    "start": "the engine may be busy or hung",
    "stop": "the worker may still be writing its trace; nothing was ended, ask again with a longer --stop-timeout",
}
