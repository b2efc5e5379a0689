"""Starting and stopping the collector, who may come in, and the commands' client."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import grpc
import pytest
import requests
from running_collector import ControlClient, config, running
from simulated_recorder import SimulatedRecorder
from standins import answer, closed_port_url, serving

from collector.client import Client
from collector.recordings.messages import RecordingRequest
from collector.recordings.refused import RefusedPolls
from collector.server import Collector
from vime_otel.data.errors import UsageError, VimeOtelError
from vime_otel.demo.ports import free_port, is_free

TOKEN = "a token of these tests"
EXPORT = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"


def start_and_stop(**changes: Any) -> None:
    async def run() -> None:
        collector = Collector(config(**changes))
        await collector.start()
        await collector.stop()

    asyncio.run(run())


def test_ports_are_told_and_free_again_afterwards(tmp_path: Path) -> None:
    with running(config(tmp_path)) as running_collector:
        collector = running_collector.collector
        ports = (collector.http_port, collector.grpc_port)
        assert 0 not in ports
        assert collector.url == f"http://127.0.0.1:{collector.http_port}"
        assert collector.grpc_address == f"127.0.0.1:{collector.grpc_port}"
        assert requests.get(f"{collector.url}/control/v1/recorders", timeout=10).json()["recorders"] == []
    for port in ports:
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", port)) != 0
    start_and_stop(runs_root=tmp_path, http_port=ports[0], grpc_port=ports[1])


def test_stopping_twice_or_unstarted_is_fine(tmp_path: Path) -> None:
    async def run() -> None:
        collector = Collector(config(tmp_path))
        await collector.stop()
        collector = Collector(config(tmp_path))
        await collector.start()
        await collector.stop()
        await collector.stop()

    asyncio.run(run())


@pytest.mark.parametrize(("which", "option"), [("http_port", "--http"), ("grpc_port", "--grpc")])
def test_a_port_in_use_is_told_and_the_other_listener_closed(tmp_path: Path, which: str, option: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        other = "grpc_port" if which == "http_port" else "http_port"
        free = free_port()
        with pytest.raises(VimeOtelError) as told:
            start_and_stop(runs_root=tmp_path, **{which: taken.getsockname()[1], other: free})
        assert "Address already in use" in str(told.value)
        assert f"{option} HOST:PORT" in str(told.value)
        assert is_free(free)


@pytest.mark.parametrize("host", ["256.1.1.1", "no.such.host.invalid"])
def test_a_host_that_is_not_ours_is_told(tmp_path: Path, host: str) -> None:
    with pytest.raises(VimeOtelError, match="can't listen on"):
        start_and_stop(runs_root=tmp_path, http_host=host, insecure=True)


def test_listening_everywhere_others_are_told_an_address_that_is_not_loopback(tmp_path: Path) -> None:
    with running(config(tmp_path, http_host="0.0.0.0", insecure=True)) as running_collector:
        collector = running_collector.collector
        assert collector.local_url == f"http://127.0.0.1:{collector.http_port}"
        assert requests.get(f"{collector.local_url}/control/v1/recorders", timeout=10).status_code == 200
        assert not collector.url.startswith(("http://0.0.0.0", "http://127."))


@pytest.mark.parametrize("which", ["http_host", "grpc_host"])
def test_beyond_loopback_a_token_or_consent_is_needed(tmp_path: Path, which: str) -> None:
    with pytest.raises(UsageError, match="VIME_OTEL_TOKEN"):
        start_and_stop(runs_root=tmp_path, **{which: "0.0.0.0"})
    start_and_stop(runs_root=tmp_path, insecure=True, **{which: "0.0.0.0"})
    start_and_stop(runs_root=tmp_path, token=TOKEN, **{which: "0.0.0.0"})


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(VimeOtelError, match="--out DIR"):
        start_and_stop(runs_root=tmp_path / "file" / "runs")


def test_the_token_opens_every_door_and_nothing_else_does(tmp_path: Path) -> None:
    with running(config(tmp_path, token=TOKEN)) as collector:
        requests_of = [("GET", "/control/v1/recorders"), ("POST", "/v1/traces"), ("POST", "/v1/logs"), ("GET", "/x")]
        for authorization in (None, "", TOKEN, f"Bearer {TOKEN}x", "Bearer ", "Bearer \xff", f"Basic {TOKEN}"):
            headers = {"Content-Type": "application/json"}
            if authorization is not None:
                headers["Authorization"] = authorization
            for method, path in requests_of:
                refused = requests.request(method, f"{collector.url}{path}", headers=headers, data=b"{}", timeout=10)
                assert refused.status_code == 401
                assert "VIME_OTEL_TOKEN" in refused.text
                assert TOKEN not in refused.text
                assert refused.headers["WWW-Authenticate"] == "Bearer"
        for scheme in ("Bearer", "bearer"):
            right = {"Authorization": f"{scheme} {TOKEN}", "Content-Type": "application/json"}
            assert requests.post(f"{collector.url}/v1/traces", headers=right, data=b"{}", timeout=10).status_code == 200
        with grpc.insecure_channel(collector.collector.grpc_address) as channel:
            export = channel.unary_unary(EXPORT)
            for metadata in ([], [("authorization", TOKEN)], [("authorization", f"Bearer {TOKEN}x")]):
                with pytest.raises(grpc.RpcError) as error:
                    export(b"", metadata=metadata, timeout=10)
                assert error.value.code() is grpc.StatusCode.UNAUTHENTICATED
            assert export(b"", metadata=[("authorization", f"Bearer {TOKEN}")], timeout=10) == b""
        with SimulatedRecorder(collector.url, token=TOKEN):
            assert ControlClient(collector.url, TOKEN).record(steps=2)["complete"] is True


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1", 200), ("localhost:1", 200), ("LOCALHOST", 200), ("[::1]:4318", 200), ("127.9.9.9", 200),
        ("evil.example:4318", 403), ("127.0.0.1.evil.example", 403), ("10.0.0.1", 403), ("", 403), ("[", 403),
    ],
)  # fmt: skip
def test_on_loopback_only_loopback_names_reach_it(tmp_path: Path, host: str, status: int) -> None:
    with running(config(tmp_path)) as collector:
        for path in ("/control/v1/recorders", "/v1/traces"):
            method, wanted = ("GET", status) if "control" in path else ("POST", status)
            answered = requests.request(
                method, f"{collector.url}{path}", headers={"Host": host, "Content-Type": "application/json"},
                data=b"{}", timeout=10,
            )  # fmt: skip
            assert answered.status_code == wanted
            assert status == 200 or "loopback" in answered.text


def test_beyond_loopback_any_name_will_do(tmp_path: Path) -> None:
    with running(config(tmp_path, http_host="0.0.0.0", token=TOKEN)) as collector:
        headers = {"Host": "node7.example", "Authorization": f"Bearer {TOKEN}"}
        url = f"{collector.collector.local_url}/control/v1/recorders"
        assert requests.get(url, headers=headers, timeout=10).status_code == 200


def test_refused_polls_are_remembered_within_bounds() -> None:
    refused = RefusedPolls(60)
    for number in range(1000):
        refused.note(f"10.0.{number // 250}.{number % 250}")
    refused.note("10.0.3.249")
    listed = refused.lately()
    assert len(listed) == 64
    assert (listed[-1]["address"], listed[-1]["count"]) == ("10.0.3.249", 2)
    assert RefusedPolls(0).lately() == []
    forgetful = RefusedPolls(-1)
    forgetful.note("10.0.0.1")
    assert forgetful.lately() == []


def test_the_client_asks_and_tells(tmp_path: Path) -> None:
    async def follow(url: str) -> None:
        async with Client(url, TOKEN) as client:
            assert await client.recorders() == {"recorders": [], "refused": []}
            recording = await client.start(RecordingRequest(workers=("http://127.0.0.1:1",)))
            assert (await client.show(recording["id"]))["state"] == "waiting"
            assert (await client.stop(recording["id"]))["id"] == recording["id"]
            with pytest.raises(VimeOtelError, match="there is no recording"):
                await client.show("0" * 16)
        for token, told in (("", "asks for a token; set"), ("wrong", "asks for another token; mend")):
            async with Client(url, token) as client:
                with pytest.raises(VimeOtelError, match=f"{told} VIME_OTEL_TOKEN"):
                    await client.recorders()

    with running(config(tmp_path, token=TOKEN)) as collector:
        asyncio.run(follow(collector.url))


def test_the_client_tells_who_does_not_answer() -> None:
    async def ask(url: str) -> None:
        async with Client(url, "") as client:
            await client.recorders()

    with pytest.raises(VimeOtelError, match=r"start one with `vime-otel serve --http 127\.0\.0\.1:"):
        asyncio.run(ask(closed_port_url()))

    async def ask_another(status: int, text: str) -> None:
        async with serving({"GET /control/v1/recorders": answer(status, text=text)}) as url:
            await ask(url)

    for status, text in ((200, "hello"), (404, "Not Found"), (500, "{}"), (200, "[]"), (200, "{}")):
        with pytest.raises(VimeOtelError, match="it is no vime-otel collector"):
            asyncio.run(ask_another(status, text))
