"""The JSON API: what it answers, and the one shape of its errors."""

from __future__ import annotations

from pathlib import Path

import pytest
from flask.testing import FlaskClient
from samples import ENGINES, RECORDING_ID, sample_recording, write_sample

from viewer.app import create_app
from vime_otel.data.rundir import RunDirectory


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A runs directory with two runs whose ids begin alike."""
    root = tmp_path_factory.mktemp("runs")
    write_sample(root, torch=True)
    write_sample(root, sample_recording(id="5eef" + "0" * 12, complete=False, reasons=["why"]))
    return root


@pytest.fixture(scope="module")
def client(root: Path) -> FlaskClient:
    """A client of its viewer."""
    return create_app(root).test_client()


def test_the_runs_are_listed(client: FlaskClient) -> None:
    runs = {run["id"]: run for run in client.get("/api/runs").json["runs"]}
    assert runs[RECORDING_ID]["steps"] == {"decode": 36, "prefill": 4}
    assert runs[RECORDING_ID]["ms_per_step"]["decode"] == pytest.approx(12.19, abs=0.01)
    assert runs["5eef" + "0" * 12]["reasons"] == ["why"]


def test_a_run_is_found_by_the_beginning_of_its_id(client: FlaskClient) -> None:
    run = client.get("/api/runs/5eed").json
    assert run["header"]["engines"][0]["model"] == "Qwen/Qwen3-30B-A3B"
    assert [rank["name"] for rank in run["ranks"]] == [f"{engine}-{rank}" for engine in ENGINES for rank in "01"]
    assert run["rows"] == 40
    names = [trace["name"] for trace in run["torch"]["files"]]
    assert names == [f"{ENGINES[0]}/rank{rank}.pt.trace.json.gz" for rank in "01"]


def test_a_flame_graph_adds_up_to_the_folded_file(client: FlaskClient, root: Path) -> None:
    graph = client.get("/api/runs/5eed/flamegraph?kind=prefill").json
    run = next(RunDirectory(path) for path in root.iterdir() if "5eed" in path.name)
    assert (graph["kind"], graph["steps"], max(graph["tree"]["depth"])) == ("prefill", 4, 7)
    assert sum(graph["tree"]["self"]) == sum(run.self_us("prefill").values())


def test_a_ranks_flame_graph_counts_its_own_engines_steps(client: FlaskClient) -> None:
    graph = client.get(f"/api/runs/5eed/flamegraph?rank={ENGINES[0]}-1").json
    assert (graph["kind"], graph["steps"]) == ("decode", 18)
    assert graph["tree"]["calls"][0] == 18


@pytest.mark.parametrize(
    ("address", "status", "words"),
    [
        ("/api/runs/ffff", 404, "no run 'ffff'"),
        ("/api/runs/5ee", 400, "fits 2 runs"),
        ("/api/runs/5eed/flamegraph?kind=idle", 400, "has no idle steps; it has decode, prefill"),
        ("/api/runs/5eed/flamegraph?rank=../..", 400, "no rank '../..'"),
        ("/api/runs/2025", 400, "fits 2 runs"),
        ("/api/none", 404, "not found"),
        ("/api/runs/5eed/flamegraph?steps=x", 400, "'x' is no range of steps such as 12 or 12-40"),
        ("/api/runs/5eed/flamegraph?steps=900-901", 400, "no step fits this choice"),
        ("/api/runs/5eed/flamegraph?mixed=maybe", 400, "mixed steps can be in, out, only"),
        ("/api/runs/5eed/flamegraph?layers=1", 400, "does not tell layers apart"),
        ("/api/runs/5eed/flamegraph?colour=red", 400, "unknown in the query: colour"),
        ("/api/compare", 400, "a=ID&b=ID"),
        ("/api/compare?a=5eed&b=ffff", 404, "no run 'ffff'"),
        ("/api/compare?a=5eed&kind=all", 404, "no all steps in common"),
        ("/api/compare?a=5eed&c=5eed", 400, "unknown in the query: c"),
        ("/api/live/none", 404, "no recording 'none' is under way"),
    ],
)
def test_errors_have_one_shape(client: FlaskClient, address: str, status: int, words: str) -> None:
    answer = client.get(address)
    assert answer.status_code == status
    assert list(answer.json) == ["error"]
    assert list(answer.json["error"]) == ["message"]
    assert words in answer.json["error"]["message"]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
@pytest.mark.parametrize("address", ["/api/runs", "/api/runs/5eed", "/", f"/runs/{RECORDING_ID}"])
def test_nothing_can_be_changed(client: FlaskClient, method: str, address: str) -> None:
    answer = client.open(address, method=method)
    assert answer.status_code == 405
    assert "GET" in answer.headers["Allow"]
    assert (answer.mimetype == "application/json") == address.startswith("/api")


def test_a_fault_of_the_viewer_shows_no_traceback(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> dict[str, int]:
        raise ZeroDivisionError

    write_sample(tmp_path)
    monkeypatch.setattr(RunDirectory, "self_us", fail)
    answer = create_app(tmp_path).test_client().get("/api/runs/5eed/flamegraph")
    assert answer.status_code == 500
    assert answer.json == {"error": {"message": "the viewer failed on this (ZeroDivisionError); its log says where"}}
    assert "ZeroDivisionError" in caplog.text


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    directory = write_sample(tmp_path)
    (directory / "decode.folded").write_bytes(b"step;\xff 1\n")
    answer = create_app(tmp_path).test_client().get("/api/runs/5eed/flamegraph")
    assert answer.status_code == 500
    assert answer.json is not None
    assert "decode.folded can't be read" in answer.json["error"]["message"]
