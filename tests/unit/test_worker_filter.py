"""Which workers are meant. The workers that are asked are stand-ins."""

from __future__ import annotations

import asyncio

import pytest
from standins import answer, closed_port_url, serving

from collector.http_client import new_session
from collector.router import Worker
from collector.worker_filter import PassedOver, WorkerFilter, select_workers
from vime_otel.data.errors import VimeOtelError

POOL = [
    Worker("http://a:1", "prefill", True, "qwen"),
    Worker("http://b:1", "decode", True, "qwen"),
    Worker("http://c:1", "decode", False, "llama"),
    Worker("http://d:1", "decode", True, "llama"),
]


def select(workers: list[Worker], wanted: WorkerFilter) -> tuple[list[Worker], list[PassedOver]]:
    async def run() -> tuple[list[Worker], list[PassedOver]]:
        async with new_session() as session:
            return await select_workers(session, workers, wanted)

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("wanted", "hosts"),
    [
        (WorkerFilter(), "abd"),
        (WorkerFilter(only_healthy=False), "abcd"),
        (WorkerFilter(worker_types=("decode",)), "bd"),
        (WorkerFilter(worker_types=("decode", "prefill"), limit=2), "ab"),
        (WorkerFilter(models=("llama",), only_healthy=False), "cd"),
        (WorkerFilter(("decode",), ("qwen",)), "b"),
    ],
)
def test_each_filter_leaves_those_it_names(wanted: WorkerFilter, hosts: str) -> None:
    chosen, others = select(POOL, wanted)
    assert [worker.url for worker in chosen] == [f"http://{host}:1" for host in hosts]
    assert len(chosen) + len(others) == len(POOL)
    assert all(each.reason for each in others)


def test_none_left_says_what_there_is() -> None:
    with pytest.raises(
        VimeOtelError, match=r"no worker matched: their types are prefill \(1\), decode \(3\); 1 of 4 workers is unh"
    ):
        select(POOL, WorkerFilter(worker_types=("regular",)))


def test_health_and_model_that_the_router_does_not_tell_are_asked() -> None:
    async def run() -> tuple[list[Worker], list[PassedOver]]:
        routes = {
            "GET /health": answer(),
            "GET /v1/models": answer(body={"data": [{"id": "qwen"}]}),
        }
        async with serving(routes) as url, new_session() as session:
            workers = [Worker(url, model="unknown"), Worker(closed_port_url())]
            return await select_workers(session, workers, WorkerFilter(models=("qwen",)))

    chosen, others = asyncio.run(run())
    assert [worker.model for worker in chosen] == ["qwen"]
    assert [each.worker.healthy for each in others] == [False]
