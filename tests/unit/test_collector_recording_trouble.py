"""What users are told where a recording meets trouble; over real sockets, with simulated engines."""

from __future__ import annotations

import shutil
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from running_collector import QUICK, ControlClient, config, running, until
from simulated_recorder import POLL, Behaviour, SimulatedRecorder
from standins import answer, serving_in_thread

from collector.recordings import recording_task
from collector.recordings.selection import Selection, select
from vime_otel.data.rundir import RunDirectory

ENGINES = ("00000000000000a1", "00000000000000b2")
WORKERS = ["http://127.0.0.1:8001", "http://127.0.0.1:8002"]
GONE = "feedfacefeedface"
BUSY = f"still busy with recording {GONE} of a collector that is gone; it was told to stop"


def test_an_engine_without_work_is_named_and_disarmed(tmp_path: Path) -> None:
    idle = Behaviour(most_steps=2)
    with (
        running(config(tmp_path)) as collector,
        SimulatedRecorder(collector.url, ENGINES[0], 8001, idle) as lazy,
        SimulatedRecorder(collector.url, ENGINES[1], 8002),
    ):
        ended = ControlClient(collector.url).record(steps=5, workers=WORKERS, timeout_seconds=3)
        assert [command["type"] for command in lazy.commands] == ["arm", "cancel"]
        assert lazy.phase == "cancelled"
    assert (ended["state"], ended["complete"]) == ("done", False)
    assert ended["reasons"] == [
        "127.0.0.1:8001/0: it made 2 of 5 steps within 3 s; does it have requests? `--requests 4` sends some"
    ]
    assert ended["steps"] == {"decode": 5, "prefill": 2}  # what came is kept


def test_no_engine_makes_a_step(tmp_path: Path) -> None:
    with (
        running(config(tmp_path)) as collector,
        SimulatedRecorder(collector.url, ENGINES[0], 8001, Behaviour(most_steps=0)),
    ):
        ended = ControlClient(collector.url).record(timeout_seconds=1.5)
    assert (ended["state"], ended["run"]) == ("failed", None)
    assert "it made 0 of 20 steps within 1.5 s" in ended["message"]
    assert list(tmp_path.iterdir()) == []


def test_nobody_calls(tmp_path: Path) -> None:
    with running(config(tmp_path)) as collector:
        client = ControlClient(collector.url)
        ended = client.record(wait_seconds=0.1)
        assert (ended["state"], ended["run"], ended["complete"]) == ("failed", None, False)
        assert ended["message"].startswith("no engine to record within 0.1 s: vime-otel not installed")
        assert f"VIME_OTEL_COLLECTOR={collector.url}" in ended["message"]
        ended = client.record(wait_seconds=0.1, workers=WORKERS)
        assert ended["state"] == "failed"
        assert [each["url"] for each in ended["unmatched_workers"]] == WORKERS
    assert list(tmp_path.iterdir()) == []


def test_a_worker_without_recorder_is_named_and_the_others_recorded(tmp_path: Path) -> None:
    with running(config(tmp_path)) as collector, SimulatedRecorder(collector.url, ENGINES[0], 8001):
        ended = ControlClient(collector.url).record(steps=2, workers=WORKERS, wait_seconds=0.5)
    assert (ended["state"], ended["complete"]) == ("done", False)
    (reason,) = ended["reasons"]
    assert reason.startswith(f"{WORKERS[1]}: ")
    assert "VIME_OTEL_COLLECTOR" in reason
    header = RunDirectory(Path(ended["run"])).header
    assert [each["url"] for each in header["unmatched_workers"]] == [WORKERS[1]]
    assert header["engines"][0]["complete"] is True


def test_an_engine_that_vanishes_is_named(tmp_path: Path) -> None:
    impatient = config(tmp_path, patience=replace(QUICK, silent=2.0))
    with (
        running(impatient) as collector,
        SimulatedRecorder(collector.url, ENGINES[0], 8001, Behaviour(silent_once_armed=True)),
        SimulatedRecorder(collector.url, ENGINES[1], 8002),
    ):
        ended = ControlClient(collector.url).record(steps=3, workers=WORKERS)
    assert ended["complete"] is False
    assert ended["reasons"] == ["127.0.0.1:8001/0: it vanished before it took the command (0 of 3 steps made)"]


