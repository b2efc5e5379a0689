"""Forwarding as users get it: `serve --forward`, `collect --forward`, `replay`, with simulated engines."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest
import requests
from otlp_sink import OtlpSink
from running_collector import ControlClient, config, running, until
from simulated_recorder import Behaviour, SimulatedRecorder, make_step
from test_collector_cli import ENGINES, collect_args, command, run, workers_args

from collector.forwarding import forwarder
from vime_otel.cli.main import main
from vime_otel.data.errors import UsageError
from vime_otel.data.find_runs import list_runs
from vime_otel.data.rundir import RunDirectory
from vime_otel.data.trace_link import parse_trace_link
from vime_otel.demo.ports import free_port

WORKER = "http://127.0.0.1:8001"
LINK = "http://127.0.0.1:16686/trace/{trace_id}"


def made_ids(recording: str, steps: int, ranks: tuple[str, ...]) -> Counter[bytes]:
    """The span ids of a simulated recording, of these ranks."""
    parts = [part for index in range(steps) for part in make_step(recording, ENGINES[0], index, 2).parts]
    return Counter(span.span_id for part in parts if part.totals.rank in ranks for span in part.spans)


def received_ids(*sinks: OtlpSink) -> Counter[bytes]:
    return Counter(span.span_id for sink in sinks for _, span in sink.spans())


def answers(url: str) -> bool:
    try:
        return requests.get(f"{url}/readyz", timeout=5).status_code == 200
    except requests.ConnectionError:
        return False


@pytest.mark.parametrize(
    ("how", "times"), [("killed", 1), *(pytest.param(how, 3, marks=pytest.mark.long) for how in ("stopped", "killed"))]
)
def test_with_the_endpoint_away_and_the_collector_restarted_every_span_arrives_once(
    how: str, times: int, tmp_path: Path
) -> None:
    port, sink_port = free_port(), free_port()
    url, endpoint = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{sink_port}"
    args = ["serve", "--grpc", "127.0.0.1:0", "--http", f"127.0.0.1:{port}", "--out", "runs", "--forward", endpoint]
    recorded = []
    with SimulatedRecorder(url, ENGINES[0], 8001, Behaviour(ranks=2)):
        for _ in range(times):
            with command(tmp_path, *args) as serve:
                until(lambda: answers(url) and ControlClient(url).recorders())
                result = ControlClient(url).record(steps=4, workers=[WORKER])
                assert result["complete"]
                recorded.append(result["id"])
                if how == "stopped":
                    serve.terminate()
                    serve.wait(timeout=30)
                else:
                    serve.kill()
        expected = sum((made_ids(each, 4, ("0", "engine")) for each in recorded), Counter[bytes]())
        with OtlpSink(sink_port) as sink, command(tmp_path, *args):
            until(lambda: received_ids(sink) == expected)
            # And nothing of it comes again.
            until(lambda: answers(url) and ControlClient(url).recorders())
            third = ControlClient(url).record(steps=1, workers=[WORKER])["id"]
            expected += made_ids(third, 1, ("0", "engine"))
            until(lambda: received_ids(sink) == expected)


def test_collect_forwards_before_it_ends_and_the_run_links_to_the_traces(tmp_path: Path) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with OtlpSink() as sink, SimulatedRecorder(url, ENGINES[0], 8001, Behaviour(ranks=2)):
        args = collect_args(port, *workers_args([WORKER]), "--steps", "3", "--forward", sink.endpoint)
        status, _, err = run(tmp_path, *args, "--forward-ranks", "all", "--trace-link", LINK)
    assert status == 0, err
    (found,) = list_runs(tmp_path / "runs")
    assert received_ids(sink) == made_ids(found.id, 3, ("0", "1", "engine"))
    assert found.header["trace_link"] == LINK
    assert "forwarded" not in err


def test_collect_says_what_could_not_be_forwarded_and_replay_sends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(forwarder, "PATIENCE_SECONDS", 0.5)
    port, sink_port = free_port(), free_port()
    url, endpoint = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{sink_port}"
    with SimulatedRecorder(url, ENGINES[0], 8001, Behaviour(ranks=2)):
        args = collect_args(port, *workers_args([WORKER]), "--steps", "2", "--forward", endpoint, "--trace-link", LINK)
        assert main(args) == 0
    err = capsys.readouterr().err
    assert f"not all spans were forwarded to {endpoint}" in err
    assert f"`vime-otel replay latest --to {endpoint}`" in err
    (found,) = list_runs(tmp_path / "runs")
    with OtlpSink(sink_port) as sink:
        status, out, err = run(tmp_path, "replay", "--to", endpoint)
        assert status == 0, err
        expected = made_ids(found.id, 2, ("0", "engine"))
        assert received_ids(sink) == expected
    first, last = out.splitlines()
    assert first == f"sent {sum(expected.values())} spans of {found.path.name} to {endpoint}"
    assert last == f"next: {LINK.replace('{trace_id}', found.rows[0].trace_id)}"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A run of two ranks and 30 steps."""
    root = tmp_path_factory.mktemp("recorded")
    with running(config(root)) as collector, SimulatedRecorder(collector.url, ENGINES[0], 8001, Behaviour(ranks=2)):
        assert ControlClient(collector.url).record(steps=30, workers=[WORKER])["complete"]
    (found,) = list_runs(root)
    return found


