"""Rolling recordings: what engines sample goes into one run a day, each step once, across restarts."""

from __future__ import annotations

import itertools
import shutil
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import requests
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from running_collector import config, running, until
from simulated_recorder import closing_request, make_step, resource_of, step_requests

from collector.otlp.signals import LOGS
from collector.recordings import rolling
from collector.recordings.rolling import RollingRecording
from collector.recordings.rolling_days import RollingRecordings
from collector.totals.tally import MALFORMED, Tally
from vime_otel.data import otlp
from vime_otel.data.recording import sum_overall
from vime_otel.data.rolling import rolling_id
from vime_otel.data.rundir import RunDirectory

TODAY = datetime.now(timezone.utc).date()
RECORDING = rolling_id(TODAY)
ENGINES = ("00000000000000a1", "00000000000000b2")


def sampled(engine: str, indices: range) -> list[bytes]:
    """The requests with an engine's sampled steps, as its exporter sends them."""
    steps = [make_step(RECORDING, engine, index, 2) for index in indices]
    logs = [content for step in steps for path, content in step_requests(RECORDING, step) if path == LOGS.path]
    return [*logs, closing_request(RECORDING, engine, steps)]


@pytest.fixture
def recording(tmp_path: Path) -> Iterator[RollingRecording]:
    made = RollingRecording(TODAY, tmp_path, "0")
    yield made
    made.close()


def add(recording: RollingRecording, contents: list[bytes]) -> None:
    for content in contents:
        assert not recording.add(LOGS.request_type.FromString(content)).dropped


def test_the_files_are_those_of_a_recording_of_the_same_steps(recording: RollingRecording) -> None:
    for engine in ENGINES:
        add(recording, sampled(engine, range(4)))
    recording.write()
    run = RunDirectory(recording.directory)
    parts = [part.totals for engine in ENGINES for n in range(4) for part in make_step(RECORDING, engine, n, 2).parts]
    assert run.steps == {"decode": 6, "prefill": 2}
    assert len(run.rows) == 8
    for kind in run.steps:
        expected = sum_overall(part for part in parts if part.kind == kind)
        assert run.calls(kind) == expected.calls
        assert run.self_us(kind) == {stack: round(ns / 1000) for stack, ns in expected.self_ns().items()}
    assert len(run.ranks()) == 4
    assert {part.key: part for part in run.totals()} == {part.key: part for part in parts}
    assert run.header["complete"] is None
    assert [engine["steps"] for engine in run.header["engines"]] == [{"decode": 3, "prefill": 1}] * 2


def test_what_comes_twice_counts_once_even_after_a_restart(tmp_path: Path) -> None:
    contents = sampled(ENGINES[0], range(5))
    for _ in range(3):
        recording = RollingRecording(TODAY, tmp_path, "0")
        add(recording, contents + contents[:4])
        recording.write()
        recording.close()
    run = RunDirectory(recording.directory)
    assert run.steps == {"decode": 4, "prefill": 1}
    assert run.calls("decode")["step"] == 4


def test_when_the_day_is_over_the_run_says_so_though_nothing_came_since(recording: RollingRecording) -> None:
    add(recording, sampled(ENGINES[0], range(2)))
    recording.write()
    assert RunDirectory(recording.directory).header["complete"] is None
    recording.write(over=True)
    assert RunDirectory(recording.directory).header["complete"] is True
    written = (recording.directory / "recording.json").stat()
    recording.write(over=True)
    assert (recording.directory / "recording.json").stat() == written


@pytest.mark.parametrize("header", ["written", "missing"])
def test_a_day_that_passed_while_no_collector_ran_is_finished_by_the_next_one(tmp_path: Path, header: str) -> None:
    past = RollingRecording(TODAY - timedelta(days=3), tmp_path, "0")
    today = RollingRecording(TODAY, tmp_path, "0")
    for each in (past, today):
        add(each, sampled(ENGINES[0], range(2)))
        each.write()
        each.close()
    if header == "missing":
        (past.directory / "recording.json").unlink()
    copy = tmp_path / "20261101T000000Z-copied00-rolling"
    shutil.copytree(today.directory, copy)
    with running(config(tmp_path, serves=True)):
        until(lambda: (past.directory / "recording.json").exists())
        until(lambda: RunDirectory(past.directory).header["complete"] is True)
    assert RunDirectory(past.directory).steps == {"decode": 1, "prefill": 1}
    for other in (today.directory, copy):
        assert RunDirectory(other).header["complete"] is None


