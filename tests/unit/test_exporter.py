"""The exporter subprocess with windows that nobody takes at once: they arrive, or it is told why they never will."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timezone
from functools import partialmethod
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import requests
from aiohttp import web
from fake_port import FakePort
from fake_port import step as make_step
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from otlp_sink import OtlpSink
from running_collector import ControlClient, config, running, until
from standins import serving_in_thread
from test_sending import window
from waiting_windows import every_span_id, windows_below

from vime_otel.data import settings
from vime_otel.data.errors import Unavailable, VimeOtelError
from vime_otel.data.find_runs import list_runs
from vime_otel.data.otlp import CLOSING_EVENT, STEP_EVENT, plain_value
from vime_otel.data.recording import sum_rank
from vime_otel.data.rolling import rolling_id
from vime_otel.demo.ports import free_port
from vime_otel.recorder import exporter as recorder_exporter
from vime_otel.recorder import exporter_process
from vime_otel.recorder.assemble import assemble
from vime_otel.recorder.collector_door import CollectorDoor
from vime_otel.recorder.engine import EngineRecorder
from vime_otel.recorder.exporter import Destination, Exporter, Kept
from vime_otel.recorder.exporter_process import ExporterProcess
from vime_otel.recorder.outbox import Parcel
from vime_otel.recorder.stand_in import StandIn
from vime_otel.recorder.window import Command, Window

ENGINE = "e" * 16
TOKEN = "s3cret-of-these-tests"


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("VIME_OTEL_", "OTEL_EXPORTER_OTLP_")):
            monkeypatch.delenv(name)


@pytest.fixture
def exporter() -> Iterator[Exporter]:
    made = Exporter()
    yield made
    made.close()


class StandInCollector:
    """Counts what comes, each span and each step's totals once."""

    def __init__(self) -> None:
        self.span_ids: list[bytes] = []
        self.events: list[str] = []
        self.closings: list[dict[str, Any]] = []

    async def logs(self, request: web.Request) -> web.StreamResponse:
        for group in ExportLogsServiceRequest.FromString(await request.read()).resource_logs:
            for record in group.scope_logs[0].log_records:
                self.events.append(record.event_name)
                if record.event_name == CLOSING_EVENT:
                    self.closings.append(plain_value(record.body))
        return web.Response()

    async def traces(self, request: web.Request) -> web.StreamResponse:
        for group in ExportTraceServiceRequest.FromString(await request.read()).resource_spans:
            self.span_ids += [span.span_id for span in group.scope_spans[0].spans]
        return web.Response()

    @property
    def routes(self) -> dict[str, Any]:
        return {"POST /v1/logs": self.logs, "POST /v1/traces": self.traces}


def export_beside(exporter: Exporter, made: Window, destination: Destination) -> tuple[threading.Thread, list[Any]]:
    """Export on a thread of its own; the list gets the answer."""
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(exporter.export(made, destination)))
    thread.start()
    return thread, answers


def test_with_the_collector_away_an_engines_window_waits_on_disk_and_the_next_engine_sends_it(
    exporter: Exporter, tmp_path: Path
) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    made = window(3, 20)
    thread, answers = export_beside(exporter, made, Destination(ENGINE, str(tmp_path), url, TOKEN, patience=60))
    (path,) = until(lambda: windows_below(tmp_path))
    assert path.parent == tmp_path / ENGINE / "outbox"
    assert TOKEN.encode() not in path.read_bytes()
    exporter.close()  # as the end of the engine's process does
    thread.join()
    assert "can't be reached" in answers[0]
    assert f"waits in {path.parent} and goes when that ends" in answers[0]

    collector, next_engine = StandInCollector(), Exporter()
    with serving_in_thread(collector.routes) as (new_url,):
        assert next_engine.export(None, Destination("f" * 16, str(tmp_path), new_url, TOKEN)) is None
    assert collector.events == [STEP_EVENT] * 9 + [CLOSING_EVENT]
    assert sorted(collector.span_ids) == every_span_id(made)
    assert [closing["notes"] for closing in collector.closings] == [[]]
    assert list(tmp_path.iterdir()) == []
    next_engine.close()


