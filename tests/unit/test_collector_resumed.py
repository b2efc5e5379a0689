"""Recordings that another collector began: what is here counts, and engines get the time to find the new one."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
import requests
from aiohttp import web
from running_collector import QUICK, ControlClient, config, running, until
from simulated_recorder import POLL, closing_request, make_step, step_requests
from standins import answer, serving_in_thread

from collector.recordings.messages import RecordingRequest, read_poll
from collector.recordings.open_run import ArmedEngine, Marker, OpenRun
from vime_otel.data.journal import LOGS, TRACES, JournalWriter
from vime_otel.data.run_files import JOURNAL_FILE

RECORDING = "5eed0123456789ab"
ENGINE = "00000000000000a1"
STEPS = 3
IDLE = {"phase": "idle", "recording": None}
SOON = replace(QUICK, silent=1.0, late=0.2, disarming=1.0)


def everything(engine: str = ENGINE) -> list[tuple[str, bytes]]:
    """(path, protobuf) of all that an engine sends."""
    steps = [make_step(RECORDING, engine, index, 1) for index in range(STEPS)]
    sent = [each for step in steps for each in step_requests(RECORDING, step)]
    return [*sent, ("/v1/logs", closing_request(RECORDING, engine, steps))]


def leave_open(
    root: Path,
    *polls: dict[str, Any],
    url: str = "http://127.0.0.1:8001",
    seconds_left: float = 3600.0,
    requests: int = 0,
) -> Path:
    """What a killed collector leaves of a recording on the engines that poll so; returns where its journal belongs."""
    armed = [ArmedEngine(read_poll(poll).recorder, url, "0" * 16) for poll in polls]
    asked = RecordingRequest(steps=STEPS, requests=requests)
    opened = OpenRun(RECORDING, datetime.now(timezone.utc), time.time() + seconds_left, asked, tuple(armed), (), (), ())
    Marker.make(root / "run", opened).let_go()
    return root / "run" / JOURNAL_FILE


def poll_as(status: dict[str, Any], **recorder: Any) -> dict[str, Any]:
    """A poll with another status, of another recorder."""
    return {**POLL, "recorder": POLL["recorder"] | recorder, "status": POLL["status"] | status, "wait_seconds": 0.1}


@contextmanager
def polling(url: str, poll: dict[str, Any], commands: list[dict[str, Any]] | None = None) -> Iterator[None]:
    """Somebody who polls the same again and again; `commands` gets the answers'."""
    ending = threading.Event()

    def run() -> None:
        while not ending.wait(0.02):
            answered = requests.post(f"{url}/control/v1/recorders/poll", json=poll, timeout=10).json()
            if commands is not None and answered["command"]:
                commands.append(answered["command"])

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()


def send_everything(url: str) -> None:
    for path, content in everything():
        headers = {"Content-Type": "application/x-protobuf"}
        assert requests.post(f"{url}{path}", content, headers=headers, timeout=10).status_code == 200


def write_everything(journal: Path) -> None:
    writer = JournalWriter(journal)
    for path, content in everything():
        writer.append(TRACES if path == "/v1/traces" else LOGS, content)
    writer.close()


@pytest.mark.parametrize("engine", ["gone", "at other things"])
def test_one_that_is_whole_needs_no_engine(tmp_path: Path, engine: str) -> None:
    write_everything(leave_open(tmp_path, POLL))
    patience = SOON if engine == "gone" else replace(SOON, silent=3600.0)
    with running(config(tmp_path, patience=patience)) as collector:
        if engine == "gone":
            result = ControlClient(collector.url).finish(RECORDING)
        else:
            with polling(collector.url, poll_as(IDLE)):
                result = ControlClient(collector.url).finish(RECORDING)
    assert (result["complete"], result["reasons"]) == (True, [])
    assert result["engines"][0]["phase"] == "done"