def test_a_refusal_is_told(tmp_path: Path) -> None:
    refusal = "recording feedfeedfeedfeed is running on this engine"
    with (
        running(config(tmp_path)) as collector,
        SimulatedRecorder(collector.url, ENGINES[0], 8001, Behaviour(refuses=refusal)),
        SimulatedRecorder(collector.url, ENGINES[1], 8002),
    ):
        ended = ControlClient(collector.url).record(steps=3, workers=WORKERS)
    assert ended["reasons"] == [f"127.0.0.1:8001/0: refused: {refusal}"]


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        (Behaviour(last_spans_lost=1), "127.0.0.1:8001/0: 63 of 64 spans of rank 0 arrived"),
        (Behaviour(closing_event=False), "127.0.0.1:8001/0: its closing event did not arrive, so more may be missing"),
        (
            Behaviour(totals_off_by_ns=1),
            "the spans of 4 steps do not add up to their totals (mismatched_steps names them)",
        ),
        (Behaviour(reasons=("a hook failed",)), "127.0.0.1:8001/0: a hook failed"),
    ],
)
def test_what_is_not_whole_is_not_complete(tmp_path: Path, behaviour: Behaviour, reason: str) -> None:
    with running(config(tmp_path)) as collector, SimulatedRecorder(collector.url, ENGINES[0], 8001, behaviour):
        ended = ControlClient(collector.url).record(steps=4)
    assert (ended["state"], ended["complete"]) == ("done", False)
    assert reason in ended["reasons"]
    header = RunDirectory(Path(ended["run"])).header
    assert reason in header["reasons"]
    assert bool(header["mismatched_steps"]) == ("add up" in reason)


def test_one_engine_in_two_recordings_is_refused(tmp_path: Path) -> None:
    with (
        running(config(tmp_path)) as collector,
        SimulatedRecorder(collector.url, ENGINES[0], 8001, Behaviour(most_steps=1)),
        SimulatedRecorder(collector.url, ENGINES[1], 8002),
    ):
        client = ControlClient(collector.url)
        until(lambda: len(client.recorders()) == 2)
        first = client.start(steps=5, workers=WORKERS[:1])
        status, error = client.call("POST", "/recordings", {"workers": WORKERS})
        assert status == 409
        assert error["error"]["message"] == (
            f"recording {first} runs on 127.0.0.1:8001/0; wait for its end, or end it:"
            f" curl -X DELETE {collector.url}/control/v1/recordings/{first}"
        )
        assert client.record(steps=2, workers=WORKERS[1:])["complete"] is True  # another engine is free
        client.call("DELETE", f"/recordings/{first}")
        client.finish(first)


@pytest.mark.parametrize("workers", [[], WORKERS[:1]])
def test_an_engine_that_a_collector_left_busy_is_told_to_stop_and_awaited(tmp_path: Path, workers: list[str]) -> None:
    with (
        running(config(tmp_path)) as collector,
        SimulatedRecorder(collector.url, ENGINES[0], 8001, Behaviour(busy_with=GONE)) as engine,
    ):
        ended = ControlClient(collector.url).record(steps=2, workers=workers)
        assert [(each["type"], each["recording"]) for each in engine.commands] == [
            ("cancel", GONE),
            ("arm", ended["id"]),
        ]
    assert (ended["state"], ended["complete"]) == ("done", True)


@pytest.mark.parametrize("workers", [[], WORKERS[:1]])
def test_an_engine_that_stays_busy_is_named(tmp_path: Path, workers: list[str]) -> None:
    poll = {**POLL, "status": {**POLL["status"], "phase": "exporting", "recording": GONE}}
    with running(config(tmp_path)) as collector:
        client = ControlClient(collector.url)
        first = client.call("POST", "/recorders/poll", poll)[1]["command"]
        assert (first["type"], first["recording"]) == ("cancel", GONE)
        seen = poll | {"seen": first["id"]}
        assert client.call("POST", "/recorders/poll", seen)[1]["command"] is None  # once
        ended = client.record(wait_seconds=0.2, workers=workers)
        assert ended["message"] == f"no engine to record within 0.2 s; http://127.0.0.1:8001: {BUSY}"
        assert ended["unmatched_workers"] == [{"url": "http://127.0.0.1:8001", "reason": BUSY}]


def test_engines_that_still_export_are_awaited(tmp_path: Path) -> None:
    patient = config(tmp_path, patience=replace(QUICK, late=0.2, disarming=0.2, silent=2.0))
    with (
        running(patient) as collector,
        SimulatedRecorder(collector.url, ENGINES[0], 8001, Behaviour(silent_once_armed=True)),
        SimulatedRecorder(collector.url, ENGINES[1], 8002, Behaviour(exporting_seconds=4.0)),
    ):
        ended = ControlClient(collector.url).record(steps=3, workers=WORKERS)
    assert ended["steps"] == {"decode": 2, "prefill": 1}
    assert ended["reasons"] == ["127.0.0.1:8001/0: it vanished before it took the command (0 of 3 steps made)"]


def test_an_engine_that_said_that_its_data_waits_is_through_when_all_is_here(tmp_path: Path) -> None:
    with (
        running(config(tmp_path, patience=replace(QUICK, exporting=3600.0))) as collector,
        SimulatedRecorder(collector.url, behaviour=Behaviour(says_waiting=True)),
    ):
        until(ControlClient(collector.url).recorders)
        result = ControlClient(collector.url).record(steps=3)
    assert (result["complete"], result["reasons"]) == (True, [])
    assert result["engines"][0]["phase"] == "done"


@pytest.mark.parametrize("pause", [0.0, 0.2], ids=["at once", "slowly"])
def test_what_an_exporter_sends_after_its_engine_has_ended_counts(tmp_path: Path, pause: float) -> None:
    with (
        running(config(tmp_path, patience=replace(QUICK, silent=1.0))) as collector,
        SimulatedRecorder(collector.url, behaviour=Behaviour(dies_exporting=pause)),
    ):
        until(ControlClient(collector.url).recorders)
        result = ControlClient(collector.url).record(steps=5)
    assert (result["complete"], result["reasons"]) == (True, [])