def test_a_collector_that_comes_back_soon_gets_it_and_the_engine_hears_of_no_error(
    exporter: Exporter, tmp_path: Path
) -> None:
    made, collector = window(2, 5), StandInCollector()
    away = [True]

    async def maybe(request: web.Request) -> web.StreamResponse:
        return web.Response(status=503) if away[0] else await collector.logs(request)

    with serving_in_thread({"POST /v1/logs": maybe, "POST /v1/traces": collector.traces}) as (url,):
        thread, answers = export_beside(exporter, made, Destination(ENGINE, str(tmp_path), url, patience=60))
        until(lambda: windows_below(tmp_path))
        away[0] = False
        thread.join()
    assert answers == [None]
    assert collector.events.count(CLOSING_EVENT) == 1
    assert not windows_below(tmp_path)


def test_a_window_behind_others_goes_with_them_when_their_collector_is_back(tmp_path: Path) -> None:
    collector, away, gone = StandInCollector(), [True], []
    exporter = Exporter(lambda recording, error: gone.append((recording, error)))
    made = [replace(w := window(1, 1), command=replace(w.command, recording=name * 16)) for name in "abcd"]

    async def maybe(request: web.Request) -> web.StreamResponse:
        return web.Response(status=401) if away[0] else await collector.logs(request)

    with serving_in_thread({"POST /v1/logs": maybe, "POST /v1/traces": collector.traces}) as (url,):
        destination = Destination(ENGINE, str(tmp_path), url)
        for each in made[:3]:  # and the exporter waits longer before it tries again, each time
            assert isinstance(exporter.export(each, destination), Kept)
        assert gone == []
        away[0] = False
        assert exporter.export(made[3], destination) is None
    exporter.close()
    assert collector.events.count(CLOSING_EVENT) == 4
    assert sorted(gone) == [(each.command.recording, None) for each in made]
    assert not windows_below(tmp_path)


def test_a_window_that_is_removed_while_it_waits_is_awaited_no_longer(exporter: Exporter, tmp_path: Path) -> None:
    destination = Destination(ENGINE, str(tmp_path), f"http://127.0.0.1:{free_port()}", patience=3600)
    thread, answers = export_beside(exporter, window(1, 1), destination)
    (path,) = until(lambda: windows_below(tmp_path))
    path.unlink()
    thread.join()
    assert "what was recorded is lost" in answers[0]
    assert not isinstance(answers[0], Kept)


