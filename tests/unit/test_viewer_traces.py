"""A run's traces on the page: what the manifest says of each, all as one ZIP, the spans as a timeline."""

from __future__ import annotations

import io
import json
import shutil
import zipfile
from pathlib import Path

import pytest
from flask.testing import FlaskClient
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

from viewer.app import create_app
from vime_otel.data.rundir import RunDirectory

RUN = Path(__file__).parents[1] / "data" / "run-v1"
FILES = {"127.0.0.1-1/rank0.1.pt.trace.json.gz": b"one", "127.0.0.1-2/rank0.2.pt.trace.json.gz": b"two" * 700_000}


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    path = tmp_path / "runs" / "20260101T000000Z-x"
    shutil.copytree(RUN, path)
    for name, content in FILES.items():
        (path / "torch" / name).parent.mkdir(parents=True)
        (path / "torch" / name).write_bytes(content)
    return RunDirectory(path)


@pytest.fixture
def client(run: RunDirectory) -> FlaskClient:
    return create_app(run.path.parent).test_client()


def write_manifest(run: RunDirectory, content: object) -> None:
    (run.path / "torch" / "manifest.json").write_text(json.dumps(content))


def test_each_trace_has_its_worker_and_what_is_wrong_with_it(run: RunDirectory, client: FlaskClient) -> None:
    entry = {"file": next(iter(FILES)), "worker": "http://w:1", "rank": 0, "why": "cut off <b>", "note": "too big"}
    missing = {"worker": "http://w:3", "why": "busy & <i>busy</i>"}
    write_manifest(run, {"format": 1, "traces": [entry], "missing": [missing]})
    torch = client.get(f"/api/runs/{run.id}").json["torch"]  # type: ignore[index]
    assert torch["missing"] == [missing]
    assert [(each["worker"], each["remark"]) for each in torch["files"]] == [
        ("http://w:1", "cut off <b>; too big"),
        (None, ""),
    ]
    page = client.get(f"/runs/{run.id}").text
    assert "cut off &lt;b&gt;; too big" in page
    assert "http://w:3 left no whole torch trace: busy &amp; &lt;i&gt;busy&lt;/i&gt;" in page


@pytest.mark.parametrize("content", ["no json", [], {"traces": 5}, {"traces": [{"file": 7}]}, {"missing": [None]}])
def test_a_manifest_that_is_none_is_passed_over(run: RunDirectory, client: FlaskClient, content: object) -> None:
    write_manifest(run, content)
    assert len(client.get(f"/api/runs/{run.id}").json["torch"]["files"]) == 2  # type: ignore[index]


def test_a_manifest_outside_the_runs_is_not_read(run: RunDirectory, client: FlaskClient, tmp_path: Path) -> None:
    outside = tmp_path / "secret.json"
    outside.write_text(json.dumps({"missing": [{"worker": "secret", "why": "x"}]}))
    (run.path / "torch" / "manifest.json").symlink_to(outside)
    assert "secret" not in client.get(f"/runs/{run.id}").text


def test_all_traces_come_as_one_zip_byte_for_byte(run: RunDirectory, client: FlaskClient) -> None:
    response = client.get(f"/runs/{run.id}/torch.zip")
    archive = zipfile.ZipFile(io.BytesIO(response.data))
    assert archive.testzip() is None
    assert {name: archive.read(name.replace("/", "_")) for name in FILES} == FILES


def test_the_recorded_steps_come_as_a_perfetto_trace(run: RunDirectory, client: FlaskClient) -> None:
    response = client.get(f"/runs/{run.id}/spans.pftrace")
    assert any(packet.HasField("track_event") for packet in Trace.FromString(response.data).packet)


def test_a_run_without_either_has_neither(run: RunDirectory, client: FlaskClient) -> None:
    shutil.rmtree(run.path / "torch")
    (run.path / "spans.otlp").unlink()
    assert client.get(f"/runs/{run.id}/torch.zip").status_code == 404
    assert client.get(f"/runs/{run.id}/spans.pftrace").status_code == 404
    assert "profile run" in client.get(f"/runs/{run.id}").text


def test_a_trace_is_served_in_ranges(run: RunDirectory, client: FlaskClient) -> None:
    response = client.get(f"/runs/{run.id}/torch/{list(FILES)[1]}", headers={"Range": "bytes=3-8"})
    assert (response.status_code, response.data) == (206, b"twotwo")