@pytest.mark.parametrize("workers", [[], ["http://127.0.0.1:8001"]])
def test_two_recordings_that_wait_for_one_engine_get_it_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: list[str]
) -> None:
    both_see_it = threading.Barrier(2, timeout=20)

    def looked(*args: Any) -> Selection:
        selection = select(*args)
        if selection.chosen and not looks.is_set():
            both_see_it.wait()
            looks.set()
        return selection

    looks = threading.Event()
    monkeypatch.setattr(recording_task, "select", looked)
    with running(config(tmp_path)) as collector:
        control = ControlClient(collector.url)
        started = [control.start(steps=2, workers=workers, wait_seconds=20) for _ in range(2)]
        with SimulatedRecorder(collector.url):
            results = [control.finish(each) for each in started]
    assert [(each["complete"], each["reasons"]) for each in results] == [(True, [])] * 2


def test_every_problem_of_every_engine_is_told(tmp_path: Path) -> None:
    impatient = config(tmp_path, patience=replace(QUICK, exporting=0.3, disarming=0.3))
    status = {**POLL["status"], "steps_asked": 3}
    with running(impatient) as collector:
        client = ControlClient(collector.url)
        client.call("POST", "/recorders/poll", POLL)
        recording = client.start(steps=3, workers=WORKERS[:1], timeout_seconds=1)
        command = until(lambda: client.call("POST", "/recorders/poll", POLL)[1]["command"])
        status |= {"phase": "recording", "recording": recording, "steps_done": 1}
        while (shown := client.show(recording))["state"] == "recording":
            client.call("POST", "/recorders/poll", POLL | {"seen": command["id"], "status": status})
        status |= {"phase": "exporting"}
        while shown["state"] == "finishing":
            client.call("POST", "/recorders/poll", POLL | {"seen": command["id"], "status": status})
            shown = client.show(recording)
    assert shown["message"] == (
        "127.0.0.1:8001/0: it made 1 of 3 steps within 1 s; does it have requests? `--requests 4` sends some;"
        " it is still exporting (1 of 3 steps made), and nothing came for 0.3 s"
    )


def test_refused_recorders_explain_a_missing_one(tmp_path: Path) -> None:
    with running(config(tmp_path, token="secret")) as collector:
        client = ControlClient(collector.url, "secret")
        with SimulatedRecorder(collector.url, ENGINES[0], 8001, token="guess"):
            (refused,) = until(lambda: client.call("GET", "/recorders")[1]["refused"])
            assert (refused["address"], refused["count"] >= 1) == ("127.0.0.1", True)
            for workers in ([], WORKERS[:1]):
                assert (
                    "recorders call from 127.0.0.1 with a missing or wrong token: VIME_OTEL_TOKEN must be the same"
                    in client.record(wait_seconds=0.1, workers=workers)["message"]
                )


def test_users_who_gave_requests_are_told_what_helps(tmp_path: Path) -> None:
    api = {"GET /v1/models": answer(body={"data": [{"id": "m"}]}), "POST /v1/completions": answer(body={})}
    with (
        serving_in_thread(api) as (url,),
        running(config(tmp_path)) as collector,
        SimulatedRecorder(collector.url, ENGINES[0], int(url.rpartition(":")[2]), Behaviour(most_steps=0)),
    ):
        ended = ControlClient(collector.url).record(workers=[url], requests=1, max_tokens=7, timeout_seconds=1, steps=1)
    assert ended["message"].endswith(
        "it made 0 of 1 step within 1 s, with 1 request of 7 tokens:"
        " more --requests, more --max-tokens, fewer --steps or a longer --timeout help"
    )


def test_completions_that_fail_explain_missing_steps(tmp_path: Path) -> None:
    with (
        serving_in_thread({"GET /v1/models": answer(500, text="broken")}) as (url,),
        running(config(tmp_path)) as collector,
        SimulatedRecorder(collector.url, ENGINES[0], int(url.rpartition(":")[2]), Behaviour(most_steps=1)),
    ):
        ended = ControlClient(collector.url).record(workers=[url], requests=2, timeout_seconds=3)
    assert any(reason.startswith(f"2 of 2 requests to {url} failed: ") for reason in ended["reasons"])


def test_a_run_that_cannot_be_written_fails_with_one_line(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    with (
        running(config(root)) as collector,
        SimulatedRecorder(collector.url, ENGINES[0], 8001, Behaviour(most_steps=2)) as engine,
    ):
        client = ControlClient(collector.url)
        recording = client.start(steps=9)
        until(lambda: engine.phase == "recording")
        shutil.rmtree(root)
        root.write_text("a file where the folder was")
        client.call("DELETE", f"/recordings/{recording}")
        ended = client.finish(recording)
        assert 503 in engine.answers
    assert ended["state"] == "failed"
    assert "\n" not in ended["message"]
