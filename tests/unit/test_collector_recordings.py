"""Whole recordings over real sockets, with simulated engines."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from running_collector import QUICK, ControlClient, config, running, until
from simulated_recorder import Behaviour, SimulatedRecorder
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
    assert ended["complete"] is True, ended["reasons"]
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
        assert ended["complete"] is True, ended["reasons"]
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
    assert ended["complete"] is True, ended["reasons"]
    for sent in prompts.values():
        assert len(sent) == 3
        assert len({each["prompt"].split()[0] for each in sent}) == 3
        assert all(each["max_tokens"] == 7 and "hello" in each["prompt"] for each in sent)


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


def test_what_the_closing_event_tells_of_cost_and_production_is_kept(tmp_path: Path) -> None:
    closing = {"notes": ["the log was full"], "hooks": {"found": [], "missing": ["moe.route"]}}
    with (
        running(config(tmp_path)) as collector,
        SimulatedRecorder(collector.url, ENGINES[0], 8001, Behaviour(execution="piecewise", closing=closing)),
    ):
        ended = ControlClient(collector.url).record(steps=3)
    assert ended["complete"] is True, ended["reasons"]
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
        assert ended["complete"] is True, ended["reasons"]
        runs[per_layer] = RunDirectory(Path(ended["run"]))
    assert runs[True].self_us("decode") == runs[False].self_us("decode")
    assert runs[True].calls("decode", f"{ENGINES[0]}-0") == runs[False].calls("decode", f"{ENGINES[0]}-0")
    layer = "step;execute_model;forward;layers.1:Qwen3MoeDecoderLayer"
    assert runs[True].calls("decode", by_layer=True)[layer] == 2
    assert not runs[False].has_layers
