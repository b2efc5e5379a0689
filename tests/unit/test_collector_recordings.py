"""Whole recordings over real sockets, with simulated engines."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from running_collector import QUICK, ControlClient, config, running, until
from simulated_recorder import POLL, Behaviour, SimulatedRecorder
from standins import answer, closed_port_url, serving_in_thread

from collector.journal.replay import restore, totals_of
from collector.journal.request_journal import KnownRequests
from collector.totals.sums import Sums
from vime_otel.data.find_runs import list_runs
from vime_otel.data.journal import JournalReader
from vime_otel.data.rundir import RunDirectory

ENGINES = ("00000000000000a1", "00000000000000b2")
WORKERS = ["http://127.0.0.1:8001", "http://127.0.0.1:8002"]


def test_two_engines_make_a_complete_run(tmp_path: Path) -> None:
    with (
        running(config(tmp_path)) as collector,
        SimulatedRecorder(collector.url, ENGINES[0], 8001, Behaviour(ranks=2)),
        SimulatedRecorder(collector.url, ENGINES[1], 8002),
    ):
        ended = ControlClient(collector.url).record(steps=6, workers=WORKERS, label="two engines")
    assert (ended["state"], ended["complete"], ended["reasons"]) == ("done", True, [])
    assert ended["steps"] == {"decode": 10, "prefill": 2}
    run = RunDirectory(Path(ended["run"]))
    assert run.path.name.endswith(f"-{ended['id'][:8]}-two_engines")
    assert run.ranks() == [f"{ENGINES[0]}-0", f"{ENGINES[0]}-1", f"{ENGINES[1]}-0"]
    header = run.header
    assert header["complete"] is True
    assert header["asked"] == {
        "steps": 6,
        "kind": None,
        "timing": "sync",
        "force_eager": False,
        "per_layer": False,
    }
    assert header["pause_ms"] == 0.7
    assert header["overlap_ns"] == 0
    assert header["mismatched_steps"] == []
    assert header["versions"] == {"vime_otel": "test", "vllm": ["0.32.0"]}
    # An engine sends its own part and one a rank; each step of a rank has 16 spans, an engine's own 4.
    assert header["totals"] == {"expected": 30, "received": 30, "duplicate": 0}
    spans = 12 * 4 + 18 * 16
    assert header["spans"] == {"expected": spans, "received": spans, "duplicate": 0, "dropped": 0}
    first = header["engines"][0]
    assert first["id"] == ENGINES[0]
    assert first["complete"] is True
    assert first["steps"] == {"decode": 5, "prefill": 1}
    assert first["ranks"] == [{"rank": str(rank), "stage": 0, "spans": 96, "dropped": 0} for rank in range(2)]
    assert first["hooks"] == {"found": ["execute_model"], "missing": []}


def test_the_folded_files_add_up_to_the_clock(tmp_path: Path) -> None:
    with running(config(tmp_path)) as collector, SimulatedRecorder(collector.url, ENGINES[0]):
        ended = ControlClient(collector.url).record(steps=20)
    run = RunDirectory(Path(ended["run"]))
    rows = [row for row in run.rows if row.kind == "decode"]
    mean_us = sum(row.interval_ns for row in rows) / len(rows) / 1000
    assert len(rows) == 19
    stacks = run.self_us("decode")
    assert sum(stacks.values()) / len(rows) == pytest.approx(mean_us, abs=len(stacks) / len(rows))
    layer = "step;execute_model;forward;Qwen3MoeDecoderLayer"
    assert run.calls("decode")[f"{layer};mlp:SparseMoeBlock;moe.experts"] == 2 * 19
    assert {part.key for part in run.totals(3, 4)} == {
        (ENGINES[0], rank, step) for rank in ("0", "engine") for step in (3, 4)
    }


def test_only_steps_of_the_kind_count(tmp_path: Path) -> None:
    with running(config(tmp_path)) as collector, SimulatedRecorder(collector.url, ENGINES[0]):
        ended = ControlClient(collector.url).record(steps=3, kind="decode")
    assert ended["complete"] is True
    assert ended["steps"] == {"decode": 3, "prefill": 1}


def test_requests_that_come_twice_count_once(tmp_path: Path) -> None:
    runs = {}
    for twice in (False, True):
        root = tmp_path / str(twice)
        behaviour = Behaviour(every_request_twice=twice)
        with (
            running(config(root)) as collector,
            SimulatedRecorder(collector.url, ENGINES[0], 8001, behaviour) as engine,
        ):
            ended = ControlClient(collector.url).record(steps=4)
            assert set(engine.answers) == {200}
        assert ended["complete"] is True
        runs[twice] = RunDirectory(Path(ended["run"]))
    assert runs[True].self_us("decode") == runs[False].self_us("decode")
    assert runs[True].calls("prefill") == runs[False].calls("prefill")
    assert runs[True].header["spans"] == runs[False].header["spans"] | {"duplicate": 4 * (16 + 4)}
    assert runs[True].header["totals"] == runs[False].header["totals"] | {"duplicate": 9}


def test_the_journal_makes_the_same_sums(tmp_path: Path) -> None:
    with (
        running(config(tmp_path)) as collector,
        SimulatedRecorder(collector.url, ENGINES[0], 8001, Behaviour(ranks=2, every_request_twice=True)),
        SimulatedRecorder(collector.url, ENGINES[1], 8002),
    ):
        ended = ControlClient(collector.url).record(steps=3, workers=WORKERS)
    run = RunDirectory(Path(ended["run"]))
    reader, sums = JournalReader(run.path / "spans.otlp"), Sums(ended["id"])
    restore(reader, sums, KnownRequests())
    assert reader.torn_bytes == 0
    totals = {part.key: part for part in totals_of(run.path / "spans.otlp")}
    assert [totals[key] for key in sorted(totals)] == list(run.totals())
    assert [sums.rows[key] for key in sorted(sums.rows)] == run.rows
    assert sums.received_spans == run.header["spans"]["received"]
    assert not any(sums.missing(engine) for engine in ENGINES)


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


def test_the_workers_come_from_the_router(tmp_path: Path) -> None:
    listed = {"workers": [{"url": url, "is_healthy": True, "worker_type": "regular"} for url in WORKERS]}
    with (
        serving_in_thread({"GET /workers": answer(body=listed)}) as (router,),
        running(config(tmp_path)) as collector,
        SimulatedRecorder(collector.url, ENGINES[0], 8001),
        SimulatedRecorder(collector.url, ENGINES[1], 8002),
    ):
        client = ControlClient(collector.url)
        assert client.record(steps=2, router=router)["complete"] is True
        limited = client.record(steps=2, router=router, limit=1)
        assert [each["engine"] for each in limited["engines"]] == [ENGINES[0]]
        status, error = client.call("POST", "/recordings", {"router": closed_port_url()})
        assert status == 400
        assert "can't be reached" in error["error"]["message"]


def test_an_unhealthy_worker_is_not_awaited(tmp_path: Path) -> None:
    listed = {"workers": [{"url": WORKERS[0], "is_healthy": True}, {"url": WORKERS[1], "is_healthy": False}]}
    with (
        serving_in_thread({"GET /workers": answer(body=listed)}) as (router,),
        running(config(tmp_path)) as collector,
        SimulatedRecorder(collector.url, ENGINES[0], 8001),
    ):
        ended = ControlClient(collector.url).record(steps=2, router=router, wait_seconds=3600)
    assert ended["complete"] is False
    assert ended["reasons"] == [f"{WORKERS[1]}: the worker is unhealthy: is its engine up?"]


def test_delete_keeps_what_came(tmp_path: Path) -> None:
    with (
        running(config(tmp_path)) as collector,
        SimulatedRecorder(collector.url, ENGINES[0], 8001, Behaviour(most_steps=3)) as engine,
    ):
        client = ControlClient(collector.url)
        recording = client.start(steps=100)
        until(lambda: any(each["steps_done"] == 3 for each in client.show(recording)["engines"]))
        assert client.call("DELETE", f"/recordings/{recording}")[0] == 200
        ended = client.finish(recording)
        assert engine.phase == "cancelled"
        assert client.call("DELETE", f"/recordings/{recording}")[1] == ended
    assert (ended["state"], ended["complete"]) == ("done", False)
    assert ended["reasons"][0] == "the recording was cancelled"
    assert ended["steps"] == {"decode": 2, "prefill": 1}


def test_delete_while_nobody_was_armed(tmp_path: Path) -> None:
    with running(config(tmp_path)) as collector:
        client = ControlClient(collector.url)
        recording = client.start(workers=WORKERS)
        client.call("DELETE", f"/recordings/{recording}")
        ended = client.finish(recording)
    assert (ended["state"], ended["run"]) == ("failed", None)
    assert ended["message"] == "the recording was cancelled before any engine was armed"


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


def test_where_a_token_is_asked_for_the_command_that_ends_a_recording_shows_it(tmp_path: Path) -> None:
    with (
        running(config(tmp_path, token="secret")) as collector,
        SimulatedRecorder(collector.url, ENGINES[0], 8001, Behaviour(most_steps=1), token="secret"),
    ):
        client = ControlClient(collector.url, "secret")
        until(client.recorders)
        first = client.start(steps=5)
        until(lambda: client.show(first)["engines"])
        message = client.call("POST", "/recordings", {})[1]["error"]["message"]
        assert message.endswith(
            'or end it: curl -X DELETE -H "Authorization: Bearer $VIME_OTEL_TOKEN"'
            f" {collector.url}/control/v1/recordings/{first}"
        )
        client.call("DELETE", f"/recordings/{first}")
        client.finish(first)


GONE = "feedfacefeedface"
BUSY = f"still busy with recording {GONE} of a collector that is gone; it was told to stop"


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


def test_one_engine_spelt_in_three_ways_is_one_worker(tmp_path: Path) -> None:
    spellings = ["http://127.0.0.1:8001/v1", "http://localhost:8001/", "http://LOCALHOST:8001/v1/"]
    with running(config(tmp_path)) as collector:
        ended = ControlClient(collector.url).record(wait_seconds=0, workers=spellings)
    assert [each["url"] for each in ended["unmatched_workers"]] == ["http://127.0.0.1:8001"]


def test_passwords_in_urls_are_not_shown(tmp_path: Path) -> None:
    with running(config(tmp_path)) as collector:
        client = ControlClient(collector.url)
        ended = client.record(wait_seconds=0, workers=["http://me:pw@127.0.0.1:8001"])
        assert [each["url"] for each in ended["unmatched_workers"]] == ["http://127.0.0.1:8001"]
        place = closed_port_url().removeprefix("http://")
        error = client.call("POST", "/recordings", {"router": f"http://me:pw@{place}"})[1]
        assert f"the router http://{place} can't be reached" in error["error"]["message"]


def test_idle_engines_get_completions_at_their_own_url(tmp_path: Path) -> None:
    prompts: dict[int, list[Any]] = {0: [], 1: []}

    def engine_api(number: int) -> dict[str, Any]:
        async def complete(request: web.Request) -> web.Response:
            prompts[number].append(await request.json())
            return web.json_response({"choices": []})

        return {"GET /v1/models": answer(body={"data": [{"id": "m"}]}), "POST /v1/completions": complete}

    with (
        serving_in_thread(engine_api(0), engine_api(1)) as urls,
        running(config(tmp_path)) as collector,
        SimulatedRecorder(collector.url, ENGINES[0], int(urls[0].rpartition(":")[2])),
        SimulatedRecorder(collector.url, ENGINES[1], int(urls[1].rpartition(":")[2])),
    ):
        body = {"workers": urls, "requests": 3, "prompt": "hello", "max_tokens": 7, "steps": 40}
        ended = ControlClient(collector.url).record(**body)
    assert ended["complete"] is True
    for sent in prompts.values():
        assert len(sent) == 3
        assert len({each["prompt"].split()[0] for each in sent}) == 3
        assert all(each["max_tokens"] == 7 and "hello" in each["prompt"] for each in sent)


def test_completions_that_fail_explain_missing_steps(tmp_path: Path) -> None:
    with (
        serving_in_thread({"GET /v1/models": answer(500, text="broken")}) as (url,),
        running(config(tmp_path)) as collector,
        SimulatedRecorder(collector.url, ENGINES[0], int(url.rpartition(":")[2]), Behaviour(most_steps=1)),
    ):
        ended = ControlClient(collector.url).record(workers=[url], requests=2, timeout_seconds=3)
    assert any(reason.startswith(f"2 of 2 requests to {url} failed: ") for reason in ended["reasons"])


def test_without_workers_everybody_who_calls_is_recorded(tmp_path: Path) -> None:
    settled = config(tmp_path, patience=replace(QUICK, settle=0.5))
    with running(settled) as collector:
        client = ControlClient(collector.url)
        recording = client.start(steps=2)
        with (
            SimulatedRecorder(collector.url, ENGINES[0], 8001),
            SimulatedRecorder(collector.url, ENGINES[1], 8002),
        ):
            ended = client.finish(recording)
    assert {each["engine"] for each in ended["engines"]} == set(ENGINES)


def test_stopping_the_collector_disarms_and_writes(tmp_path: Path) -> None:
    with running(config(tmp_path)) as collector:
        engine = SimulatedRecorder(collector.url, ENGINES[0], 8001, Behaviour(most_steps=2))
        with engine:
            client = ControlClient(collector.url)
            recording = client.start(steps=9)
            until(lambda: any(each["steps_done"] == 2 for each in client.show(recording)["engines"]))
            collector.stop()
            assert engine.phase == "cancelled"
    (run,) = list_runs(tmp_path)
    assert run.header["complete"] is False
    assert run.header["reasons"][0] == "the collector was stopped"


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


def test_what_the_closing_event_tells_of_cost_and_production_is_kept(tmp_path: Path) -> None:
    closing = {"notes": ["the log was full"], "hooks": {"found": [], "missing": ["moe.route"]}}
    with (
        running(config(tmp_path)) as collector,
        SimulatedRecorder(collector.url, ENGINES[0], 8001, Behaviour(execution="piecewise", closing=closing)),
    ):
        ended = ControlClient(collector.url).record(steps=3)
    assert ended["complete"] is True
    header = RunDirectory(Path(ended["run"])).header
    (engine,) = header["engines"]
    assert engine["overhead"] == {
        "span_ns": 250.0,
        "sync_ns": 4000.0,
        "spans_per_step": 14.0,
        "added_us_per_step": 115.5,
    }
    assert engine["unrecorded"] == {"decode": {"batch": 4, "before_ms": 3.0, "after_ms": 3.5}}
    assert engine["notes"] == ["the log was full"]
    explained, missing, noted = header["notes"]
    assert explained.startswith("piecewise (3 of 3 steps): CUDA graphs are replayed")
    assert missing == "not found in this vLLM, so without frames of their own: moe.route"
    assert noted == "the log was full"


def test_what_no_reader_would_take_does_not_damage_the_run(tmp_path: Path) -> None:
    closing = {"hooks": ["execute_model"], "overhead": {"span_ns": "cheap"}, "unrecorded": 7, "notes": "none"}
    with (
        running(config(tmp_path)) as collector,
        SimulatedRecorder(collector.url, ENGINES[0], 8001, Behaviour(closing=closing)),
    ):
        ended = ControlClient(collector.url).record(steps=2)
    (engine,) = RunDirectory(Path(ended["run"])).header["engines"]
    assert (engine["hooks"], engine["overhead"], engine["unrecorded"], engine["notes"]) == (None, None, None, [])


def test_a_recording_by_layer_has_both_views(tmp_path: Path) -> None:
    runs = {}
    for per_layer in (False, True):
        with running(config(tmp_path / str(per_layer))) as collector, SimulatedRecorder(collector.url, ENGINES[0]):
            ended = ControlClient(collector.url).record(steps=3, per_layer=per_layer)
        assert ended["complete"] is True
        runs[per_layer] = RunDirectory(Path(ended["run"]))
    assert runs[True].self_us("decode") == runs[False].self_us("decode")
    assert runs[True].calls("decode", f"{ENGINES[0]}-0") == runs[False].calls("decode", f"{ENGINES[0]}-0")
    layer = "step;execute_model;forward;layers.1:Qwen3MoeDecoderLayer"
    assert runs[True].calls("decode", by_layer=True)[layer] == 2
    assert not runs[False].has_layers
