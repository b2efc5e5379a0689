"""`vime-otel workers`: who stands behind the router, and who has a recorder."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import click
from rich.table import Table

from collector.addresses import host_and_port, is_this_machine
from collector.client import Client, NoCollector, listening_option
from collector.http_client import new_session
from collector.recordings.matching import Match, Matching, Recorder, likely_reason, match
from collector.recordings.refused import addresses_in
from collector.router import Worker, ask_health, find_workers

from ..data import settings
from ..data.errors import UsageError, VimeOtelError
from ..data.urls import shown
from .options import DEFAULT_COLLECTOR, clean_url, collector_option, engine_arguments, engine_options, json_option
from .output import console, print_json

_HEALTH = {True: "healthy", False: "unhealthy", None: "?"}


@click.command()
@engine_options
@collector_option
@json_option
def workers(
    router: str | None, workers: tuple[str, ...], limit: int | None, collector: str | None, as_json: bool
) -> int:
    """List the router's workers: type, health, and whether a recorder is attached.

    The exit status is 1 where none of them is healthy.
    """
    collector_url = collector or clean_url(settings.get(settings.COLLECTOR) or DEFAULT_COLLECTOR)
    found, recorders = asyncio.run(_ask(router, workers, limit, collector_url))
    router_host = urlsplit(router).hostname if router else None
    matching = match(found, recorders.attached, router_host)
    if as_json:
        print_json(_as_dict(matching, collector_url, recorders))
    else:
        _print(matching, collector_url, recorders)
        _print_next(engine_arguments(router, workers, limit), collector_url, recorders)
    return 0 if any(worker.healthy for worker in found) else 1


@dataclass(frozen=True)
class _Recorders:
    """What a collector knows of recorders; `trouble` is what kept us from knowing it, and `nobody` whether it runs."""

    attached: tuple[Recorder, ...] = ()
    refused: tuple[str, ...] = ()
    trouble: str = ""
    nobody: bool = False


async def _ask(
    router: str | None, worker_urls: tuple[str, ...], limit: int | None, collector_url: str
) -> tuple[list[Worker], _Recorders]:
    """The workers, and the collector's recorders."""
    async with new_session() as session:
        api_key = settings.secret(settings.ROUTER_KEY) or None
        found = await find_workers(session, router, worker_urls, limit, api_key)
        return await asyncio.gather(ask_health(session, found), _recorders(collector_url))


async def _recorders(collector_url: str) -> _Recorders:
    try:
        async with Client(collector_url, settings.secret(settings.TOKEN)) as client:
            listed = await client.recorders()
        attached = tuple(Recorder.from_json(entry) for entry in listed["recorders"])
        return _Recorders(attached, tuple(addresses_in(listed.get("refused", []))))
    except UsageError:
        raise
    except VimeOtelError as error:
        return _Recorders(trouble=str(error), nobody=isinstance(error, NoCollector))


def _attached(each: Match, matching: Matching, collector_url: str, recorders: _Recorders) -> str:
    if recorders.trouble:
        return "unknown"
    if each.recorders:
        return ", ".join(f"{recorder.label} ({recorder.phase or 'attached'})" for recorder in each.recorders)
    return f"none: {likely_reason(each.worker, matching.unmatched, shown(collector_url), recorders.refused)}"


def _print(matching: Matching, collector_url: str, recorders: _Recorders) -> None:
    out = console()
    table = Table(box=None, pad_edge=False)
    for heading in ("url", "type", "health"):
        table.add_column(heading, no_wrap=True)
    table.add_column("recorder", overflow="fold")
    for each in matching.matches:
        worker = each.worker
        attached = _attached(each, matching, collector_url, recorders)
        health = f"unreachable ({worker.trouble})" if worker.trouble else _HEALTH[worker.healthy]
        table.add_row(shown(worker.url), worker.worker_type, health, attached)
    out.print(table)
    for recorder in matching.unmatched:
        where = f"{recorder.label} (ports {', '.join(map(str, recorder.api_ports))})"
        out.print(f"recorder {where} belongs to none of these workers", soft_wrap=True)
    if recorders.trouble:
        out.print(f"recorders unknown: {recorders.trouble}", soft_wrap=True)


def _print_next(named: str, collector_url: str, recorders: _Recorders) -> None:
    """The command that records these workers: through the collector that runs, or with one of its own in its place."""
    if not recorders.trouble:
        place = f" --collector {shown(collector_url)}"
    elif recorders.nobody and is_this_machine(host_and_port(collector_url)[0]):
        place = listening_option(collector_url)
    else:
        return  # the trouble names the way out
    console().print(f"next: vime-otel collect {named}{place}", soft_wrap=True)


def _as_dict(matching: Matching, collector_url: str, recorders: _Recorders) -> dict[str, Any]:
    trouble = recorders.trouble
    return {
        "workers": [
            {
                "url": shown(each.worker.url),
                "type": each.worker.worker_type,
                "healthy": each.worker.healthy,
                "model": each.worker.model,
                "recorders": None if trouble else [recorder.label for recorder in each.recorders],
                "reason": None if trouble or each.recorders else _attached(each, matching, collector_url, recorders),
            }
            for each in matching.matches
        ],
        "unmatched_recorders": [recorder.label for recorder in matching.unmatched],
        "collector": shown(collector_url),
        "collector_trouble": trouble or None,
    }
