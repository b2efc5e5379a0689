"""The pages tell people what was recorded, and the downloads hold it."""

from __future__ import annotations

import json
import re
import shutil
from html import escape, unescape
from pathlib import Path
from urllib.parse import unquote

import pytest
from flask.testing import FlaskClient
from samples import ENGINES, RECORDING_ID, by_layer, idle_row, sample_recording, torch_trace, write_sample

from viewer.app import create_app
from vime_otel.data.recording import Recording


def client_of(root: Path) -> FlaskClient:
    return create_app(root).test_client()


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> FlaskClient:
    """A client of a viewer of one complete run."""
    root = tmp_path_factory.mktemp("runs")
    write_sample(root, torch=True)
    return client_of(root)


def test_an_empty_list_names_the_command_that_fills_it(tmp_path: Path) -> None:
    page = client_of(tmp_path / "not yet made").get("/")
    assert page.status_code == 200
    assert "vime-otel collect" in page.text
    assert "not yet made" in page.text


def test_the_list_shows_the_newest_recording_first(tmp_path: Path) -> None:
    write_sample(tmp_path, sample_recording(id="a" * 16, created="2025-01-01T00:00:00Z"))
    write_sample(tmp_path, sample_recording(id="b" * 16, created="2025-01-02T00:00:00Z"))
    text = client_of(tmp_path).get("/").text
    assert 0 < text.index("/runs/" + "b" * 16) < text.index("/runs/" + "a" * 16)


def test_the_list_says_steps_times_and_state(client: FlaskClient) -> None:
    text = client.get("/").text
    for expected in ("2025-11-30 00:00:00 UTC", "qwen3-moe rollout", "36 <span", "4 <span", "12.19<br>", "complete"):
        assert expected in text


def test_a_damaged_run_is_listed_with_what_is_wrong_and_hides_no_other(tmp_path: Path) -> None:
    write_sample(tmp_path)
    wrong = {"reasons": 5, "engines": "x", "label": {}, "created": 7, "spans": [], "overlap_ns": "much", "id": ""}
    headers = ["{nope", '{"format": 99}', '{"format": 1}', "[]"]
    headers += [json.dumps({"format": 1, "id": "a" * 16, key: value}) for key, value in wrong.items()]
    for number, content in enumerate(headers):
        (tmp_path / f"damaged-{number}").mkdir()
        (tmp_path / f"damaged-{number}" / "recording.json").write_text(content)
    client = client_of(tmp_path)
    page = client.get("/")
    assert page.status_code == 200
    assert page.text.count("unreadable") == len(headers)
    for key in wrong:
        assert f"at `$.{key}`; mend it or record again" in page.text
    assert f"/runs/{RECORDING_ID}" in page.text
    assert len(client.get("/api/runs").json["runs"]) == len(headers) + 1
    damaged = client.get("/runs/damaged-5")
    assert damaged.status_code == 500
    assert "recording.json: Expected `array`, got `str` - at `$.engines`" in damaged.text


def test_copies_of_a_run_are_shown_each_at_its_own_address(tmp_path: Path) -> None:
    first = write_sample(tmp_path, torch=True)
    names = [first.name, *(f"copy {number} #?%" for number in range(7))]
    for name in names[1:]:
        shutil.copytree(first, tmp_path / name)
    client = client_of(tmp_path)
    page = client.get("/")
    links = [unescape(link) for link in re.findall(r'href="(/runs/[^"]+)"', page.text)]
    assert sorted(unquote(link) for link in links) == sorted(f"/runs/{name}" for name in names)
    for link in links:
        copy = client.get(link)
        assert copy.status_code == 200
        inside = re.findall(
            r'(?:href|data-source|data-steps|data-ranks|data-trace)="((?:/api)?/runs/[^"]+)"', copy.text
        )
        assert len(inside) > 5
        for address in inside:
            assert client.get(unescape(address)).status_code == 200, address
        assert RECORDING_ID not in "".join(inside)
    choice = client.get(f"/runs/{RECORDING_ID}")
    assert choice.status_code == 300
    assert sorted(re.findall(r'href="(/runs/[^"]+)"', choice.text)) == sorted(escape(link) for link in links)
    assert client.get(f"/api/runs/{RECORDING_ID}").status_code == 400


