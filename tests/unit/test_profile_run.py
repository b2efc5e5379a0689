"""`vime-otel profile run` is judged by the files. The workers are stand-ins that write traces as vLLM does."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from standins import Routes, answer, serving_in_thread

from collector.torch_profiles.trace_files import BROWSER_BYTES, TraceContent
from collector.torch_profiles.trace_manifest import browser_note
from vime_otel.cli.main import main
from vime_otel.data.find_runs import find_run

TRACE = {
    "schemaVersion": 1,
    "traceEvents": [{"ph": "X", "pid": 4_000_000, "tid": 1, "ts": 10.5, "dur": 2.0, "name": "aten::mm"}],
    "baseTimeNanoseconds": 1_700_000_000_000_000_000,
    "traceName": "x",
}


class StandInWorker:
    """Writes `kind` of trace at the stop: whole, cut, none; or answers the stop with an error (`refuses`)."""

    def __init__(self, directory: Path, kind: str = "whole", version: str = "0.32.0", ranks: int = 1) -> None:
        self.directory = directory
        self.kind = kind
        self.version = version
        self.ranks = ranks
        self.prefix = ""
        self.running = False
        self.stops = 0
        self.completions = 0
        self.complete: Callable[[web.Request], Awaitable[web.StreamResponse]] = self._complete

    @property
    def routes(self) -> Routes:
        return {
            "GET /health": answer(),
            "GET /version": answer(body={"version": self.version}),
            "GET /v1/models": answer(body={"data": [{"id": "tiny"}]}),
            "POST /v1/completions": self.complete,
            "POST /start_profile": self._start,
            "POST /stop_profile": self._stop,
        }

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        self.completions += 1
        return web.json_response({})

    async def _start(self, request: web.Request) -> web.StreamResponse:
        if self.running and self.version >= "0.32":
            return web.Response(status=409)
        body = await request.json() if request.can_read_body else {}
        self.prefix = body.get("profile_prefix", "")
        self.running = True
        return web.Response()

    async def _stop(self, request: web.Request) -> web.StreamResponse:
        self.stops += 1
        self.running = False
        if self.kind == "refuses":
            return web.Response(status=500, text="engine dead")
        for rank in range(self.ranks if self.kind != "none" else 0):
            packed = gzip.compress(json.dumps(TRACE).encode())
            start = f"{self.prefix}_" if self.prefix else ""
            name = f"{start}dp0_pp0_tp{rank}_dcp0_ep0_rank{rank}.{os.urandom(4).hex()}.pt.trace.json.gz"
            (self.directory / name).write_bytes(packed if self.kind == "whole" else packed[:-12])
        return web.Response()


@contextmanager
def fleet(workers: Sequence[StandInWorker]) -> Iterator[list[str]]:
    with serving_in_thread(*(worker.routes for worker in workers)) as urls:
        yield urls


def profile_run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, workers: Sequence[StandInWorker], *options: str
) -> tuple[int, dict[str, Any]]:
    """Exit status and JSON of a run over these workers, whose traces are looked for in tmp_path/traces."""
    with fleet(workers) as urls:
        named = [word for url in urls for word in ("--worker", url)]
        command = ["profile", "run", *named, "--trace-dir", str(tmp_path / "traces"), "--runs", str(tmp_path / "runs")]
        capsys.readouterr()
        status = main([*command, "--requests", "2", "--files-timeout", "2", "--json", *options])
    return status, json.loads(capsys.readouterr().out)


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    directory = tmp_path / "traces"
    directory.mkdir()
    (directory / "old_rank0.1.pt.trace.json.gz").write_bytes(b"of another day")
    return directory


def test_whole_traces_are_gathered_and_told_apart_by_worker(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, traces: Path
) -> None:
    workers = [StandInWorker(traces, ranks=2), StandInWorker(traces)]
    status, found = profile_run(capsys, tmp_path, workers)
    assert (status, found["ok"], found["missing"]) == (0, True, [])
    assert [(entry["rank"], entry["status"]) for entry in found["traces"]] == [(0, "whole"), (1, "whole"), (0, "whole")]
    assert len({entry["worker"] for entry in found["traces"]}) == 2
    assert {entry["start_unix_nano"] for entry in found["traces"]} == {1_700_000_000_000_010_500}
    assert [worker.completions for worker in workers] == [2, 2]
    run = find_run(tmp_path / "runs")
    assert run.header["complete"]
    assert len(run.torch_traces()) == 3
    assert json.loads((run.path / "torch" / "manifest.json").read_text())["traces"] == found["traces"]
    assert not any(path.is_symlink() for path in run.path.rglob("*"))


def test_a_worker_that_writes_nothing_fails_the_run_though_it_answered_200(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, traces: Path
) -> None:
    workers = [StandInWorker(traces), StandInWorker(traces, "none")]
    status, found = profile_run(capsys, tmp_path, workers)
    assert (status, found["ok"]) == (1, False)
    ((missing),) = found["missing"]
    assert "no file came" in missing["why"]
    assert "Failed to start profiler" in missing["why"]


def test_a_trace_that_is_cut_off_is_told_and_kept(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, traces: Path
) -> None:
    status, found = profile_run(capsys, tmp_path, [StandInWorker(traces, "cut")])
    assert status == 1
    assert [(entry["status"], "cut off" in entry["why"]) for entry in found["traces"]] == [("truncated", True)]


def test_a_worker_that_refuses_the_stop_is_named_with_its_answer(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, traces: Path
) -> None:
    status, found = profile_run(capsys, tmp_path, [StandInWorker(traces, "refuses")])
    assert status == 1
    assert "engine dead" in found["missing"][0]["why"]


def test_a_busy_worker_is_spared_and_restart_takes_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, traces: Path
) -> None:
    worker = StandInWorker(traces)
    worker.running = True
    status, found = profile_run(capsys, tmp_path, [worker])
    assert (status, worker.stops, worker.running) == (1, 0, True)
    assert "busy" in found["missing"][0]["why"]
    status, _ = profile_run(capsys, tmp_path, [worker], "--restart")
    assert (status, worker.running) == (0, False)


def test_workers_without_prefixes_that_share_a_folder_are_not_guessed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, traces: Path
) -> None:
    workers = [StandInWorker(traces, version="0.28.0"), StandInWorker(traces, version="0.28.0")]
    status, found = profile_run(capsys, tmp_path, workers)
    assert status == 1
    assert {entry["worker"] for entry in found["traces"]} == {None}
    assert all("one at a time" in missing["why"] for missing in found["missing"])


def test_one_old_worker_alone_is_known(capsys: pytest.CaptureFixture[str], tmp_path: Path, traces: Path) -> None:
    status, found = profile_run(capsys, tmp_path, [StandInWorker(traces, version="0.28.0")])
    assert status == 0
    assert found["traces"][0]["worker"]


def test_the_error_for_a_fleet_without_traces_is_short(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, traces: Path
) -> None:
    workers = [StandInWorker(traces, "none") for _ in range(5)]
    status, found = profile_run(capsys, tmp_path, workers, "--files-timeout", "0")
    assert status == 1
    assert len(found["missing"]) == 5
    message = found["error"]["message"]
    assert message.count("no file came") == 3
    assert "and 2 workers more" in message


def test_a_late_trace_of_another_session_is_nobodys(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, traces: Path
) -> None:
    worker = StandInWorker(traces, version="0.28.0")
    late = traces / "vime-0123456789abcdef-0_dp0_pp0_tp0_dcp0_ep0_rank0.1.pt.trace.json.gz"

    async def complete(request: web.Request) -> web.StreamResponse:
        late.write_bytes(gzip.compress(json.dumps(TRACE).encode()))
        return web.json_response({})

    worker.complete = complete
    status, found = profile_run(capsys, tmp_path, [worker])
    assert (status, late.exists(), len(found["traces"])) == (0, True, 1)
    assert Path(found["traces"][0]["source"]) != late
    worker.kind = "none"
    late.unlink()
    status, found = profile_run(capsys, tmp_path, [worker])
    assert (status, late.exists(), found["traces"]) == (1, True, [])


def test_traces_can_join_a_run_that_is_there(capsys: pytest.CaptureFixture[str], tmp_path: Path, traces: Path) -> None:
    profile_run(capsys, tmp_path, [StandInWorker(traces)])
    before = find_run(tmp_path / "runs")
    status, found = profile_run(capsys, tmp_path, [StandInWorker(traces)], "--run", before.id, "--copy")
    assert (status, found["run"]) == (0, str(before.path))
    assert len(before.torch_traces()) == 2


def test_people_get_a_table_and_the_next_command(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, traces: Path
) -> None:
    with fleet([StandInWorker(traces)]) as (url,):
        command = ["profile", "run", "--worker", url, "--trace-dir", str(traces), "--runs", str(tmp_path / "runs")]
        assert main([*command, "--requests", "1"]) == 0
    told = capsys.readouterr()
    assert "1 whole trace; 1 of 1 worker left one" in told.out
    assert "next: vime-otel view --runs" in told.out
    assert "1 of 1 answered the stop" in told.err


def test_without_a_folder_the_usage_is_wrong_and_a_log_names_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, traces: Path
) -> None:
    assert main(["profile", "run", "--worker", "http://127.0.0.1:1"]) == 2
    assert "--trace-dir DIR" in capsys.readouterr().err
    worker = StandInWorker(traces)
    listed = {"workers": []}
    with fleet([worker]) as (url,), serving_in_thread({"GET /workers": answer(body=listed)}) as (router,):
        listed["workers"].append({"url": url, "is_healthy": True})  # type: ignore[arg-type]
        log = tmp_path / "train.log"
        config = json.dumps({"profiler": "torch", "torch_profiler_dir": str(traces)})
        launch = f"Launching vLLM server: vllm serve /m --profiler-config {config}"
        log.write_text(f"Router launched at {router.removeprefix('http://')}, Prometheus port: 1\n{launch}\n")
        command = ["profile", "run", "--log", str(log), "--requests", "1", "--runs", str(tmp_path / "runs")]
        assert main(command) == 0


def test_a_trace_too_big_for_a_browser_names_the_alternative() -> None:
    assert browser_note(TraceContent(1, BROWSER_BYTES)) == ""
    assert "analyze" in browser_note(TraceContent(1, BROWSER_BYTES + 1))
