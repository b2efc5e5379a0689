"""The one way sessions to router and workers are made."""

from __future__ import annotations

import asyncio
import os
import ssl

import aiohttp

from vime_otel.data.tls import client_context
from vime_otel.data.urls import shown

DEFAULT_TIMEOUT_S = 10.0


def new_session(timeout_s: float = DEFAULT_TIMEOUT_S, context: ssl.SSLContext | None = None) -> aiohttp.ClientSession:
    """A session with as many connections as there are workers.

    `context` says which certificates are trusted; by default those of `data.tls`. Proxy variables are
    ignored: routers and workers are reached directly. To be made inside a running event loop and closed
    by the caller (`async with`).
    """
    return aiohttp.ClientSession(
        trust_env=False,
        connector=aiohttp.TCPConnector(limit=0, ssl=context or client_context()),
        timeout=aiohttp.ClientTimeout(total=timeout_s),
    )


async def first_bytes(response: aiohttp.ClientResponse, most: int) -> bytes:
    """The first `most` bytes of a body, however long it is; the rest is left unread."""
    pieces: list[bytes] = []
    size = 0
    async for piece in response.content.iter_chunked(65_536):
        pieces.append(piece)
        size += len(piece)
        if size >= most:
            response.close()
            break
    return b"".join(pieces)[:most]


def why(error: BaseException) -> str:
    """What went wrong with a request, in a few words on one line."""
    if isinstance(error, asyncio.TimeoutError):
        return "timed out"
    if isinstance(error, aiohttp.ClientConnectorError):
        number = error.os_error.errno
        return os.strerror(number).lower() if number and number > 0 else error.os_error.strerror or str(error.os_error)
    if isinstance(error, aiohttp.TooManyRedirects):
        return "redirects without end"
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "closed the connection without an answer"
    return shown(" ".join(str(error).split())) or type(error).__name__
