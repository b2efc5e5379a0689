"""Nothing outside the runs directory, no foreign host, no name that becomes markup."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from flask.testing import FlaskClient
from samples import ENGINES, RECORDING_ID, sample_recording, write_sample

from viewer.app import Config, create_app
from viewer.security import HEADERS

SECRET = "the secret outside"
TRACE = f"/runs/{RECORDING_ID}/torch"


@pytest.fixture(scope="module")
def pattern(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a runs directory, beside which lie a secret and another run."""
    folder = tmp_path_factory.mktemp("pattern")
    (folder / "secret.json").write_text(SECRET)
    write_sample(folder / "outside", sample_recording(id="0ff" + "0" * 13, label=SECRET))
    write_sample(folder / "runs", torch=True)
    return folder


@pytest.fixture
def runs(pattern: Path, tmp_path: Path) -> Path:
    """A test's own copy of that runs directory, and of what lies beside it."""
    return shutil.copytree(pattern, tmp_path / "copy") / "runs"


@pytest.mark.parametrize(
    "address",
    [
        f"{TRACE}/../../../secret.json",
        f"{TRACE}/..%2f..%2f..%2fsecret.json",
        f"{TRACE}/%2e%2e/%2e%2e/%2e%2e/secret.json",
        f"{TRACE}//secret.json",
        f"{TRACE}/{ENGINES[0]}/../../recording.json",
        "/runs/..",
        "/runs/%2e%2e%2foutside",
        "/runs/../outside/decode.folded",
        "/runs/.",
        "/runs/0ff",
        "/static/../app.py",
        "/static/..%2fapp.py",
        "/api/runs/..",
        f"/runs/{RECORDING_ID}/..%2f..%2foutside%2fdecode.folded",
        f"/runs/{RECORDING_ID}/decode.folded?rank=../../../outside",
        f"/runs/{RECORDING_ID}/..%2f..%2foutside.json",
        f"/runs/{RECORDING_ID}/decode.../../../secret.json",
        f"/api/runs/{RECORDING_ID}/flamegraph?rank=..%2f..%2f..%2foutside",
        f"/api/runs/{RECORDING_ID}/ranks?rank=../../outside",
        f"/api/compare?a={RECORDING_ID}&b=..%2foutside",
        f"/compare?a={RECORDING_ID}&b_rank=../../outside",
        "/compare?a=../outside",
        "/api/live/..",
        "/api/live/..%2foutside",
        "/api/live/%2e%2e/flamegraph",
        "/assets/x/..%2f..%2fapp.py",
        "/assets/../app.py",
    ],
)
def test_paths_lead_nowhere_else(runs: Path, address: str) -> None:
    answer = create_app(runs).test_client().get(address, follow_redirects=True)
    assert answer.status_code in {400, 404}
    assert SECRET not in answer.text
    assert "create_app" not in answer.text


def test_a_run_that_is_a_link_out_is_not_there(runs: Path) -> None:
    target = next((runs.parent / "outside").iterdir())
    (runs / target.name).symlink_to(target)
    _assert_unseen(create_app(runs).test_client(), "0ff")


@pytest.mark.parametrize("name", ["decode.folded", "decode.calls", "steps.json", "recording.json", "ranks"])
def test_a_run_that_holds_a_link_out_is_not_there(runs: Path, name: str) -> None:
    run = next(runs.iterdir())
    outside = next((runs.parent / "outside").iterdir())
    if name == "ranks":
        (run / name).rename(run / "old")
    else:
        (run / name).unlink()
    (run / name).symlink_to(outside / name)
    _assert_unseen(create_app(runs).test_client(), RECORDING_ID)


@pytest.mark.parametrize("name", ["progress.json", "spans.otlp", ""])
def test_a_recording_under_way_that_holds_a_link_out_is_not_there(runs: Path, name: str) -> None:
    outside = runs.parent / "outside" / "under-way"
    outside.mkdir()
    progress = {"id": "a" * 16, "state": SECRET, "message": "", "engines": []}
    (outside / "progress.json").write_text(json.dumps(progress))
    (outside / "spans.otlp").write_bytes(b"VOTJ\1")
    folder = runs / "under-way"
    if name:
        folder.mkdir()
        (folder / name).symlink_to(outside / name)
        if name != "progress.json":
            (folder / "progress.json").write_text(json.dumps(progress))
    else:
        folder.symlink_to(outside)
    client = create_app(runs).test_client()
    assert client.get("/api/live").json == {"recordings": []}
    assert client.get("/api/live/under-way/flamegraph").status_code == 404
    assert SECRET not in client.get("/").text


def test_a_torch_trace_that_is_a_link_out_is_not_there(runs: Path) -> None:
    folder = next(runs.iterdir()) / "torch" / ENGINES[0]
    (folder / "stolen.json").symlink_to(runs.parent / "secret.json")
    (folder / "loop.json").symlink_to(folder / "loop.json")
    client = create_app(runs).test_client()
    page = client.get(f"/runs/{RECORDING_ID}")
    assert page.status_code == 200
    assert "stolen.json" not in page.text
    assert "rank0.pt.trace.json.gz" in page.text
    assert client.get(f"{TRACE}/{ENGINES[0]}/stolen.json").status_code == 404


