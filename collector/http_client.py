"""The one way sessions to router and workers are made."""

from __future__ import annotations

import asyncio
import os

import aiohttp

from .addresses import shown

DEFAULT_TIMEOUT_S = 10.0


def new_session(timeout_s: float = DEFAULT_TIMEOUT_S) -> aiohttp.ClientSession:
    """A session with as many connections as there are workers.

    Proxy variables are ignored: routers and workers are reached directly. To be made inside a
    running event loop and closed by the caller (`async with`).
    """
    return aiohttp.ClientSession(
        trust_env=False,
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=timeout_s),
    )


def why(error: BaseException) -> str:
    """What went wrong with a request, in a few words on one line."""
    if isinstance(error, asyncio.TimeoutError):
        return "timed out"
    if isinstance(error, aiohttp.ClientConnectorError):
        number = error.os_error.errno
        return os.strerror(number).lower() if number and number > 0 else error.os_error.strerror or str(error.os_error)
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "closed the connection without an answer"
    return shown(" ".join(str(error).split())) or type(error).__name__