def test_the_beginning_of_an_id_that_fits_several_runs_offers_them(tmp_path: Path) -> None:
    write_sample(tmp_path)
    other = write_sample(tmp_path, sample_recording(id="5eef" + "0" * 12))
    page = client_of(tmp_path).get("/runs/5ee")
    assert page.status_code == 300
    assert f'href="/runs/{other.name}"' in page.text
    assert client_of(tmp_path).get(f"/runs/{other.name}").location == "/runs/5eef" + "0" * 12


def test_skipped_lines_are_told_with_the_flame_graph(tmp_path: Path) -> None:
    directory = write_sample(tmp_path)
    address = f"/api/runs/{RECORDING_ID}/flamegraph"
    assert client_of(tmp_path).get(address).json["skipped"] == []
    with (directory / "decode.calls").open("a") as file:
        file.write("nonsense\n")
    client = client_of(tmp_path)
    (told,) = client.get(address).json["skipped"]
    assert told.endswith("decode.calls: 1 line is not in the folded format and was skipped")
    assert client.get(f"{address}?kind=prefill").json["skipped"] == []


@pytest.mark.parametrize("created", ["0001-01-01T00:00:00+14:00", "yesterday", ""])
def test_a_moment_that_is_none_stays_as_it_is(tmp_path: Path, created: str) -> None:
    directory = write_sample(tmp_path)
    header = json.loads((directory / "recording.json").read_text())
    (directory / "recording.json").write_text(json.dumps({**header, "created": created}))
    page = client_of(tmp_path).get("/")
    assert page.status_code == 200
    assert created in page.text


def test_a_run_opens_with_what_was_measured(client: FlaskClient) -> None:
    text = client.get(f"/runs/{RECORDING_ID}").text
    assert "recorded decode step 12.2 ms (batch 64, 36 steps, eager, sync) · prefill step " in text


def test_the_beginning_of_an_id_leads_to_the_permanent_address_with_its_query(client: FlaskClient) -> None:
    answer = client.get("/runs/5eed?kind=prefill")
    assert (answer.status_code, answer.location) == (302, f"/runs/{RECORDING_ID}?kind=prefill")


def test_an_incomplete_run_says_why(tmp_path: Path) -> None:
    reasons = ["engine x was disarmed after 300 s", "412 spans did not arrive"]
    write_sample(tmp_path, sample_recording(complete=False, reasons=reasons))
    for address in ("/", f"/runs/{RECORDING_ID}"):
        text = client_of(tmp_path).get(address).text
        assert "incomplete" in text
        assert all(reason in text for reason in reasons)


def test_a_complete_run_does_not_speak_of_incompleteness(client: FlaskClient) -> None:
    assert "incomplete" not in client.get(f"/runs/{RECORDING_ID}").text


def test_kind_and_rank_stand_in_the_address(client: FlaskClient) -> None:
    rank = f"{ENGINES[1]}-1"
    text = client.get(f"/runs/{RECORDING_ID}?kind=prefill&rank={rank}").text
    assert (
        f'as="fetch" crossorigin="anonymous" href="/api/runs/{RECORDING_ID}/flamegraph?kind=prefill&amp;rank={rank}"'
        in text
    )
    assert f'<option value="{rank}">10.0.0.2:8001/0 rank 1</option>' in text
    mean = [
        row.interval_ns / 1e6 for row in sample_recording().rows if row.kind == "prefill" and row.engine == ENGINES[1]
    ]
    assert f"<dd>{sum(mean) / 2:.2f} ms</dd>" in text


