"""`vime-otel workers`: who stands behind the router, and who has a recorder."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import click
from rich.table import Table

from collector.http_client import new_session, why
from collector.matching import Match, Matching, Recorder, likely_reason, match
from collector.router import Worker, find_workers

from ..data import settings
from ..data.errors import VimeOtelError
from .options import clean_url, engine_options, json_option
from .output import console, print_json

_DEFAULT_COLLECTOR = "http://127.0.0.1:4318"
_HEALTH = {True: "healthy", False: "unhealthy", None: "?"}


@click.command()
@engine_options
@click.option(
    "--collector",
    type=clean_url,
    metavar="URL",
    help=f"A running collector (default: ${settings.COLLECTOR.name}, or {_DEFAULT_COLLECTOR}).",
)
@json_option
def workers(
    router: str | None, workers: tuple[str, ...], limit: int | None, collector: str | None, as_json: bool
) -> None:
    """List the router's workers: type, health, and whether a recorder is attached."""
    collector_url = collector or clean_url(settings.get(settings.COLLECTOR) or _DEFAULT_COLLECTOR)
    found, recorders, trouble = asyncio.run(_ask(router, workers, limit, collector_url))
    router_host = urlsplit(router).hostname if router else None
    matching = match(found, recorders, router_host)
    if as_json:
        print_json(_as_dict(matching, collector_url, trouble))
    else:
        _print(matching, collector_url, trouble, router)


async def _ask(
    router: str | None, worker_urls: tuple[str, ...], limit: int | None, collector_url: str
) -> tuple[list[Worker], list[Recorder], str]:
    """The workers, the collector's recorders, and what kept us from knowing these (or nothing)."""
    async with new_session() as session:
        api_key = settings.get(settings.ROUTER_KEY) or None
        found = await find_workers(session, router, worker_urls, limit, api_key)
        try:
            return found, await _recorders(session, collector_url), ""
        except VimeOtelError as error:
            return found, [], str(error)


async def _recorders(session: aiohttp.ClientSession, collector_url: str) -> list[Recorder]:
    token = settings.get(settings.TOKEN)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        async with session.get(f"{collector_url}/control/v1/recorders", headers=headers) as response:
            if response.status in (401, 403):
                raise VimeOtelError(f"the collector {collector_url} asks for a token; set {settings.TOKEN.name}")
            if response.status != 200:
                raise VimeOtelError(f"{collector_url} answered HTTP {response.status}: it is no vime-otel collector")
            entries = (await response.json(content_type=None))["recorders"]
    except (aiohttp.ClientError, OSError) as error:
        raise VimeOtelError(
            f"no collector answers at {collector_url} ({why(error)}); start one with `vime-otel serve`"
        ) from error
    except (ValueError, LookupError, TypeError) as error:
        raise VimeOtelError(f"{collector_url} answered no list of recorders: it is no vime-otel collector") from error
    return [Recorder.from_json(entry) for entry in entries]


def _attached(each: Match, matching: Matching, collector_url: str, trouble: str) -> str:
    if trouble:
        return "unknown"
    if each.recorders:
        return ", ".join(f"{recorder.label} ({recorder.phase or 'attached'})" for recorder in each.recorders)
    return f"none: {likely_reason(each.worker, matching.unmatched, collector_url)}"


def _print(matching: Matching, collector_url: str, trouble: str, router: str | None) -> None:
    out = console()
    table = Table(box=None, pad_edge=False)
    for heading in ("url", "type", "health"):
        table.add_column(heading, no_wrap=True)
    table.add_column("recorder", overflow="fold")
    for each in matching.matches:
        worker = each.worker
        attached = _attached(each, matching, collector_url, trouble)
        table.add_row(worker.url, worker.worker_type, _HEALTH[worker.healthy], attached)
    out.print(table)
    for recorder in matching.unmatched:
        where = f"{recorder.label} (ports {', '.join(map(str, recorder.api_ports))})"
        out.print(f"recorder {where} belongs to none of these workers", soft_wrap=True)
    if trouble:
        out.print(f"recorders unknown: {trouble}", soft_wrap=True)
    named = f"--router {router}" if router else " ".join(f"--worker {each.worker.url}" for each in matching.matches)
    out.print(f"next: vime-otel collect {named}", soft_wrap=True)


def _as_dict(matching: Matching, collector_url: str, trouble: str) -> dict[str, Any]:
    return {
        "workers": [
            {
                "url": each.worker.url,
                "type": each.worker.worker_type,
                "healthy": each.worker.healthy,
                "model": each.worker.model,
                "recorders": None if trouble else [recorder.label for recorder in each.recorders],
                "reason": None if trouble or each.recorders else _attached(each, matching, collector_url, trouble),
            }
            for each in matching.matches
        ],
        "unmatched_recorders": [recorder.label for recorder in matching.unmatched],
        "collector": collector_url,
        "collector_trouble": trouble or None,
    }