def test_a_day_that_can_not_be_finished_keeps_no_other_from_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broken, past = (RollingRecording(TODAY - timedelta(days=ago), tmp_path, "0") for ago in (4, 3))
    for each in (broken, past):
        add(each, sampled(ENGINES[0], range(2)))
        each.close()
    (broken.directory / "totals.sqlite").write_bytes(b"something else" * 100)
    with running(config(tmp_path, serves=True)):
        until(lambda: (past.directory / "recording.json").exists())
    assert RunDirectory(past.directory).header["complete"] is True
    assert f"the run of {broken.day} can't be finished" in caplog.text


def test_only_the_latest_steps_are_listed_and_all_are_counted(
    recording: RollingRecording, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rolling, "ROWS_KEPT", 3)
    add(recording, sampled(ENGINES[0], range(10)))
    recording.write()
    run = RunDirectory(recording.directory)
    assert [row.index for row in run.rows] == [7, 8, 9]
    assert run.steps == {"decode": 9, "prefill": 1}
    assert run.steps_of("decode", f"{ENGINES[0]}-1") == 9
    assert run.calls("prefill")["step"] == 1


def test_a_request_that_the_disk_refuses_leaves_nothing_half_written(
    recording: RollingRecording, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(recording, sampled(ENGINES[0], range(2)))
    content = LOGS.request_type.FromString(sampled(ENGINES[1], range(1))[0])
    with monkeypatch.context() as patch:
        patch.setattr(rolling, "_ADD", "INSERT INTO nowhere VALUES (?,?,?,?,?,?,?)")
        with pytest.raises(OSError, match="no such table"):
            recording.add(content)
    recording.write()
    assert RunDirectory(recording.directory).steps == {"decode": 1, "prefill": 1}
    add(recording, sampled(ENGINES[1], range(1)))
    recording.write()
    assert RunDirectory(recording.directory).steps == {"decode": 1, "prefill": 2}


def test_a_file_that_is_no_database_is_an_error_of_the_disk(tmp_path: Path) -> None:
    first = RollingRecording(TODAY, tmp_path, "0")
    first.close()
    (first.directory / "totals.sqlite").write_bytes(b"something else" * 100)
    with pytest.raises(OSError, match=r"totals\.sqlite"):
        RollingRecording(TODAY, tmp_path, "0")


def test_todays_and_the_neighbouring_days_recordings_are_known_and_no_other(tmp_path: Path) -> None:
    recordings = RollingRecordings(tmp_path, "0", 1.0)
    for days, known in ((-2, False), (-1, True), (0, True), (1, True), (2, False)):
        found = recordings.find(rolling_id(TODAY + timedelta(days=days)))
        assert (found is not None) == known
    recordings.stop()


@pytest.mark.parametrize("engine", ["../../evil", "/tmp/evil", "", "a\0b", "A" * 16, "a" * 300])
def test_an_engine_whose_id_is_none_is_not_taken(tmp_path: Path, engine: str) -> None:
    recordings = RollingRecordings(tmp_path, "0", 1.0)
    day = recordings.find(RECORDING)
    assert day is not None
    assert not day.admits(engine)
    assert day.admits(ENGINES[0])
    recordings.stop()


def test_a_closing_event_with_values_of_other_types_leaves_the_run_readable(recording: RollingRecording) -> None:
    steps = [make_step(RECORDING, ENGINES[0], 0, 1)]
    nonsense = {"label": [1], "pid": "x", "execution": 5, "model": {"a": 1}, "timing": 3, "overhead": "much"}
    add(recording, [*sampled(ENGINES[0], range(1)), closing_request(RECORDING, ENGINES[0], steps, **nonsense)])
    recording.write()
    (engine,) = RunDirectory(recording.directory).header["engines"]
    assert (engine["label"], engine["pid"], engine["model"]) == (None, None, None)


def test_numbers_that_can_not_be_are_malformed_and_later_requests_are_stored(recording: RollingRecording) -> None:
    step = make_step(RECORDING, ENGINES[0], 0, 1)
    part = step.parts[0].totals
    huge = replace(part, inclusive_ns=tuple(2**62 for _ in part.inclusive_ns))
    record = otlp.totals_record(huge, None, step.trace_id, step.root_id, 1)
    request = otlp.logs_request(resource_of(RECORDING, ENGINES[0], "0"), [record])
    assert recording.add(request) == Tally(dropped=Counter({MALFORMED: 1}))
    add(recording, sampled(ENGINES[0], range(2)))
    recording.write()
    assert RunDirectory(recording.directory).steps == {"decode": 1, "prefill": 1}


@pytest.mark.parametrize("statement", range(5))
def test_a_collector_that_dies_while_it_makes_the_tables_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, statement: int
) -> None:
    real, calls = sqlite3.connect, itertools.count()

    class Dying(sqlite3.Connection):
        def execute(self, sql: str, *args: Any) -> Any:
            if sql.startswith("CREATE") and next(calls) == statement:
                raise KeyboardInterrupt
            return super().execute(sql, *args)

    with monkeypatch.context() as patch:
        patch.setattr(rolling.sqlite3, "connect", lambda path, **options: real(path, factory=Dying, **options))
        with pytest.raises(KeyboardInterrupt):
            RollingRecording(TODAY, tmp_path, "0")
    recording = RollingRecording(TODAY, tmp_path, "0")
    add(recording, sampled(ENGINES[0], range(2)))
    recording.close()


