"""A start that surely ends: by vLLM's own count, or by a stop from here."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import aiohttp

from .profile_session import Teller, starting, stop_running
from .torch_profiler import Outcome, ProfileOptions, start_all


async def start_bounded(
    session: aiohttp.ClientSession,
    urls: Sequence[str],
    options: ProfileOptions,
    timeout_s: float,
    stop_timeout_s: float,
    restart: bool,
    max_seconds: float | None,
    tell: Teller,
) -> list[Outcome]:
    """Start everywhere; after `max_seconds` (None: never) stop what may run and does not end by itself.

    An outcome tells how its stop went. An interruption stops all that may have been started.
    """
    running: set[str] = set()
    try:
        restart_s = stop_timeout_s if restart else None
        tell.doing(starting(len(urls), restart))
        outcomes = await start_all(session, urls, lambda number: options, timeout_s, restart_s, running)
        endless = [
            url
            for url, outcome in zip(urls, outcomes, strict=True)
            if outcome.may_run and not (outcome.ok and outcome.bounded)
        ]
        if max_seconds is None or not endless:
            return outcomes
        tell.doing(f"{len(endless)} do not surely end a profile by themselves: they are stopped in {max_seconds:g} s")
        await asyncio.sleep(max_seconds)
    except BaseException:
        await stop_running(session, sorted(running), stop_timeout_s, tell)
        raise
    stopped = dict(zip(endless, await stop_running(session, endless, stop_timeout_s, tell), strict=True))
    return [
        _ended(outcome, stopped[url], max_seconds) if url in stopped else outcome
        for url, outcome in zip(urls, outcomes, strict=True)
    ]


def _ended(started: Outcome, stopped: Outcome, seconds: float) -> Outcome:
    """What a start came to that was stopped by hand."""
    if not stopped.ok:
        return replace(started, state="not stopped", ok=False, detail=f"{stopped.state}: {stopped.detail}")
    return replace(started, may_run=False, notes=(*started.notes, f"stopped after {seconds:g} s"))