def test_the_steps_come_in_columns(client: FlaskClient) -> None:
    rows = sorted(sample_recording().rows, key=lambda row: (row.index, row.engine))
    steps = client.get(f"/api/runs/{RECORDING_ID}/steps").json
    assert steps["count"] == len(rows) == 40
    for column in ("index", "kind", "mixed", "interval_ns", "context_tokens", "requests", "trace_id"):
        assert steps[column] == [getattr(row, column) for row in rows]
    assert [steps["engines"][number]["id"] for number in steps["engine"]] == [row.engine for row in rows]
    odd = [place for place, times in enumerate(steps["outlier"]) if times]
    assert [steps["index"][place] for place in odd] == [13, 13]
    assert steps["trace_link"] is None
    assert "moe.shared_experts" in client.get(f"/runs/{RECORDING_ID}").text  # a hook that was not found


def test_a_run_without_torch_traces_says_how_to_make_some(tmp_path: Path) -> None:
    write_sample(tmp_path)
    assert "vime-otel profile run" in client_of(tmp_path).get(f"/runs/{RECORDING_ID}").text


def test_a_run_without_steps_is_still_a_page(tmp_path: Path) -> None:
    write_sample(tmp_path, Recording({**sample_recording().header, "complete": False, "reasons": []}))
    page = client_of(tmp_path).get(f"/runs/{RECORDING_ID}")
    assert page.status_code == 200
    assert "No steps were recorded" in page.text


def test_a_header_with_nothing_but_its_id_is_enough(tmp_path: Path) -> None:
    directory = write_sample(tmp_path, torch=True)
    (directory / "recording.json").write_text(json.dumps({"format": 1, "id": RECORDING_ID}))
    client = client_of(tmp_path)
    for address in ("/", f"/runs/{RECORDING_ID}", f"/runs/{RECORDING_ID}/decode.svg", f"/api/runs/{RECORDING_ID}"):
        assert client.get(address).status_code == 200, address


def test_the_svg_and_the_folded_stacks_of_a_view_can_be_saved(client: FlaskClient) -> None:
    svg = client.get(f"/runs/{RECORDING_ID}/decode.svg")
    assert svg.mimetype == "image/svg+xml"
    assert "qwen3-moe rollout · decode · 12.19 ms per step · 36 steps" in svg.text
    assert svg.headers["Content-Disposition"] == "inline; filename=5eed0123-decode.svg"
    folded = client.get(f"/runs/{RECORDING_ID}/decode.folded")
    assert folded.mimetype == "text/plain"
    times = [int(line.rpartition(" ")[2]) for line in folded.text.splitlines()]
    assert sum(times) == pytest.approx(36 * 12_190, rel=0.001)


def test_downloads_of_a_rank_are_of_that_rank(client: FlaskClient) -> None:
    slow, fast = (
        client.get(f"/runs/{RECORDING_ID}/decode.folded?rank={ENGINES[0]}-{rank}").text for rank in ("1", "0")
    )
    assert slow != fast
    assert "10.0.0.1:8001/0 rank 1" in client.get(f"/runs/{RECORDING_ID}/decode.svg?rank={ENGINES[0]}-1").text


def test_a_torch_trace_arrives_as_the_bytes_it_is_and_in_ranges(client: FlaskClient) -> None:
    address = f"/runs/{RECORDING_ID}/torch/{ENGINES[0]}/rank0.pt.trace.json.gz"
    whole = client.get(address)
    assert whole.data == torch_trace("0")
    assert "Content-Encoding" not in whole.headers
    part = client.get(address, headers={"Range": "bytes=100-199"})
    assert (part.status_code, part.data) == (206, torch_trace("0")[100:200])


def test_the_profilers_manifest_is_no_trace(client: FlaskClient) -> None:
    assert "manifest.json" not in client.get(f"/runs/{RECORDING_ID}").text
    assert client.get(f"/runs/{RECORDING_ID}/torch/manifest.json").status_code == 404