def test_replay_sends_a_sample_of_whole_steps_or_all_ranks(
    recorded: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = ["--runs", str(recorded.path.parent)]
    with OtlpSink() as sink:
        assert main(["replay", recorded.id[:8], "--to", sink.endpoint, "--ranks", "all", "--json", *runs]) == 0
        everything = made_ids(recorded.id, 30, ("0", "1", "engine"))
        assert received_ids(sink) == everything
        told = json.loads(capsys.readouterr().out)
        assert (told["sent"], told["refused"], told["messages"]) == (sum(everything.values()), 0, [])
    with OtlpSink() as sink:
        assert main(["replay", "--to", sink.endpoint, "--sample", "0.5", *runs]) == 0
        traces = Counter(span.trace_id for _, span in sink.spans())
    assert 4 <= len(traces) <= 26
    assert len(set(traces.values())) == 1
    assert not list(recorded.path.glob("forward-*")), "a replay leaves no cursor"


@pytest.mark.parametrize("damage", ["cut", "flipped", "torn"])
def test_replay_says_what_it_could_not_read(
    recorded: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    run = tmp_path / recorded.path.name
    shutil.copytree(recorded.path, run)
    content = bytearray((run / "spans.otlp").read_bytes())
    whole = len(content)
    if damage == "cut":
        del content[-10:]
    elif damage == "flipped":
        content[-10] ^= 1
    else:
        content += b"garbage"
    (run / "spans.otlp").write_bytes(content)
    with OtlpSink() as sink:
        assert main(["replay", "--to", sink.endpoint, "--json", "--runs", str(tmp_path)]) == 1
        unread = json.loads(capsys.readouterr().out)["unread_bytes"]
        assert unread == 7 if damage == "torn" else 10 < unread < whole
        assert main(["replay", "--to", sink.endpoint, "--runs", str(tmp_path)]) == 1
        assert f"spans.otlp is damaged: its last {unread:,} bytes can't be read" in capsys.readouterr().out


def test_replay_says_what_is_wrong(recorded: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(recorded.path, tmp_path / recorded.path.name)
    runs = ["--runs", str(tmp_path)]
    away = f"http://127.0.0.1:{free_port()}"
    assert main(["replay", "--to", away, "--wait", "0", *runs]) == 1
    assert f"error: {away} answers UNAVAILABLE" in capsys.readouterr().err
    for bad in ("nowhere", "http://u:p@h:4318"):
        assert main(["replay", "--to", bad, *runs]) == 2
        assert "u:p" not in capsys.readouterr().err
    assert main(["replay", "--to", away, "--sample", "nan", *runs]) == 2
    (tmp_path / recorded.path.name / "spans.otlp").unlink()
    assert main(["replay", "--to", away, *runs]) == 1
    assert "no spans were kept" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text",
    ["", "javascript:alert({trace_id})", "//host/{trace_id}", "http:///{trace_id}", "http://host/trace", "http://h:0/{trace_id}",
     "http://{trace_id}/", "http://h/a b/{trace_id}", "http://h:x/{trace_id}", "http://h/\n{trace_id}"],
)  # fmt: skip
def test_other_links_than_web_addresses_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_trace_link(text)


def test_a_link_with_a_password_is_refused_and_not_repeated() -> None:
    with pytest.raises(UsageError) as told:
        parse_trace_link("http://user:hunter2@host/{trace_id}")
    assert "hunter2" not in str(told.value)


def test_a_link_may_have_braces_of_its_own() -> None:
    link = "https://grafana.example/explore?panes=%7B%22a%22:{%22query%22:%22{trace_id}%22}}"
    assert parse_trace_link(link) == link
