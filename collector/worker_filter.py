"""Which of the router's workers a command means, and why the others are passed over."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

import aiohttp

from vime_otel.data.errors import VimeOtelError
from vime_otel.data.summary import counted

from .http_client import why
from .router import Worker, ask_health
from .traffic import served_model

_MODEL_TIMEOUT = aiohttp.ClientTimeout(total=5.0)
_UNTOLD = ("", "unknown")


@dataclass(frozen=True)
class WorkerFilter:
    """What a worker must be: empty means any. `limit` counts those that are left.

    Health is asked of the workers that a router lists; one that was named is meant as it is.
    """

    worker_types: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    only_healthy: bool = True
    limit: int | None = None


@dataclass(frozen=True)
class PassedOver:
    """A worker that is not meant, and why."""

    worker: Worker
    reason: str


async def select_workers(
    session: aiohttp.ClientSession, workers: Sequence[Worker], wanted: WorkerFilter
) -> tuple[list[Worker], list[PassedOver]]:
    """Those that are meant, and the others. Asks workers for health and model where the router did not say.

    Raises VimeOtelError when none is left, with what there is.
    """
    known = list(workers)
    if wanted.only_healthy:
        listed = await ask_health(session, [worker for worker in known if not worker.named])
        known = [worker for worker in known if worker.named] + listed
    if wanted.models:
        known = list(await asyncio.gather(*(_with_model(session, worker) for worker in known)))
    chosen: list[Worker] = []
    others: list[PassedOver] = []
    for worker in known:
        reason = _reason(worker, wanted, len(chosen))
        if reason:
            others.append(PassedOver(worker, reason))
        else:
            chosen.append(worker)
    if not chosen:
        raise VimeOtelError(_none_left(known, wanted))
    return chosen, others


async def _with_model(session: aiohttp.ClientSession, worker: Worker) -> Worker:
    if worker.model not in _UNTOLD or worker.healthy is False:
        return worker
    try:
        return replace(worker, model=await served_model(session, worker.url, _MODEL_TIMEOUT))
    except Exception as error:  # noqa: BLE001 - what is no model list may fail in any way; the reason is told
        return replace(worker, trouble=f"its model can't be asked: {why(error)}")


def _reason(worker: Worker, wanted: WorkerFilter, chosen: int) -> str:
    """Why a worker is not meant; empty where it is."""
    if wanted.worker_types and worker.worker_type not in wanted.worker_types:
        return f"type {worker.worker_type}"
    if wanted.models and worker.model not in wanted.models:
        return worker.trouble or f"model {worker.model or 'unknown'}"
    if wanted.only_healthy and worker.healthy is False and not worker.named:
        return f"unhealthy{f' ({worker.trouble})' if worker.trouble else ''}; --all asks it, too"
    if wanted.limit is not None and chosen >= wanted.limit:
        return f"beyond --limit {wanted.limit}"
    return ""


def _none_left(workers: Sequence[Worker], wanted: WorkerFilter) -> str:
    there = []
    if wanted.worker_types:
        there.append(f"their types are {_tally([worker.worker_type for worker in workers])}")
    if wanted.models:
        there.append(f"their models are {_tally([worker.model or 'unknown' for worker in workers])}")
    sick = sum(worker.healthy is False for worker in workers)
    if wanted.only_healthy and sick:
        of_all = f"{sick} of {counted(len(workers), 'worker')} {'is' if sick == 1 else 'are'}"
        there.append(f"{of_all} unhealthy (--all asks them, too)")
    return f"no worker matched: {'; '.join(there)}"


def _tally(values: Sequence[str]) -> str:
    return ", ".join(f"{value} ({values.count(value)})" for value in dict.fromkeys(values))
