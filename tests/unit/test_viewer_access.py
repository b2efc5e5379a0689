"""Who is answered, what is taken, and how it is sent."""

from __future__ import annotations

import gzip
import io
from pathlib import Path

import pytest
from flask.testing import FlaskClient
from samples import RECORDING_ID, sample_recording, write_sample
from werkzeug.test import TestResponse

from viewer import uploads
from viewer.app import Config, create_app

RUN = f"/runs/{RECORDING_ID}"


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """A viewer of one run that takes files."""
    write_sample(tmp_path / "runs", torch=True)
    (tmp_path / "scratch").mkdir()
    return Config(tmp_path / "runs", scratch=tmp_path / "scratch")


def client_of(config: Config, **changes: object) -> FlaskClient:
    return create_app(Config(**{**vars(config), **changes})).test_client()  # type: ignore[arg-type]


def bring(client: FlaskClient, content: bytes, name: str = "stacks.txt", **headers: str) -> TestResponse:
    return client.post(f"/api/files?name={name}", data=content, headers=headers)


# Other sites


@pytest.mark.parametrize("address", ["/", "/api/runs", RUN, f"{RUN}/decode.svg", "/assets/x/run.js"])
@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "http://localhost:9999"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "script"},
        {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors", "Sec-Fetch-Dest": "empty"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"},
    ],
)
def test_other_sites_read_nothing(config: Config, address: str, headers: dict[str, str]) -> None:
    answer = client_of(config).get(address, headers=headers)
    assert answer.status_code == 403
    assert "qwen3" not in answer.text
    assert "Access-Control-Allow-Origin" not in answer.headers


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://localhost"},
        {"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors"},
        {"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"},
    ],
)
def test_its_own_pages_and_links_from_elsewhere_are_answered(config: Config, headers: dict[str, str]) -> None:
    assert client_of(config).get(RUN, headers=headers).status_code == 200


def test_another_sites_form_brings_no_file(config: Config) -> None:
    headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    client = client_of(config)
    assert client.post("/api/files", data=b"a 1", headers=headers).status_code == 403
    assert client.post("/api/files", data=b"a 1", headers={"Origin": "https://evil.example"}).status_code == 403
    assert len(client.get("/api/runs").json["runs"]) == 1


# The token


def test_without_the_token_nothing_is_told(config: Config) -> None:
    client = client_of(config, token="secret")
    for address in ("/", RUN, "/api/runs", f"{RUN}/decode.svg", "/api/live", f"/compare?a={RECORDING_ID}"):
        answer = client.get(address)
        assert answer.status_code == 401
        assert "qwen3" not in answer.text
    assert client.get("/", headers={"Cookie": "vime_otel_view=secret"}).status_code == 401
    assert client.get("/?token=").status_code == 401
    assert client.get("/?token=sécret").status_code == 401


def test_the_link_leaves_a_cookie_and_an_address_without_the_token(config: Config) -> None:
    client = client_of(config, token="secret", base_path="/vime")
    answer = client.get(f"/vime{RUN}?kind=prefill&token=secret&q=a%26b")
    assert (answer.status_code, answer.location) == (302, f"/vime{RUN}?kind=prefill&q=a%26b")
    cookie = answer.headers["Set-Cookie"]
    assert {"HttpOnly", "SameSite=Lax", "Path=/vime"} <= set(cookie.split("; "))
    assert "secret" not in cookie
    assert client.get(f"/vime{RUN}").status_code == 200


def test_scripts_bring_the_token_as_a_bearer(config: Config) -> None:
    client = client_of(config, token="secret")
    assert client.get("/api/runs", headers={"Authorization": "Bearer secret"}).status_code == 200
    assert client.get("/api/runs", headers={"Authorization": "Bearer other"}).status_code == 401


# Below a path


def test_below_a_base_path_every_address_has_it(config: Config) -> None:
    client = client_of(config, base_path="/a/vime")
    assert client.get("/").status_code == 404
    assert client.get("/a/vimeo").status_code == 404
    page = client.get(f"/a/vime{RUN}")
    assert page.status_code == 200
    assert f'data-source="/a/vime/api{RUN}/flamegraph"' in page.text
    assert 'href="/runs' not in page.text
    assert client.get("/a/vime/runs/5eed").location == f"/a/vime{RUN}"


# Files


def test_a_file_that_is_brought_becomes_a_page(config: Config) -> None:
    client = client_of(config)
    answer = bring(client, b"main;work 3\nmain 1\nnonsense\n", name="../../perf.txt")
    assert answer.status_code == 201
    page = client.get(answer.json["address"])
    assert "read from the file perf.txt" in page.text
    assert "1 line of the file is in no format" in page.text
    graph = client.get(f"/api{answer.json['address']}/flamegraph").json
    assert (graph["kind"], graph["unit"], sum(graph["tree"]["self"])) == ("all", "samples", 4)
    assert bring(client, b"main;work 3\nmain 1\nnonsense\n").json["id"] == answer.json["id"]


