"""What router and workers say about whether they can be profiled and recorded."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

import aiohttp

from vime_otel.data.summary import counted
from vime_otel.data.urls import shown

from ..http_client import why
from ..router import Worker, ask_health
from ..torch_profiles.torch_profiler import READ_SINCE, ask_version, tells_busy
from .check_log import PROFILER_CONFIG
from .findings import Finding, listed, mend, note, ok

CLOCK_SKEW_S = 2.0
"""The Date header counts whole seconds, and the answer takes its time."""

_TIMEOUT = aiohttp.ClientTimeout(total=5.0)
_ROUTE, _NO_ROUTE = 405, 404


@dataclass(frozen=True)
class Look:
    """What one worker answered; None where it did not say. `ahead_s` is its clock against ours."""

    worker: Worker
    version: str = ""
    status: int | None = None
    """What a GET of its profiler route gets: 405 where it exists, since it takes POST."""
    ahead_s: float | None = None


async def look_at(session: aiohttp.ClientSession, workers: Sequence[Worker]) -> list[Look]:
    """Ask every worker what can be asked without changing anything."""
    known = await ask_health(session, workers)
    return list(await asyncio.gather(*(_look(session, worker) for worker in known)))


async def _look(session: aiohttp.ClientSession, worker: Worker) -> Look:
    try:
        before = time.time()
        # The route takes POST: another method starts nothing.
        url = f"{worker.url}/start_profile"
        async with session.get(url, timeout=_TIMEOUT, allow_redirects=False) as response:
            ahead = _ahead(response.headers.get("Date"), (before + time.time()) / 2)
            status = response.status
        return Look(worker, await ask_version(session, worker.url), status, ahead)
    except (aiohttp.ClientError, asyncio.TimeoutError, OSError, ValueError) as error:
        return Look(Worker(worker.url, worker.worker_type, False, worker.model, why(error)))


def _ahead(date: str | None, now: float) -> float | None:
    try:
        return parsedate_to_datetime(date).timestamp() + 0.5 - now if date else None
    except (ValueError, OverflowError):
        return None


def check_fleet(looks: Sequence[Look]) -> list[Finding]:
    """Findings on health, profiler routes, versions and clocks, workers with the same one together."""
    return [*_health(looks), *_routes(looks), *_versions(looks), *_clocks(looks)]


def _health(looks: Sequence[Look]) -> Iterator[Finding]:
    silent = [look for look in looks if look.worker.trouble]
    sick = [look for look in looks if look.worker.healthy is False and not look.worker.trouble]
    types = {look.worker.worker_type for look in looks}
    pools = ", ".join(f"{sum(look.worker.worker_type == each for look in looks)} {each}" for each in sorted(types))
    for group in _alike(silent, lambda look: look.worker.trouble):
        yield mend(
            "workers",
            f"nobody answers at {_names(group)} ({group[0].worker.trouble})",
            "is the engine up, and can this machine reach it? with 127.0.0.1 in its URL only the router's host can",
        )
    if sick and len(sick) + len(silent) == len(looks):
        yield mend(
            "workers",
            f"{_names(sick)} unhealthy: no worker is healthy",
            "wait until the engines are up, or see their logs; --all asks them all the same",
        )
    elif sick:
        yield note("workers", f"{_names(sick)} unhealthy", "commands pass over these unless told --all")
    if not silent and not sick:
        yield ok("workers", f"{counted(len(looks), 'worker')} healthy ({pools})")


def _routes(looks: Sequence[Look]) -> Iterator[Finding]:
    without = [look for look in looks if look.status == _NO_ROUTE]
    having = [look for look in looks if look.status == _ROUTE]
    untold = [look for look in looks if look.status not in (_NO_ROUTE, _ROUTE, None)]
    if without:
        yield mend(
            "profiler routes",
            f"{_names(without)}: POST /start_profile gets 404, the server was started without --profiler-config",
            f"restart it with --profiler-config (vime: {PROFILER_CONFIG})",
        )
    elif having and not untold:
        yield ok("profiler routes", f"on {counted(len(having), 'worker')}")
    for group in _alike(untold, lambda look: look.status):
        yield mend(
            "profiler routes",
            f"{_names(group)}: can't be told, GET /start_profile gets HTTP {group[0].status}, of vLLM 404 or 405",
            "is that a vLLM server, and is nothing between it and this machine that asks for a key?",
        )


def _versions(looks: Sequence[Look]) -> Iterator[Finding]:
    versions = sorted({look.version for look in looks if look.version})
    if not versions:
        if any(look.status is not None for look in looks):
            yield note("vLLM", "no worker tells its version", "options may not be read: profiles are stopped by hand")
        return
    if len(versions) > 1:
        yield note("vLLM", f"versions differ: {', '.join(versions)}", "compare engines of one version only")
    else:
        yield ok("vLLM", versions[0])
    old = [version for version in versions if not tells_busy(version)]
    if old:
        since = ".".join(map(str, READ_SINCE["max_iterations"]))
        yield note(
            "vLLM",
            f"{', '.join(old)}: a second start and a start's options are silently ignored (no longer since {since})",
            "max_iterations in its own --profiler-config bounds a profile; `vime-otel profile start --restart` ends one"
            " that was forgotten",
        )


def _clocks(looks: Sequence[Look]) -> Iterator[Finding]:
    off = [look for look in looks if look.ahead_s is not None and abs(look.ahead_s) > CLOCK_SKEW_S]
    told = [look for look in looks if look.ahead_s is not None]
    if off:
        worst = max(off, key=lambda look: abs(look.ahead_s or 0.0))
        yield mend(
            "clocks",
            f"{_names(off)} up to {worst.ahead_s:+.0f} s off this machine's clock: timelines will not line up",
            "synchronise the hosts (chrony, ntpd)",
        )
    elif told:
        yield ok("clocks", f"within {CLOCK_SKEW_S:g} s of this machine's")


def _alike(looks: Sequence[Look], key: Callable[[Look], Hashable]) -> list[list[Look]]:
    """The looks in groups of the same key."""
    groups: dict[Hashable, list[Look]] = {}
    for look in looks:
        groups.setdefault(key(look), []).append(look)
    return list(groups.values())


def _names(looks: Sequence[Look]) -> str:
    return listed([shown(look.worker.url) for look in looks])
