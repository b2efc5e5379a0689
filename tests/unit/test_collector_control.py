"""The control routes: what is refused and how, and the long poll."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import requests
from running_collector import QUICK, ControlClient, RunningCollector, config, running, until
from simulated_recorder import POLL, Behaviour, SimulatedRecorder


@pytest.fixture
def collector(tmp_path: Path) -> Iterator[RunningCollector]:
    with running(config(tmp_path)) as running_collector:
        yield running_collector


def changed(path: str, value: Any) -> dict[str, Any]:
    """A poll with one field changed; `path` is `recorder.pid`, say."""
    outer, _, inner = path.partition(".")
    return {**POLL, outer: {**POLL[outer], inner: value} if inner else value}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ([], "a poll must be a JSON object"),
        (changed("protocol", 2), "the recorder speaks protocol 2, this collector 1"),
        (changed("protocol", None), "the recorder speaks protocol None, this collector 1"),
        (changed("recorder", None), "'recorder' must be a JSON object"),
        (changed("recorder.engine", "../../etc"), "'engine' of 'recorder' must be 16 hexadecimal digits"),
        (changed("recorder.pid", "1"), "'pid' of 'recorder' must be a whole number"),
        (changed("recorder.pid", True), "'pid' of 'recorder' must be a whole number"),
        (changed("recorder.api_ports", ["a"]), "'api_ports' of 'recorder' must be a list"),
        (changed("recorder.label", ""), "'label' of 'recorder' must be a text"),
        (changed("status.phase", "asleep"), "'phase' of 'status' must be one of idle"),
        (changed("status.steps_done", -1), "'steps_done' of 'status' must be a whole number from 0"),
        (changed("status.position", [3]), "'position' of 'status' must be two whole numbers, wave and step, not [3]"),
        (changed("status.position", [3, -1]), "'position' of 'status' must be two whole numbers"),
        (changed("status.steps_per_second", "many"), "'steps_per_second' of 'status' must be a number from 0"),
        (changed("recorder.dp_group", "7"), "'dp_group' of 'recorder' must be 16 hexadecimal digits"),
        (changed("recorder.dp_size", 0), "'dp_size' of 'recorder' must be a whole number from 1"),
        (changed("wait_seconds", "long"), "'wait_seconds' of a poll must be a number of seconds"),
    ],
)
def test_a_bad_poll_gets_one_clear_sentence(collector: RunningCollector, body: Any, message: str) -> None:
    status, answer = ControlClient(collector.url).call("POST", "/recorders/poll", body)
    assert status == 400
    assert answer["error"]["message"].startswith(message)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"steps": 0}, "'steps' of a recording must be a whole number from 1 to 1000000, not 0"),
        ({"steps": 2.5}, "'steps' of a recording must be a whole number"),
        ({"kind": "idle"}, "'kind' of a recording must be one of decode, prefill, not 'idle'"),
        ({"timing": "cuda"}, "'timing' of a recording must be one of sync, events, host"),
        ({"force_eager": 1}, "'force_eager' of a recording must be true or false, not 1"),
        ({"per_layer": "yes"}, "'per_layer' of a recording must be true or false"),
        ({"router": "ftp://x"}, "'ftp://x' is not a URL"),
        ({"workers": "http://x"}, "'workers' of a recording must be a list"),
        ({"step": 3}, "a recording has no field 'step'; it has steps, kind"),
        ({"wait_seconds": -1}, "'wait_seconds' of a recording must be a number of seconds from 0"),
        ({"requests": -1}, "'requests' of a recording must be a whole number from 0"),
    ],
)
def test_a_bad_wish_gets_one_clear_sentence(collector: RunningCollector, body: Any, message: str) -> None:
    status, answer = ControlClient(collector.url).call("POST", "/recordings", body)
    assert status == 400
    assert answer["error"]["message"].startswith(message)


def test_errors_are_json_with_the_right_status(collector: RunningCollector) -> None:
    url = f"{collector.url}/control/v1"
    as_json = {"Content-Type": "application/json"}
    answers = {
        400: requests.post(f"{url}/recordings", data=b"{no json", headers=as_json, timeout=10),
        404: requests.get(f"{url}/recordings/0000000000000000", timeout=10),
        405: requests.put(f"{url}/recordings", timeout=10),
        413: requests.post(f"{url}/recordings", data=b" " * 2_000_000, headers=as_json, timeout=10),
        415: requests.post(f"{url}/recordings", data=b"{}", headers={"Content-Type": "text/plain"}, timeout=10),
    }
    for status, answer in answers.items():
        assert answer.status_code == status
        assert isinstance(answer.json()["error"]["message"], str)
    assert answers[405].headers["Allow"] == "POST"
    assert (
        requests.get(f"{collector.url}/elsewhere", timeout=10).json()["error"]["message"].startswith("there is nothing")
    )
    assert requests.delete(f"{url}/recordings/%00", timeout=10).status_code == 404


def test_recorders_are_listed_as_they_introduced_themselves(collector: RunningCollector) -> None:
    client = ControlClient(collector.url)
    assert client.call("POST", "/recorders/poll", POLL) == (200, {"command": None, "samples": False})
    (listed,) = client.recorders()
    assert listed.pop("last_seen_seconds") < 5
    assert listed == POLL["recorder"] | {"phase": "idle"}


def test_silent_recorders_are_forgotten(tmp_path: Path) -> None:
    with running(config(tmp_path, patience=replace(QUICK, forget=0.05))) as collector:
        client = ControlClient(collector.url)
        client.call("POST", "/recorders/poll", POLL)
        until(lambda: not client.recorders())


def test_a_waiting_poll_returns_with_the_command(collector: RunningCollector) -> None:
    client = ControlClient(collector.url)
    client.call("POST", "/recorders/poll", POLL)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.call, "POST", "/recorders/poll", POLL | {"wait_seconds": 9})
        recording = client.start(
            steps=7, kind="decode", timing="events", force_eager=True, per_layer=True, timeout_seconds=12
        )
        command = waiting.result()[1]["command"]
    expected = {"type": "arm", "recording": recording, "steps": 7, "kind": "decode", "timing": "events"}
    expected |= {"force_eager": True, "per_layer": True, "together": False}
    assert {key: command[key] for key in expected} == expected
    assert command["deadline_seconds"] == 12
    # An answer that was lost comes again; one that was seen does not.
    again = client.call("POST", "/recorders/poll", POLL)[1]["command"]
    assert again == command
    armed = POLL["status"] | {"phase": "armed", "recording": recording}
    seen = POLL | {"seen": command["id"], "status": armed, "wait_seconds": 60}
    started = time.monotonic()
    assert client.call("POST", "/recorders/poll", seen) == (200, {"command": None, "samples": False})
    assert time.monotonic() - started < 5  # a recorder at work is not held up for a minute
    client.call("DELETE", f"/recordings/{recording}")
    cancel = until(lambda: client.call("POST", "/recorders/poll", seen)[1]["command"])
    assert (cancel["type"], cancel["recording"]) == ("cancel", recording)
    over = armed | {"phase": "cancelled"}
    client.call("POST", "/recorders/poll", seen | {"seen": cancel["id"], "status": over, "wait_seconds": 0})
    assert client.finish(recording)["state"] == "failed"


def test_a_poll_whose_client_left_ends(collector: RunningCollector) -> None:
    client = ControlClient(collector.url)
    with pytest.raises(requests.ReadTimeout):
        requests.post(f"{collector.url}/control/v1/recorders/poll", json=POLL | {"wait_seconds": 50}, timeout=(5, 0.2))
    first = until(lambda: client.recorders()[0]["last_seen_seconds"])
    until(lambda: client.recorders()[0]["last_seen_seconds"] > first)


def test_stopping_ends_waiting_polls(tmp_path: Path) -> None:
    with running(config(tmp_path)) as collector:
        done = threading.Event()

        def wait() -> None:
            ControlClient(collector.url).call("POST", "/recorders/poll", POLL | {"wait_seconds": 9})
            done.set()

        waiting = threading.Thread(target=wait)
        waiting.start()
        until(lambda: ControlClient(collector.url).recorders())
        collector.stop()
        assert done.wait(5)
        waiting.join()


def test_many_recorders_start_together(collector: RunningCollector) -> None:
    count = 12
    recorders = [
        SimulatedRecorder(collector.url, f"{number:016x}", 9000 + number, Behaviour()) for number in range(1, count + 1)
    ]
    for recorder in recorders:
        recorder.start()
    try:
        client = ControlClient(collector.url)
        until(lambda: len(client.recorders()) == count)
        ended = client.record(steps=2)
        assert ended["complete"] is True, ended["reasons"]
        assert len(ended["engines"]) == count
    finally:
        for recorder in recorders:
            recorder.__exit__()
