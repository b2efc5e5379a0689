"""`workers` and `profile` against stand-ins for router, workers and collector."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from aiohttp import web
from standins import answer, closed_port_url, serving_in_thread

from collector.addresses import addresses_of, host_and_port
from vime_otel.cli.main import main


def router_of(*urls: str) -> dict[str, object]:
    workers = [{"url": url, "model_id": "m", "worker_type": "regular", "is_healthy": True} for url in urls]
    return {"GET /workers": answer(body={"workers": workers})}


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """The settings of whoever runs the tests stay out of them."""
    for name in ("VIME_OTEL_COLLECTOR", "VIME_OTEL_TOKEN", "VIME_OTEL_ROUTER_KEY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def two_workers() -> Iterator[list[str]]:
    """One worker that starts, one that was started without --profiler-config."""
    good = {
        "GET /version": answer(body={"version": "0.32.0"}),
        "POST /start_profile": answer(),
        "POST /stop_profile": answer(),
    }
    with serving_in_thread(good, {}) as urls:
        yield urls


def test_profile_reaches_every_worker_and_tells_each_outcome(
    two_workers: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with serving_in_thread(router_of(*two_workers)) as (router,):
        assert main(["profile", "start", "--router", router]) == 1
        text = capsys.readouterr().out
        assert f"{two_workers[0]}  started" in text
        assert f"{two_workers[1]}  no route" in text
        assert "--profiler-config" in text
        assert f"next: vime-otel profile stop --router {router}" in text
        assert main(["profile", "start", "--router", router, "--limit", "1"]) == 0


def test_profile_as_json(two_workers: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "stop", "--worker", two_workers[0], "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["action"] == "stop"
    assert [(each["url"], each["state"], each["ok"]) for each in content["workers"]] == [
        (two_workers[0], "stopped", True)
    ]


def test_an_unreachable_router_is_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "start", "--router", closed_port_url()]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1


def test_workers_shows_who_has_a_recorder(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    port = host_and_port(closed_port_url())[1]
    recorder = {
        "engine": "0123456789abcdef",
        "label": f"127.0.0.1:{port}/0",
        "addresses": sorted(addresses_of("127.0.0.1")),
        "api_ports": [port],
        "model": "m",
        "vllm_version": "0.32.0",
        "phase": "idle",
    }
    stranger = {**recorder, "engine": "f" * 16, "label": "10.9.9.9:1/0", "addresses": ["10.9.9.9"], "api_ports": [1]}

    async def recorders(request: web.Request) -> web.StreamResponse:
        if request.headers.get("Authorization") != "Bearer secret":
            return web.Response(status=401)
        return web.json_response({"recorders": [recorder, stranger]})

    routes = router_of(f"http://127.0.0.1:{port}", "http://127.0.0.1:9")
    with serving_in_thread(routes, {"GET /control/v1/recorders": recorders}) as (router, collector):
        args = ["workers", "--router", router, "--collector", collector]
        assert main(args) == 0
        text = capsys.readouterr().out
        assert "asks for a token; set VIME_OTEL_TOKEN" in text
        assert "next:" not in text

        monkeypatch.setenv("VIME_OTEL_TOKEN", "secret")
        assert main(args) == 0
        text = capsys.readouterr().out
        assert f"127.0.0.1:{port}/0 (idle)" in text
        assert f"VIME_OTEL_COLLECTOR={collector} not set there" in text
        assert "recorder 10.9.9.9:1/0 (ports 1) belongs to none" in text
        assert text.endswith(f"next: vime-otel collect --router {router} --collector {collector}\n")
        assert main([*args, "--limit", "1"]) == 0
        text = capsys.readouterr().out
        assert f"next: vime-otel collect --router {router} --limit 1 --collector {collector}\n" in text

        assert main([*args, "--json"]) == 0
        content = json.loads(capsys.readouterr().out)
        assert [worker["recorders"] for worker in content["workers"]] == [[f"127.0.0.1:{port}/0"], []]
        assert content["unmatched_recorders"] == ["10.9.9.9:1/0"]


@pytest.mark.parametrize("collector_routes", [None, {}, {"GET /control/v1/recorders": answer(text="?")}])
def test_workers_without_a_collector(
    capsys: pytest.CaptureFixture[str], collector_routes: dict[str, object] | None
) -> None:
    with serving_in_thread(router_of("http://127.0.0.1:9"), collector_routes or {}) as (router, collector):
        url = closed_port_url() if collector_routes is None else collector
        assert main(["workers", "--router", router, "--collector", url]) == 0
    text = capsys.readouterr().out
    assert "recorders unknown: " in text
    assert ("vime-otel serve" in text) == (collector_routes is None)
    # Where nobody listens collect can do it itself, at the place that was asked.
    place = f"--http {url.removeprefix('http://')}"
    assert (f"next: vime-otel collect --router {router} {place}\n" in text) == (collector_routes is None)


def test_the_health_of_named_workers_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    nobody = closed_port_url()
    with serving_in_thread({"GET /health": answer()}, {"GET /health": answer(503)}) as (well, ill):
        args = ["workers", "--worker", well, "--worker", f"{well}/v1/", "--worker", ill, "--worker", nobody, "--json"]
        assert main(args) == 0
        listed = json.loads(capsys.readouterr().out)["workers"]
        assert [(each["url"], each["healthy"]) for each in listed] == [(well, True), (ill, False), (nobody, False)]
    assert main(["workers", "--worker", nobody]) == 1
    assert "unreachable (connection refused)" in capsys.readouterr().out


def test_passwords_in_urls_are_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    url = closed_port_url().replace("://", "://me:pw@")
    main(["workers", "--worker", url, "--collector", url])
    main(["workers", "--router", url])
    main(["profile", "start", "--worker", url])
    captured = capsys.readouterr()
    assert "pw" not in captured.out + captured.err


def test_refused_recorders_explain_a_missing_one(capsys: pytest.CaptureFixture[str]) -> None:
    listed = {"recorders": [], "refused": [{"address": "10.0.0.7", "count": 3, "last_seen_seconds": 0.5}]}
    with serving_in_thread({"GET /control/v1/recorders": answer(body=listed)}) as (collector,):
        main(["workers", "--worker", closed_port_url(), "--collector", collector])
    assert "none: recorders call from 10.0.0.7 with a missing or wrong token" in capsys.readouterr().out
