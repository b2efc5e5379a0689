"""TLS and the token on both ports: right, wrong and missing, with the real recorder and clients over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import requests
from certificates import Authority, key_bytes, make_authority
from click.testing import CliRunner
from cryptography.hazmat.primitives import serialization
from fake_port import FakePort, step
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import TraceServiceStub
from running_collector import config, running, until
from standins import answer, serving

from collector.client import Client
from collector.server import Collector
from collector.tls import ServerTls
from vime_otel.cli.serve import serve
from vime_otel.data import settings
from vime_otel.data.errors import UsageError, VimeOtelError
from vime_otel.recorder.collector_door import CollectorDoor
from vime_otel.recorder.engine import EngineRecorder

TOKEN = "s3cret-of-these-tests"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return make_authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def other_authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return make_authority(tmp_path_factory.mktemp("other"), "other")


@pytest.fixture(scope="module")
def server(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> ServerTls:
    return authority.issue(tmp_path_factory.mktemp("server"), "127.0.0.1", "localhost")


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> EngineRecorder:
    monkeypatch.setattr("vime_otel.recorder.collector_door.RETRY_SECONDS", (0.05, 0.1))
    monkeypatch.setattr("vime_otel.recorder.collector_door.IDLE_WAIT_SECONDS", 0.5)
    return EngineRecorder(FakePort())


@contextlib.contextmanager
def opened(recorder: EngineRecorder, url: str, token: str) -> Iterator[CollectorDoor]:
    door = CollectorDoor(recorder, url, token)
    door.start()
    try:
        yield door
    finally:
        door.close()
        door.join()


def ask(url: str, call: Callable[[Client], Any], token: str = TOKEN) -> Any:
    async def asked() -> Any:
        async with Client(url, token) as client:
            return await call(client)

    return asyncio.run(asked())


def recorders(url: str, token: str = TOKEN) -> Any:
    return ask(url, lambda client: client.recorders(), token)["recorders"]


def test_a_recording_goes_all_the_way_over_tls(
    recorder: EngineRecorder, authority: Authority, server: ServerTls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(settings.CA.name, str(authority.file))
    with running(config(tmp_path, tls=server, token=TOKEN)) as collector, opened(recorder, collector.url, TOKEN):
        assert collector.url.startswith("https://")
        headers = {"Authorization": f"Bearer {TOKEN}"}
        until(lambda: recorders(collector.url))

        def call(method: str, path: str, **how: Any) -> Any:
            url = f"{collector.url}/control/v1{path}"
            return requests.request(method, url, headers=headers, verify=str(authority.file), timeout=10, **how).json()

        recording = call("POST", "/recordings", json={"steps": 2, "timeout_seconds": 20})["id"]
        until(lambda: recorder.status.phase == "armed")
        step(recorder, "prefill", at=1000)
        step(recorder, at=1010)
        shown = until(lambda: found if (found := call("GET", f"/recordings/{recording}"))["state"] == "done" else None)
    assert (shown["complete"], shown["reasons"]) == (True, [])
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and TOKEN.encode() in path.read_bytes()]


@pytest.mark.parametrize("trusts", ["another authority", "the system's"])
def test_a_recorder_that_does_not_trust_the_collector_sends_nothing_and_says_what_to_set(
    trusts: str,
    recorder: EngineRecorder,
    other_authority: Authority,
    server: ServerTls,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if trusts == "another authority":
        monkeypatch.setenv(settings.CA.name, str(other_authority.file))
    with running(config(tmp_path, tls=server, token=TOKEN)) as collector:
        with opened(recorder, collector.url, TOKEN):
            until(lambda: "VIME_OTEL_CA" in caplog.text)
        assert collector.collector._recordings.recorders.alive() == []
        with pytest.raises(VimeOtelError, match="is not trusted: set VIME_OTEL_CA"):
            recorders(collector.url)
    assert len([record for record in caplog.records if "not trusted" in record.getMessage()]) == 1
    assert TOKEN not in caplog.text


def test_a_certificate_made_out_to_another_name_is_not_trusted(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(settings.CA.name, str(authority.file))
    named = authority.issue(tmp_path, "collector.example")
    with (
        running(config(tmp_path / "runs", tls=named)) as collector,
        pytest.raises(VimeOtelError, match="a name that stands in the certificate"),
    ):
        recorders(collector.url)


def test_collects_own_client_trusts_its_own_collectors_certificate_whatever_its_name(
    authority: Authority, tmp_path: Path
) -> None:
    named = authority.issue(tmp_path, "collector.example")

    async def ask_own() -> Any:
        collector = Collector(config(tmp_path / "runs", tls=named))
        await collector.start()
        try:
            async with Client(collector.local_url, "", collector.local_context) as client:
                return await client.recorders()
        finally:
            await collector.stop()

    assert asyncio.run(ask_own())["recorders"] == []


def test_a_recorder_that_speaks_plain_http_is_told_of_tls(
    recorder: EngineRecorder, server: ServerTls, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with running(config(tmp_path, tls=server)) as collector:
        plain = collector.url.replace("https:", "http:")
        with opened(recorder, plain, ""):
            until(lambda: "https://" in caplog.text)
    assert len([record for record in caplog.records if "does it speak TLS" in record.getMessage()]) == 1


def test_a_client_that_speaks_tls_to_plain_http_is_told() -> None:
    async def ask_plain() -> None:
        async with (
            serving({"GET /control/v1/recorders": answer(body={})}) as url,
            Client(url.replace("http:", "https:"), "") as client,
        ):
            await client.recorders()

    with pytest.raises(VimeOtelError, match="speaks no TLS"):
        asyncio.run(ask_plain())


def export_over_grpc(address: str, roots: Path | None, metadata: list[tuple[str, str]]) -> Any:
    """The outcome of an export: the response, or the status code."""
    credentials = grpc.ssl_channel_credentials(roots.read_bytes()) if roots else None
    make = grpc.secure_channel if credentials else grpc.insecure_channel
    with make(address, *([credentials] if credentials else [])) as channel:
        try:
            return TraceServiceStub(channel).Export(ExportTraceServiceRequest(), metadata=metadata, timeout=5)
        except grpc.RpcError as error:
            return error.code()


def test_grpc_takes_the_right_authority_and_token_alone(
    authority: Authority, other_authority: Authority, server: ServerTls, tmp_path: Path
) -> None:
    right = [("authorization", f"Bearer {TOKEN}")]
    with running(config(tmp_path, tls=server, token=TOKEN)) as collector:
        address = collector.collector.grpc_address
        assert export_over_grpc(address, authority.file, right).partial_success.rejected_spans == 0
        assert export_over_grpc(address, authority.file, []) == grpc.StatusCode.UNAUTHENTICATED
        wrong = [("authorization", "Bearer wrong")]
        assert export_over_grpc(address, authority.file, wrong) == grpc.StatusCode.UNAUTHENTICATED
        assert export_over_grpc(address, other_authority.file, right) == grpc.StatusCode.UNAVAILABLE
        assert export_over_grpc(address, None, right) == grpc.StatusCode.UNAVAILABLE


def test_old_tls_is_refused(server: ServerTls) -> None:
    assert server.http_context().minimum_version.name == "TLSv1_2"


def start(tmp_path: Path, files: ServerTls) -> None:
    async def started() -> None:
        await Collector(config(tmp_path / "runs", tls=files)).start()

    asyncio.run(started())


def test_files_that_do_not_do_are_told_before_a_port_opens(
    authority: Authority, server: ServerTls, tmp_path: Path
) -> None:
    other = authority.issue(tmp_path, "other.example")
    text = tmp_path / "text.pem"
    text.write_text("no certificate")
    encrypted = tmp_path / "encrypted.key"
    encrypted.write_bytes(key_bytes(authority.key, serialization.BestAvailableEncryption(b"password")))
    for files, told in (
        (ServerTls(server.certificate, other.key), "do not belong together"),
        (ServerTls(text, server.key), "are no PEM certificate and key"),
        (ServerTls(tmp_path / "none.pem", server.key), r"none\.pem can't be read \(No such file"),
        (ServerTls(server.certificate, encrypted), "the key of --tls-key is encrypted"),
    ):
        with pytest.raises(UsageError, match=told):
            start(tmp_path, files)


def test_one_of_the_two_options_alone_is_refused(tmp_path: Path) -> None:
    result = CliRunner().invoke(serve, ["--tls-cert", str(tmp_path / "c.pem")])
    assert isinstance(result.exception, UsageError)
    assert "go together" in str(result.exception)


def test_a_file_of_authorities_that_does_not_do_is_told(
    recorder: EngineRecorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "text").write_text("no certificate")
    for name, told in (("none", "No such file"), ("text", "it holds no PEM certificate")):
        monkeypatch.setenv(settings.CA.name, str(tmp_path / name))
        with pytest.raises(UsageError, match=told):
            recorders("https://127.0.0.1:1")
        with pytest.raises(UsageError, match=told):
            CollectorDoor(recorder, "https://127.0.0.1:1", "")


def test_the_token_is_in_no_log(
    server: ServerTls, authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with running(config(tmp_path, tls=server, token=TOKEN)) as collector:
        for token in (TOKEN, f"{TOKEN}x"):
            headers = {"Authorization": f"Bearer {token}"}
            requests.post(
                f"{collector.url}/v1/traces", b"junk", headers=headers, verify=str(authority.file), timeout=10
            )
    assert TOKEN not in caplog.text