def test_what_an_engine_that_does_other_things_still_sends_is_awaited(tmp_path: Path) -> None:
    leave_open(tmp_path, POLL)
    with running(config(tmp_path)) as collector, polling(collector.url, poll_as(IDLE)):
        until(lambda: ControlClient(collector.url).show(RECORDING)["state"] == "finishing")
        send_everything(collector.url)
        result = ControlClient(collector.url).finish(RECORDING)
    assert (result["complete"], result["reasons"]) == (True, [])


def test_what_never_comes_of_it_is_told(tmp_path: Path) -> None:
    leave_open(tmp_path, POLL)
    with running(config(tmp_path, patience=SOON)) as collector, polling(collector.url, poll_as(IDLE)):
        result = ControlClient(collector.url).finish(RECORDING)
    assert result["state"] == "failed"
    assert "it had nothing of this recording when the collector was started again" in result["message"]


def test_an_engine_that_made_its_steps_in_time_is_not_late_because_the_collector_is(tmp_path: Path) -> None:
    leave_open(tmp_path, POLL, seconds_left=-60.0)
    done = {"phase": "done", "recording": RECORDING, "steps_done": STEPS, "steps_asked": STEPS}
    with running(config(tmp_path)) as collector:
        send_everything(collector.url)
        with polling(collector.url, poll_as(done)):
            result = ControlClient(collector.url).finish(RECORDING)
    assert (result["complete"], result["reasons"]) == (True, [])


def test_an_engine_that_tells_of_an_earlier_recording_is_at_work_on_this_one(tmp_path: Path) -> None:
    leave_open(tmp_path, POLL)
    earlier = {**poll_as({"phase": "waiting", "recording": "f" * 16}), "wait_seconds": 0}
    at_work = poll_as({"phase": "recording", "recording": RECORDING, "steps_done": 1, "steps_asked": STEPS})
    commands: list[dict[str, Any]] = []
    with running(config(tmp_path, patience=SOON)) as collector:
        for poll in (at_work, earlier, earlier):
            assert requests.post(f"{collector.url}/control/v1/recorders/poll", json=poll, timeout=10).ok
        with polling(collector.url, at_work, commands):
            until(lambda: ControlClient(collector.url).show(RECORDING)["engines"][0]["steps_done"] == 1)
            assert (ControlClient(collector.url).show(RECORDING)["state"], commands) == ("recording", [])
            ControlClient(collector.url).call("DELETE", f"/recordings/{RECORDING}")
            until(lambda: commands)


def test_a_group_that_was_armed_is_told_where_to_start(tmp_path: Path) -> None:
    status = {"phase": "armed", "recording": RECORDING, "position": [1, 40], "steps_per_second": 10.0}
    ranks = [{"engine": f"{rank:016x}", "dp_rank": rank, "dp_group": "c" * 16, "dp_size": 2} for rank in (0, 1)]
    polls = [poll_as(status, **rank) for rank in ranks]
    leave_open(tmp_path, *polls)
    told: list[list[dict[str, Any]]] = [[], []]
    with (
        running(config(tmp_path, patience=SOON)) as collector,
        polling(collector.url, polls[0], told[0]),
        polling(collector.url, polls[1], told[1]),
    ):
        until(lambda: all(told))
    assert [commands[0]["type"] for commands in told] == ["start", "start"]
    assert told[0][0]["position"] == told[1][0]["position"]


def test_its_requests_are_sent_again_once_its_engines_have_called(tmp_path: Path) -> None:
    prompts: list[Any] = []

    async def complete(request: web.Request) -> web.Response:
        prompts.append(await request.json())
        return web.json_response({"choices": []})

    armed = poll_as({"phase": "armed", "recording": RECORDING})
    engine_api = {"GET /v1/models": answer(body={"data": [{"id": "m"}]}), "POST /v1/completions": complete}
    with serving_in_thread(engine_api) as (url,):
        leave_open(tmp_path, armed, url=url, requests=2)
        with running(config(tmp_path, patience=SOON)) as collector:
            with polling(collector.url, armed):
                until(lambda: len(prompts) == 2)
            ControlClient(collector.url).call("DELETE", f"/recordings/{RECORDING}")
