"""Which workers stand behind a vllm-router."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from vime_otel.data.errors import UsageError, VimeOtelError
from vime_otel.data.texts import printable
from vime_otel.data.urls import shown

from .addresses import host_and_port, is_loopback, is_this_machine, server_url, with_host, without_rank
from .http_client import first_bytes, why

_NOT_FOUND = (404, 405)
_MOST_BYTES = 64 << 20
_AT_ONCE = 64
_HEALTH_TIMEOUT = aiohttp.ClientTimeout(total=5.0)


@dataclass(frozen=True)
class Worker:
    """One vLLM server. `healthy` is None where nobody said; `model` may be empty or `unknown`."""

    url: str
    worker_type: str = "regular"
    healthy: bool | None = None
    model: str = ""
    trouble: str = ""
    """Why it can't be reached, where we tried."""
    named: bool = False
    """Whether it was named by its URL, and not by a router."""


async def find_workers(
    session: aiohttp.ClientSession,
    router_url: str | None,
    worker_urls: Sequence[str] = (),
    limit: int | None = None,
    api_key: str | None = None,
) -> list[Worker]:
    """The workers named by URL and those of the router, at most `limit`; raises VimeOtelError."""
    if not router_url and not worker_urls:
        raise UsageError("which engines? name them with --router URL, --worker URL or --log FILE")
    workers = [Worker(without_rank(url), named=True) for url in worker_urls]
    if router_url:
        workers += await list_workers(session, router_url, api_key)
    return _distinct(workers)[:limit]


async def list_workers(session: aiohttp.ClientSession, router_url: str, api_key: str | None = None) -> list[Worker]:
    """The router's workers, each URL once, without the `@rank` of data-parallel ranks.

    Raises VimeOtelError when the router can't be reached, speaks another language or has no workers, UsageError where
    its URL and the key name two users.
    """
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    called, router_url = server_url(router_url), shown(server_url(router_url))
    if api_key and called != router_url:
        raise UsageError(
            f"the URL of the router {router_url} has a user name, and there is VIME_OTEL_ROUTER_KEY: unset one"
        )
    try:
        status, body = await _get(session, f"{called}/workers", headers)
        if status in _NOT_FOUND:
            status, body = await _get(session, f"{called}/list_workers", headers)
    except (aiohttp.ClientError, asyncio.TimeoutError, OSError, ValueError) as error:
        raise VimeOtelError(
            f"the router {router_url} can't be reached ({why(error)}); its port changes with every job:"
            " the training log names it after `Router launched at`"
        ) from error
    if status in (401, 403):
        raise VimeOtelError(f"the router {router_url} asks for a key (HTTP {status}); set VIME_OTEL_ROUTER_KEY")
    if status == 503:
        raise VimeOtelError(
            f"the router {router_url} has no worker that it can use (HTTP 503); wait until the engines are up, look"
            " whether this is this job's router (the last `Router launched at` of its log; --log FILE), or name the"
            " engines with --worker URL"
        )
    if status != 200:
        raise VimeOtelError(f"{router_url}/workers answered HTTP {status}; is that the router's URL?")
    workers = _distinct(_parse(router_url, body))
    if not workers:
        raise VimeOtelError(f"the router {router_url} has no workers yet; wait until the engines are up")
    return await _seen_from_here(workers, host_and_port(router_url)[0])


async def _get(session: aiohttp.ClientSession, url: str, headers: dict[str, str]) -> tuple[int, bytes]:
    async with session.get(url, headers=headers) as response:
        body = await first_bytes(response, _MOST_BYTES + 1)
        if len(body) > _MOST_BYTES:
            raise ValueError(f"its answer is longer than {_MOST_BYTES >> 20} MiB")
        return response.status, body


async def _seen_from_here(workers: list[Worker], router_host: str) -> list[Worker]:
    """The workers with 127.0.0.1, which means the router's host, replaced where that is another machine."""
    local = [is_loopback(host_and_port(worker.url)[0]) for worker in workers]
    if not any(local) or await asyncio.to_thread(is_this_machine, router_host):
        return workers
    return [
        replace(worker, url=with_host(worker.url, router_host)) if is_local else worker
        for worker, is_local in zip(workers, local, strict=True)
    ]


def _parse(router_url: str, body: bytes) -> list[Worker]:
    """The workers of a `/workers` or `/list_workers` body."""
    try:
        content = json.loads(body)
        if "workers" in content:
            return [_worker(entry) for entry in content["workers"]]
        return [Worker(_checked(url)) for url in content["urls"]]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise VimeOtelError(
            f"what {router_url}/workers answered is no list of workers; is that the URL of a vllm-router?"
        ) from error


def _worker(entry: dict[str, Any]) -> Worker:
    healthy = entry.get("is_healthy")
    return Worker(
        url=_checked(entry["url"]),
        worker_type=printable(str(entry.get("worker_type") or "regular")),
        healthy=healthy if isinstance(healthy, bool) else None,
        model=printable(str(entry.get("model_id") or "")),
    )


def _checked(url: str) -> str:
    """A worker's URL out of a router's list; raises VimeOtelError for one that can't be asked."""
    try:
        found = without_rank(url)
        parts = urlsplit(found)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise VimeOtelError(
            f"the router lists the worker {shown(printable(url)):.80}, which is no HTTP URL; name the engines with"
            " --worker URL"
        )
    return found


async def ask_health(session: aiohttp.ClientSession, workers: Sequence[Worker]) -> list[Worker]:
    """The workers, those of unknown health after a look at their /health."""
    few = asyncio.Semaphore(_AT_ONCE)

    async def ask(worker: Worker) -> Worker:
        if worker.healthy is not None:
            return worker
        async with few:
            try:
                async with session.get(f"{worker.url}/health", timeout=_HEALTH_TIMEOUT) as response:
                    return replace(worker, healthy=response.status == 200)
            except (aiohttp.ClientError, asyncio.TimeoutError, OSError, ValueError) as error:
                return replace(worker, healthy=False, trouble=why(error))

    return list(await asyncio.gather(*(ask(worker) for worker in workers)))


def _distinct(workers: Sequence[Worker]) -> list[Worker]:
    """Each URL once; a server is healthy when all of its ranks are."""
    by_url: dict[str, Worker] = {}
    for worker in workers:
        known = by_url.get(worker.url)
        if known is None or (known.healthy is not False and worker.healthy is not None):
            by_url[worker.url] = worker
    return list(by_url.values())