def test_a_days_folder_that_was_removed_is_made_anew(tmp_path: Path) -> None:
    recordings = RollingRecordings(tmp_path, "0", 1.0)
    first, *others = (LOGS.request_type.FromString(content) for content in sampled(ENGINES[0], range(2)))
    day = recordings.find(RECORDING)
    assert day is not None
    assert not day.add(first).dropped
    (folder,) = tmp_path.iterdir()
    shutil.rmtree(folder)
    with pytest.raises(OSError, match=r"totals\.sqlite"):
        day.add(others[0])
    for other in others:
        assert not day.add(other).dropped
    recordings.stop()
    assert RunDirectory(folder).steps["decode"] == 1


def test_a_run_that_can_not_be_written_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    recordings = RollingRecordings(tmp_path, "0", 1.0)
    days = [TODAY - timedelta(days=ago) for ago in (1, 0)]
    for day in days:
        found = recordings.find(rolling_id(day))
        assert found is not None
        found.add(LOGS.request_type.FromString(sampled(ENGINES[0], range(1))[0]))
    written = []

    def write(self: RollingRecording, over: bool = False) -> None:
        if self.day == days[0]:
            raise ValueError("embedded null byte")
        written.append(self.day)

    monkeypatch.setattr(RollingRecording, "write", write)
    recordings.stop()
    assert written == [days[1]]
    assert "embedded null byte" in caplog.text


def test_a_disk_that_hangs_under_samples_keeps_nobody_else_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs, goes_on = threading.Event(), threading.Event()
    real = RollingRecording.add

    def hanging(self: RollingRecording, request: Any) -> Tally:
        hangs.set()
        goes_on.wait()
        return real(self, request)

    monkeypatch.setattr(RollingRecording, "add", hanging)
    with running(replace(config(tmp_path), serves=True)) as collector:
        answers: list[ExportLogsServiceResponse] = []
        sender = threading.Thread(target=lambda: answers.append(post(collector.url, sampled(ENGINES[0], range(1))[0])))
        sender.start()
        hangs.wait()
        assert requests.get(f"{collector.url}/readyz", timeout=10).status_code == 200
        assert not answers
        goes_on.set()
        sender.join()
        assert not answers[0].partial_success.ByteSize()


def test_a_serving_collector_takes_samples_and_keeps_the_run_up_to_date(tmp_path: Path) -> None:
    serving = replace(config(tmp_path), serves=True)
    serving = replace(serving, patience=replace(serving.patience, rolling=0.05))
    with running(serving) as collector:
        for content in sampled(ENGINES[0], range(3)):
            answer = post(collector.url, content)
            assert not answer.partial_success.ByteSize()
        (directory,) = until(lambda: [path.parent for path in tmp_path.glob("*-rolling/recording.json")])
        until(lambda: RunDirectory(directory).steps == {"decode": 2, "prefill": 1})
    with sqlite3.connect(directory / "totals.sqlite") as connection:
        assert connection.execute("SELECT count(*) FROM rows").fetchone() == (3,)
    connection.close()


def test_a_collector_that_does_not_serve_takes_none(tmp_path: Path) -> None:
    with running(config(tmp_path)) as collector:
        answer = post(collector.url, sampled(ENGINES[0], range(1))[0])
        assert answer.partial_success.rejected_log_records == 1
    assert not list(tmp_path.iterdir())


def post(url: str, content: bytes) -> ExportLogsServiceResponse:
    answer = requests.post(f"{url}/v1/logs", content, headers={"Content-Type": "application/x-protobuf"}, timeout=10)
    assert answer.status_code == 200
    return ExportLogsServiceResponse.FromString(answer.content)