def test_a_link_within_the_runs_directory_is_followed(runs: Path) -> None:
    folder = next(runs.iterdir()) / "torch" / ENGINES[0]
    (folder / "again.trace.json.gz").symlink_to(folder / "rank0.pt.trace.json.gz")
    answer = create_app(runs).test_client().get(f"{TRACE}/{ENGINES[0]}/again.trace.json.gz")
    assert (answer.status_code, answer.data) == (200, (folder / "rank0.pt.trace.json.gz").read_bytes())


def test_a_runs_directory_that_is_itself_a_link_works(runs: Path) -> None:
    (runs.parent / "link").symlink_to(runs)
    assert create_app(runs.parent / "link").test_client().get(f"/runs/{RECORDING_ID}").status_code == 200


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:8080", "LOCALHOST", "127.0.0.1:1", "[::1]:8080", "viewer.lan:80"]
)
def test_known_hosts_are_answered(runs: Path, host: str) -> None:
    client = create_app(Config(runs, allowed_hosts=["viewer.lan"])).test_client()
    assert client.get("/", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:80", "localhost.evil.example", "evil@localhost", "127.0.0.1:80:80", "10.0.0.1"],
)
def test_other_hosts_are_refused_everywhere(runs: Path, host: str) -> None:
    client = create_app(runs).test_client()
    for address in ("/", "/api/runs", "/compare?a=5eed", "/static/style.css"):
        answer = client.get(address, headers={"Host": host})
        assert answer.status_code == 403
        assert "qwen3" not in answer.text
    assert "host" in client.get("/api/runs", headers={"Host": host}).json["error"]["message"]


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("10.0.0.1:8080", 200),
        ("[fd00::1]:8080", 200),
        ("localhost", 200),
        ("evil.example", 403),
        ("10.0.0.1.evil.example", 403),
        ("[evil]", 403),
        ("1.2.3", 403),
        ("[10.0.0.1", 403),
        ("", 403),
    ],
)
def test_beyond_loopback_any_address_is_a_known_host_and_no_name(runs: Path, host: str, status: int) -> None:
    client = create_app(Config(runs, any_address=True)).test_client()
    assert client.get("/", headers={"Host": host}).status_code == status


@pytest.mark.parametrize("kind", ["../../outside/{}/decode", "decode/../decode", ""])
def test_a_kind_is_no_path(runs: Path, kind: str) -> None:
    kind = kind.format(next((runs.parent / "outside").iterdir()).name)
    path = next(runs.iterdir()) / "steps.json"
    path.write_text(json.dumps({"steps": {kind: 1}, "rows": []}))
    client = create_app(runs).test_client()
    answer = client.get(f"/api/runs/{RECORDING_ID}/flamegraph", query_string={"kind": kind})
    assert answer.status_code == 500
    assert "steps.json: Expected `str` matching regex" in answer.json["error"]["message"]


@pytest.mark.parametrize(
    "address",
    ["/", "/api/runs", f"/runs/{RECORDING_ID}", "/nothing", "/static/style.css", f"/runs/{RECORDING_ID}/decode.svg"],
)
def test_every_answer_carries_the_protecting_headers(runs: Path, address: str) -> None:
    headers = create_app(runs).test_client().get(address).headers
    assert {name: headers[name] for name in HEADERS} == HEADERS
    assert "unsafe" not in headers["Content-Security-Policy"]
    assert "Cross-Origin-Opener-Policy" not in headers  # it would break the hand-over to Perfetto


def test_names_from_a_recording_never_become_markup(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>\"'>"
    recording = sample_recording({f"step;execute_model;{evil}": (9000, 3)}, label=evil, reasons=[evil], complete=False)
    recording.header["engines"][0].update(label=evil, model=evil, host=evil, errors=[evil], execution=evil)
    recording.header["engines"][0]["hooks"]["missing"] = [evil]
    write_sample(tmp_path, recording)
    client = create_app(tmp_path).test_client()
    for address in ("/", f"/runs/{RECORDING_ID}", f"/runs/{RECORDING_ID}/decode.svg", "/runs/<script>alert(1)"):
        text = client.get(address).text
        assert "<script>alert" not in text
        assert "&lt;script&gt;" in text


def test_the_pages_hold_no_inline_script_or_style(runs: Path) -> None:
    text = create_app(runs).test_client().get(f"/runs/{RECORDING_ID}").text
    assert re.findall(r"<script(?![^>]*\bsrc=)", text) == []
    assert re.findall(r"<style|\sstyle=|\son\w+=", text) == []


def test_everything_the_page_loads_is_shipped(runs: Path) -> None:
    client = create_app(runs).test_client()
    text = client.get(f"/runs/{RECORDING_ID}").text
    loaded = re.findall(r'<(?:script|link|img)[^>]*(?:src|href)="([^"]+)"', text)
    assert len(loaded) >= 5
    for address in loaded:
        assert client.get(address).status_code == 200, address


def _assert_unseen(client: FlaskClient, which: str) -> None:
    assert client.get(f"/runs/{which}").status_code == 404
    assert client.get(f"/api/runs/{which}").status_code == 404
    assert SECRET not in client.get("/").text
    assert client.get("/api/runs").status_code == 200