@pytest.mark.parametrize(
    ("address", "status", "words"),
    [
        ("/runs/ffff", 404, "no run &#39;ffff&#39;"),
        ("/nothing/here", 404, "not found"),
        (f"/runs/{RECORDING_ID}?kind=idle", 400, "it has decode, prefill"),
        (f"/runs/{RECORDING_ID}?rank=7", 400, "no rank &#39;7&#39;"),
        (f"/runs/{RECORDING_ID}/idle.svg", 404, "it has decode, prefill"),
        (f"/runs/{RECORDING_ID}/torch/none.json.gz", 404, "no torch trace"),
    ],
)
def test_what_is_not_there_is_one_clear_line(client: FlaskClient, address: str, status: int, words: str) -> None:
    page = client.get(address)
    assert page.status_code == status
    assert page.mimetype == "text/html"
    assert words in page.text
    assert "Traceback" not in page.text


def test_a_run_that_can_not_be_read_is_one_clear_line(tmp_path: Path) -> None:
    directory = write_sample(tmp_path)
    (directory / "steps.json").write_text("[]")
    page = client_of(tmp_path).get(f"/runs/{RECORDING_ID}")
    assert page.status_code == 500
    assert "steps.json holds no JSON object; record again" in page.text


def test_a_run_by_layer_has_a_switch_and_its_downloads_know_it(tmp_path: Path) -> None:
    write_sample(tmp_path, by_layer(sample_recording()))
    client = client_of(tmp_path)
    assert 'data-set="layers" data-value="1"' in client.get(f"/runs/{RECORDING_ID}").text
    graph = client.get(f"/api/runs/{RECORDING_ID}/flamegraph?layers=1").json
    assert graph["by_layer"]
    assert "layers.3:Qwen3MoeDecoderLayer" in graph["tree"]["names"]
    svg = client.get(f"/runs/{RECORDING_ID}/decode.svg?layers=1")
    assert "qwen3-moe rollout · decode · by layer · " in svg.text
    assert svg.headers["Content-Disposition"] == "inline; filename=5eed0123-decode-layers.svg"
    assert "layers.3:Qwen3MoeDecoderLayer" in client.get(f"/runs/{RECORDING_ID}/decode.folded?layers=1").text


def test_a_run_that_merges_layers_has_no_switch(client: FlaskClient) -> None:
    assert 'data-set="layers"' not in client.get(f"/runs/{RECORDING_ID}").text
    page = client.get(f"/runs/{RECORDING_ID}?layers=1")
    assert (page.status_code, "does not tell layers apart" in page.text) == (400, True)


def test_notes_cost_and_production_are_on_the_page(tmp_path: Path) -> None:
    header = sample_recording().header
    told = {
        "overhead": {"added_us_per_step": 310.0},
        "unrecorded": {"decode": {"batch": 64, "before_ms": 4.0, "after_ms": None}},
    }
    engines = [engine | told for engine in header["engines"]]
    write_sample(tmp_path, sample_recording(engines=engines, notes=["<b>know</b> this"]))
    text = client_of(tmp_path).get(f"/runs/{RECORDING_ID}").text
    assert "production step 4.0 ms (batch 64) · recorded decode step 12.2 ms" in text
    assert "on 2 engines: read shares, not milliseconds" in text
    assert "Recording added about 310 µs to a step" in text
    assert "<li>&lt;b&gt;know&lt;/b&gt; this</li>" in text
    assert re.search(r"4\.00 /\s*–", text)


def test_idle_steps_are_listed_and_make_no_view(tmp_path: Path) -> None:
    whole = sample_recording()
    rows = [*whole.rows[:3], idle_row("c" * 16, 0)]
    write_sample(tmp_path, Recording(whole.header, rows, whole.totals))
    client = client_of(tmp_path)
    text = client.get(f"/runs/{RECORDING_ID}").text
    assert "idle" in client.get(f"/api/runs/{RECORDING_ID}/steps").json["kind"]
    assert 'data-value="idle"' not in text
    assert set(client.get(f"/api/runs/{RECORDING_ID}").json["ms_per_step"]) == {"decode", "prefill"}


def test_a_run_of_idle_steps_alone_is_a_page(tmp_path: Path) -> None:
    write_sample(tmp_path, Recording(sample_recording().header, [idle_row(ENGINES[0], 0)]))
    page = client_of(tmp_path).get(f"/runs/{RECORDING_ID}")
    assert page.status_code == 200
    assert "recorded 1 idle step on 1 engine" in page.text