@pytest.mark.parametrize(
    ("content", "status", "words"),
    [(b"no stacks", 415, "no stacks in it"), (b"{}", 415, "its JSON is neither"), (b"\x1f\x8bxx", 415, "gzip")],
)
def test_a_file_that_holds_nothing_is_refused(config: Config, content: bytes, status: int, words: str) -> None:
    answer = bring(client_of(config), content, name="<b>.txt")
    assert (answer.status_code, words in answer.json["error"]["message"]) == (status, True)


def test_a_file_that_is_too_big_is_refused_before_it_is_read(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "MAX_BYTES", 1000)
    client = client_of(config)
    body = io.BytesIO(b"x" * 10)  # what stands in Content-Length decides, nothing is read
    answer = client.post("/api/files", input_stream=body, environ_overrides={"CONTENT_LENGTH": "1001"})
    assert answer.status_code == 413
    assert body.tell() == 0
    assert client.post("/api/files", input_stream=body, headers={"Transfer-Encoding": "chunked"}).status_code == 411
    bomb = gzip.compress(b"a;b 1\n" * 10_000)
    assert len(bomb) < 1000
    answer = bring(client, bomb)
    assert (answer.status_code, "holds more than" in answer.json["error"]["message"]) == (415, True)
    assert list(config.scratch.iterdir()) == []  # type: ignore[union-attr]


def test_only_the_latest_files_are_kept(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "_KEPT", 3)
    client = client_of(config)
    for number in range(6):
        assert bring(client, b"a;b %d\n" % (number + 1)).status_code == 201
    assert len(list(config.scratch.iterdir())) == 3  # type: ignore[union-attr]
    assert len(client.get("/api/runs").json["runs"]) == 4


def test_a_viewer_without_a_scratch_folder_takes_no_files(config: Config) -> None:
    client = client_of(config, scratch=None)
    assert client.post("/api/files", data=b"a 1").status_code == 405
    assert "File to show" not in client.get("/").text
    assert "File to show" in client_of(config).get("/").text


# How it is sent


def test_text_is_sent_compressed_to_whom_takes_it(config: Config) -> None:
    client = client_of(config)
    for address in (f"/api{RUN}/flamegraph", f"/api{RUN}/steps", RUN, f"{RUN}/decode.folded"):
        plain = client.get(address)
        packed = client.get(address, headers={"Accept-Encoding": "gzip"})
        assert "Content-Encoding" not in plain.headers
        assert packed.headers["Content-Encoding"] == "gzip"
        assert "Accept-Encoding" in packed.headers["Vary"]
        assert gzip.decompress(packed.data) == plain.data
    trace = client.get(f"{RUN}/torch/0a1b2c3d4e5f6071/rank0.pt.trace.json.gz", headers={"Accept-Encoding": "gzip"})
    assert "Content-Encoding" not in trace.headers


def test_what_a_browser_has_is_not_sent_again_until_it_changes(config: Config) -> None:
    client = client_of(config)
    address = f"/api{RUN}/flamegraph?kind=decode"
    tag = client.get(address).headers["ETag"]
    again = client.get(address, headers={"If-None-Match": tag})
    assert (again.status_code, again.data) == (304, b"")
    assert client.get(f"/api{RUN}/flamegraph?kind=prefill", headers={"If-None-Match": tag}).status_code == 200
    (directory,) = config.runs_root.iterdir()
    folded = directory / "decode.folded"
    folded.write_text(folded.read_text() + "step;new 1000\n")
    changed = client.get(address, headers={"If-None-Match": tag})
    assert changed.status_code == 200
    assert "new" in changed.json["tree"]["names"]


def test_scripts_and_styles_are_kept_for_good_under_the_version_in_their_address(config: Config) -> None:
    client = client_of(config)
    page = client.get(RUN).text
    script = page.split('<script src="')[1].split('"')[0]
    answer = client.get(script)
    assert (answer.status_code, answer.headers["Cache-Control"]) == (200, "public, max-age=31536000, immutable")
    assert client.get(script.replace(script.split("/")[2], "0" * 12)).status_code == 404
    assert client.get(RUN).headers["Cache-Control"] == "private, no-cache"


# Links to traces


@pytest.mark.parametrize(
    ("told", "chosen", "expected"),
    [
        (None, "", None),
        ("https://jaeger.example/trace/{trace_id}", "", "https://jaeger.example/trace/{trace_id}"),
        ("https://a.example/{trace_id}", "http://tempo/{trace_id}", "http://tempo/{trace_id}"),
        ("javascript:alert('{trace_id}')", "", None),
        ("https://jaeger.example/trace/", "", None),
        ("data:text/html,{trace_id}", "", None),
        ("https://[{trace_id}", "", None),
    ],
)
def test_only_links_to_web_pages_are_passed_on(
    tmp_path: Path, told: str | None, chosen: str, expected: str | None
) -> None:
    write_sample(tmp_path, sample_recording(trace_link=told))
    client = create_app(Config(tmp_path, trace_link=chosen)).test_client()
    assert client.get(f"/api{RUN}/steps").json["trace_link"] == expected