class Gone:
    """Keeps what an exporter tells of recordings whose windows wait no more."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str | None]] = []

    def add(self, recording: str, error: str | None) -> None:
        self.told.append((recording, error))


@pytest.fixture
def gone() -> Gone:
    return Gone()


@pytest.fixture
def telling(gone: Gone) -> Iterator[Exporter]:
    """An exporter that tells `gone`."""
    made = Exporter(gone.add)
    yield made
    made.close()


def kill(exporter: Exporter) -> None:
    """As the kernel does that has no memory left."""
    assert exporter._process is not None
    exporter._process._process.kill()


def has_process(exporter: Exporter) -> bool:
    return exporter._process is not None and exporter._process.status is None


def named(recording: str, steps: int = 1, spans: int = 1) -> Window:
    made = window(steps, spans)
    return replace(made, command=replace(made.command, recording=recording))


def test_what_waits_in_the_directory_is_sent_also_after_its_exporter_was_killed(
    telling: Exporter, gone: Gone, tmp_path: Path
) -> None:
    collector, away = StandInCollector(), [True]

    async def maybe(request: web.Request) -> web.StreamResponse:
        return web.Response(status=401) if away[0] else await collector.logs(request)

    with serving_in_thread({"POST /v1/logs": maybe, "POST /v1/traces": collector.traces}) as (url,):
        assert isinstance(telling.export(named("kept"), Destination(ENGINE, str(tmp_path), url)), Kept)
        kill(telling)
        away[0] = False
        until(lambda: gone.told)
    assert gone.told == [("kept", None)]
    assert collector.events.count(CLOSING_EVENT) == 1
    assert not windows_below(tmp_path)


def test_a_window_that_kills_whoever_sends_it_is_given_up_and_the_next_recordings_arrive(
    telling: Exporter, gone: Gone, tmp_path: Path
) -> None:
    collector, killed = StandInCollector(), []
    kills = [False]

    async def maybe(request: web.Request) -> web.StreamResponse:
        body = await request.read()
        if b"deadly" not in body:
            return await collector.logs(request)
        if kills[0]:
            killed.append(telling._process)
            kill(telling)
        return web.Response(status=401)

    with serving_in_thread({"POST /v1/logs": maybe, "POST /v1/traces": collector.traces}) as (url,):
        destination = Destination(ENGINE, str(tmp_path), url)
        assert isinstance(telling.export(named("deadly"), destination), Kept)
        kills[0] = True
        ((recording, error),) = until(lambda: gone.told)
        assert (recording, len(killed)) == ("deadly", 2)
        assert f"ended with status -9: no message; what waits in {tmp_path} goes with the next recording" in str(error)
        assert not has_process(telling)
        assert telling.export(named("healthy"), destination) is None
        assert collector.events.count(CLOSING_EVENT) == 1
        until(lambda: len(killed) == 4 and not has_process(telling))
    assert len(windows_below(tmp_path)) == 1


def test_what_waited_in_the_memory_of_a_killed_exporter_is_told_as_lost(telling: Exporter, gone: Gone) -> None:
    destination = Destination(ENGINE, collector=f"http://127.0.0.1:{free_port()}")
    assert isinstance(telling.export(named("kept"), destination), Kept)
    kill(telling)
    assert until(lambda: gone.told) == [
        ("kept", "the exporter ended with status -9: no message; what waited in its memory is lost")
    ]


def test_where_no_exporter_can_be_started_any_more_it_is_told_that_what_waits_does_so(
    telling: Exporter, gone: Gone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory(*_: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    destination = Destination(ENGINE, str(tmp_path), f"http://127.0.0.1:{free_port()}")
    assert isinstance(telling.export(named("kept"), destination), Kept)
    with monkeypatch.context() as patch:
        patch.setattr(recorder_exporter, "_Process", no_memory)
        kill(telling)
        ((recording, error),) = until(lambda: gone.told)
    assert (recording, "goes with the next recording" in str(error)) == ("kept", True)


def test_an_engine_is_told_of_a_window_that_is_removed_after_it_was_told_that_it_waits(
    telling: Exporter, gone: Gone, tmp_path: Path
) -> None:
    destination = Destination(ENGINE, str(tmp_path), f"http://127.0.0.1:{free_port()}")
    assert isinstance(telling.export(named("removed"), destination), Kept)
    (path,) = windows_below(tmp_path)
    path.unlink()
    assert until(lambda: gone.told) == [("removed", "what was recorded is lost: it had to wait, and was removed")]
    until(lambda: not has_process(telling))


def test_an_engine_is_told_of_a_window_that_is_dropped_after_it_was_told_that_it_waits(
    telling: Exporter, gone: Gone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(settings.OUTBOX_MIB.name, "1")
    destination = Destination(ENGINE, str(tmp_path), f"http://127.0.0.1:{free_port()}")
    for recording in ("dropped", "kept"):
        assert isinstance(telling.export(named(recording, 250, 200), destination), Kept)
    ((recording, error),) = until(lambda: gone.told)
    assert (recording, "was dropped with all its totals for want of room" in str(error)) == ("dropped", True)


def test_an_exporter_that_does_not_read_its_window_is_told_with_its_last_words(
    exporter: Exporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = "import os, sys; os.close(0); sys.exit('there is no such package')"
    monkeypatch.setattr(recorder_exporter, "_START", ends)
    answer = exporter.export(window(20, 5000), Destination(ENGINE))
    assert answer == "the exporter ended with status 1: there is no such package"


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Iterator[ExporterProcess]:
    """What the subprocess runs, in this process."""
    read, write = os.pipe()
    with open(read, "rb") as standard_input:
        with open(write, "wb"):
            monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=standard_input))
            made = ExporterProcess()
            yield made
        assert made._ended.wait(60)


def test_a_collector_that_takes_longer_than_one_is_patient_to_fail_is_tried_once(
    here: ExporterProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(exporter_process, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def fail_late(parcel: Parcel, note: Any) -> None:
        now[0] += 30.0
        raise Unavailable("no answer")

    monkeypatch.setattr(exporter_process, "_sender", lambda destination: fail_late)
    with pytest.raises(VimeOtelError, match="no answer; what was recorded waits"):
        here._export(window(1, 1), Destination(ENGINE, collector="http://collector", patience=10.0))
    assert now == [1030.0]


def test_an_exporter_that_ends_since_its_last_window_was_removed_tells_that_before(
    here: ExporterProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(VimeOtelError, match="waits in"):
        here._export(named("removed"), Destination(ENGINE, str(tmp_path), f"http://127.0.0.1:{free_port()}"))
    (path,) = windows_below(tmp_path)
    path.unlink()
    here._last_try()
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["recording"] == "removed"


class Unloadable:
    """Stands for a window of another version of this package, which was installed while the engine ran."""

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, ("", "of the other version")


def test_an_exporter_that_can_not_read_its_window_says_so(exporter: Exporter) -> None:
    answer = exporter.export(cast(Window, Unloadable()), Destination(ENGINE))
    assert "it can't read what the engine gives it: AttributeError" in str(answer)


def test_without_a_directory_it_waits_in_the_exporters_memory(exporter: Exporter, tmp_path: Path) -> None:
    made, collector = window(2, 5), StandInCollector()
    away = [True]
    tries: list[str] = []

    async def maybe(request: web.Request) -> web.StreamResponse:
        tries.append(request.path)
        return web.Response(status=401) if away[0] else await collector.logs(request)

    with serving_in_thread({"POST /v1/logs": maybe, "POST /v1/traces": collector.traces}) as (url,):
        thread, answers = export_beside(exporter, made, Destination(ENGINE, collector=url, patience=60))
        until(lambda: tries)
        away[0] = False
        thread.join()
    assert answers == [None]
    assert collector.events.count(STEP_EVENT) == 6


def test_spans_for_an_otlp_endpoint_that_is_away_wait_while_the_files_are_there(
    exporter: Exporter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    port = free_port()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    (tmp_path / ".engines").mkdir()
    (tmp_path / ".engines" / ENGINE).touch()
    made = window(2, 5)
    destination = Destination(ENGINE, str(tmp_path), directory=str(tmp_path), start="r" * 16)
    assert exporter.export(made, destination) is None
    assert (tmp_path / "recording.json").is_file()
    assert len(windows_below(tmp_path)) == 1
    until(lambda: "waits in" in caplog.text)
    with OtlpSink(port) as sink:
        until(lambda: not windows_below(tmp_path))
        until(lambda: "was sent" in caplog.text)
    assert sorted(span.span_id for _, span in sink.spans()) == every_span_id(made)


def test_in_a_long_outage_no_window_makes_the_engine_wait_and_the_bound_holds(
    exporter: Exporter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(settings.OUTBOX_MIB.name, "1")
    port = free_port()
    destination = Destination(ENGINE, str(tmp_path), f"http://127.0.0.1:{port}")
    made = [replace(w := window(12, 1000), command=replace(w.command, recording=name * 16)) for name in "ab"]
    for each in made:
        assert "waits in" in str(exporter.export(each, destination))
    assert sum(path.stat().st_size for path in windows_below(tmp_path)) < 2**20
    until(lambda: "dropped for want of room" in caplog.text)
    collector = StandInCollector()
    with serving_in_thread(collector.routes) as (url,):
        assert exporter.export(None, Destination(ENGINE, str(tmp_path), url)) is None
        until(lambda: not windows_below(tmp_path))
    assert collector.events.count(STEP_EVENT) == 2 * 12 * 3
    assert any("VIME_OTEL_OUTBOX_MIB" in note for closing in collector.closings for note in closing["notes"])
    kept = sum(part["spans"] for closing in collector.closings for part in closing["parts"])
    assert kept == len(set(collector.span_ids)) == len(collector.span_ids) < sum(len(every_span_id(w)) for w in made)


# -- with the real collector ------------------------------------------------------------------


def test_sampled_steps_of_an_outage_arrive_in_the_days_run_after_the_engines_restart(
    exporter: Exporter, tmp_path: Path
) -> None:
    order = Command(rolling_id(datetime.now(timezone.utc).date()), 5, every=10, totals_only=True)
    pieces = [replace(window(5, 20), command=order, first_index=first) for first in (0, 5)]
    for piece in pieces:
        piece.steps = [replace(step, index=step.index + piece.first_index) for step in piece.steps]
    port = free_port()
    away = Destination(ENGINE, str(tmp_path / "dir"), f"http://127.0.0.1:{port}")
    for piece in pieces:
        assert "waits in" in str(exporter.export(piece, away))
    exporter.close()
    next_engine = Exporter()
    with running(config(tmp_path / "runs", serves=True)) as collector:
        there = replace(away, engine="f" * 16, collector=collector.url)
        # The exporter of the engine that is gone may take a moment to let go.
        until(lambda: next_engine.export(None, there) or not windows_below(tmp_path))
        next_engine.close()
    (run,) = list_runs(tmp_path / "runs")
    assert run.steps == {"decode": 10}
    sent = [part.totals for piece in pieces for step in assemble(piece) for part in step.parts]
    expected, found = (sum_rank(totals, ENGINE, "0") for totals in (sent, run.recording().totals))
    assert (found.inclusive_ns, found.calls) == (expected.inclusive_ns, expected.calls)


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> EngineRecorder:
    monkeypatch.setattr("vime_otel.recorder.collector_door.RETRY_SECONDS", (0.05, 0.1))
    return EngineRecorder(FakePort())


def is_serving(url: str) -> bool:
    try:
        return requests.get(f"{url}/healthz", timeout=5).status_code == 200
    except requests.ConnectionError:
        return False


@pytest.mark.parametrize("patience", [10.0, 0.0], ids=["soon", "when the engine has long been told that it waits"])
def test_a_recording_whose_collector_was_killed_is_whole_once_one_is_back(
    recorder: EngineRecorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, patience: float
) -> None:
    monkeypatch.setattr(CollectorDoor, "export", partialmethod(CollectorDoor.export, patience=patience))
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "vime_otel", "serve", "--http", f"127.0.0.1:{port}", "--grpc", "127.0.0.1:0"]
    door = CollectorDoor(recorder, url, "")
    with subprocess.Popen([*command, "--out", str(tmp_path)], stdout=subprocess.DEVNULL) as killed:
        try:
            door.start()
            until(lambda: is_serving(url) and ControlClient(url).recorders())
            recording = ControlClient(url).start(steps=3, timeout_seconds=60)
            until(lambda: recorder.status.phase == "armed")
        finally:
            killed.kill()
    for number in range(3):
        make_step(recorder, at=1000 + number * 10)
    until(lambda: recorder.status.phase == ("exporting" if patience else "waiting"))
    with running(config(tmp_path, http_port=port)) as collector:
        result = ControlClient(collector.url).finish(recording)
        until(lambda: recorder.status.phase == "done")
    door.close()
    door.join()
    assert (result["complete"], result["reasons"]) == (True, [])
    assert result["steps"] == {"decode": 3}


def test_the_collector_hears_of_an_engine_that_is_gone_while_its_window_is_sent(tmp_path: Path) -> None:
    made = window(3, 5)
    with running(config(tmp_path, token=TOKEN)) as collector:
        control = ControlClient(collector.url, TOKEN)
        with StandIn(made, collector.url, TOKEN):
            (found,) = until(control.recorders)
        assert (found["engine"], found["phase"], found["api_ports"]) == (ENGINE, "exporting", [])
    with StandIn(made, f"http://127.0.0.1:{free_port()}", TOKEN):
        pass
