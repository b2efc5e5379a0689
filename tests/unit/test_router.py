"""What the router client makes of a router's answers. The routers are stand-ins."""

from __future__ import annotations

import asyncio

import pytest
from standins import Routes, answer, closed_port_url, hang_up, never, serving

from collector import router
from collector.http_client import new_session
from collector.router import Worker, find_workers, list_workers
from vime_otel.data.errors import UsageError, VimeOtelError


def entry(url: str, healthy: bool = True, worker_type: str = "regular") -> dict[str, object]:
    return {"url": url, "model_id": "unknown", "worker_type": worker_type, "is_healthy": healthy}


def listed(routes: Routes, api_key: str | None = None, timeout_s: float = 5.0) -> list[Worker]:
    async def run() -> list[Worker]:
        async with serving(routes) as url, new_session(timeout_s) as session:
            return await list_workers(session, url, api_key)

    return asyncio.run(run())


def test_workers_with_type_and_health() -> None:
    body = {
        "workers": [entry("http://10.0.0.1:1/", worker_type="prefill"), entry("http://10.0.0.2:2", healthy=False)],
        "total": 2,
    }
    assert listed({"GET /workers": answer(body=body)}) == [
        Worker("http://10.0.0.1:1", "prefill", True, "unknown"),
        Worker("http://10.0.0.2:2", "regular", False, "unknown"),
    ]


def test_data_parallel_ranks_are_one_server_and_healthy_only_together() -> None:
    urls = [("http://a:1@0", True), ("http://a:1@1", False), ("http://a:1@2", True), ("http://b:1@0", True)]
    body = {"workers": [entry(url, healthy) for url, healthy in urls]}
    found = listed({"GET /workers": answer(body=body)})
    assert [(worker.url, worker.healthy) for worker in found] == [("http://a:1", False), ("http://b:1", True)]


def test_user_info_in_a_url_is_no_rank() -> None:
    body = {"workers": [entry("http://user@a:1")]}
    assert listed({"GET /workers": answer(body=body)})[0].url == "http://user@a:1"


def test_list_workers_is_the_fallback() -> None:
    urls = {"urls": ["http://a:1@0", "http://a:1@1", "http://b:2"]}
    assert listed({"GET /list_workers": answer(body=urls)}) == [Worker("http://a:1"), Worker("http://b:2")]


def test_the_key_is_sent_and_asked_for() -> None:
    async def guarded(request):  # type: ignore[no-untyped-def]
        right = request.headers.get("Authorization") == "Bearer secret"
        return await answer(200 if right else 401, {"workers": [entry("http://a:1")]})(request)

    assert listed({"GET /workers": guarded}, "secret")
    with pytest.raises(VimeOtelError, match="VIME_OTEL_ROUTER_KEY"):
        listed({"GET /workers": guarded})


@pytest.mark.parametrize(
    ("handler", "message"),
    [
        (answer(text="<html>hello</html>"), "no list of workers"),
        (answer(body=[1, 2]), "no list of workers"),
        (answer(body={"something": 1}), "no list of workers"),
        (answer(body={"workers": [{"id": 1}]}), "no list of workers"),
        (answer(body={"workers": None}), "no list of workers"),
        (answer(body={"workers": []}), "no workers yet"),
        (answer(body={"workers": [entry("http://a:1"), entry("grpc://b:2")]}), "the worker grpc://b:2,.*--worker URL"),
        (answer(body={"workers": [entry("http://a:99999")]}), "the worker http://a:99999,"),
        (answer(body={"urls": ["http://[b"]}), "no HTTP URL"),
        (answer(500), "HTTP 500"),
        (answer(404), "HTTP 404"),
        (hang_up, "closed the connection"),
        (never, "timed out"),
    ],
)
def test_each_failure_has_one_clear_line(handler, message) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(VimeOtelError, match=message) as caught:
        listed({"GET /workers": handler}, timeout_s=0.5)
    assert "\n" not in str(caught.value)


def test_an_unreachable_router_is_named_with_the_way_out() -> None:
    async def run() -> None:
        async with new_session() as session:
            await list_workers(session, closed_port_url())

    with pytest.raises(VimeOtelError, match=r"connection refused.*Router launched at"):
        asyncio.run(run())


def test_a_key_and_a_user_name_contradict_each_other() -> None:
    async def run() -> None:
        async with new_session() as session:
            await list_workers(session, "http://me:hunter2@router:3521", api_key="key")

    with pytest.raises(
        UsageError, match="http://router:3521 has a user name, and there is VIME_OTEL_ROUTER_KEY"
    ) as told:
        asyncio.run(run())
    assert "hunter2" not in str(told.value)


def test_proxy_variables_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", closed_port_url())
    monkeypatch.setenv("HTTP_PROXY", closed_port_url())
    assert listed({"GET /workers": answer(body={"workers": [entry("http://a:1")]})})


@pytest.mark.parametrize(("same", "expected"), [(True, "http://127.0.0.1:1"), (False, "http://127.0.0.1.example:1")])
def test_loopback_means_the_routers_host(monkeypatch: pytest.MonkeyPatch, same: bool, expected: str) -> None:
    monkeypatch.setattr(router, "is_this_machine", lambda host: same)
    monkeypatch.setattr(router, "with_host", lambda url, host: url.replace(host, f"{host}.example"))
    body = {"workers": [entry("http://127.0.0.1:1"), entry("http://10.0.0.9:1")]}
    found = listed({"GET /workers": answer(body=body)})
    assert [worker.url for worker in found] == [expected, "http://10.0.0.9:1"]


def test_named_workers_come_first_and_the_limit_last() -> None:
    async def run(limit: int | None) -> list[str]:
        body = {"workers": [entry("http://a:1"), entry("http://b:2"), entry("http://c:3")]}
        async with serving({"GET /workers": answer(body=body)}) as url, new_session() as session:
            return [worker.url for worker in await find_workers(session, url, ["http://b:2", "http://z:9"], limit)]

    assert asyncio.run(run(None)) == ["http://b:2", "http://z:9", "http://a:1", "http://c:3"]
    assert asyncio.run(run(2)) == ["http://b:2", "http://z:9"]


def test_neither_router_nor_worker_is_wrong_usage() -> None:
    async def run() -> None:
        async with new_session() as session:
            await find_workers(session, None)

    with pytest.raises(UsageError, match="--router"):
        asyncio.run(run())
