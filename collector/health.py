"""`/healthz`, `/readyz` and `/metrics`: how the collector is, for whoever runs it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from aiohttp import web

from .metrics import CONTENT_TYPE, Metrics

HEALTHZ = "/healthz"
READYZ = "/readyz"
METRICS = "/metrics"
OPEN_PATHS = frozenset({HEALTHZ, READYZ})
"""Asked without a token: probes have none, and the answers hold nothing."""


def add_routes(app: web.Application, metrics: Metrics, not_ready: Callable[[], str]) -> None:
    """Serve them; `not_ready` says why the collector takes nothing now, or is empty."""

    async def healthz(request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(request: web.Request) -> web.Response:
        why = not_ready()
        return web.Response(status=503 if why else 200, text=f"{why or 'ok'}\n")

    async def show_metrics(request: web.Request) -> web.Response:
        return web.Response(body=metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    app.router.add_get(HEALTHZ, healthz)
    app.router.add_get(READYZ, readyz)
    app.router.add_get(METRICS, show_metrics)


def writable(folder: Path) -> bool:
    """Whether runs can be written there, as far as that shows without writing."""
    return os.access(folder, os.W_OK | os.X_OK)
