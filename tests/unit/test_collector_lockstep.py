"""Engines that run in lockstep are chosen, started and given up together."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from running_collector import QUICK, ControlClient, config, running, until
from simulated_recorder import Behaviour, Lockstep, SimulatedRecorder
from standins import answer, serving_in_thread
from test_collector_selection import FIRST, SECOND, URL, WORKERS, status

from collector.recordings.engine_part import EnginePart
from collector.recordings.lockstep import LockstepGroup, PartialGroup, groups_of, partial_groups
from collector.recordings.messages import Introduction, RecordingRequest
from collector.recordings.selection import select
from vime_otel.data import otlp
from vime_otel.data.lockstep import start_position
from vime_otel.data.rundir import RunDirectory

ENGINES = ("00000000000000a1", "00000000000000b2")
GROUP = "0123456789abcdef"
RECORDING = "feedfacefeedface"


def lockstep(rank: int, position: tuple[int, int] = (0, 0), steps_per_second: float = 0.0, size: int = 2) -> Lockstep:
    return Lockstep(GROUP, rank, size, position, steps_per_second)


def member(rank: int, size: int = 2, **changes: Any) -> Introduction:
    introduction = replace(
        FIRST, engine=f"{rank:016x}", label=f"127.0.0.1:8001/{rank}", dp_rank=rank, dp_group=GROUP, dp_size=size
    )
    return replace(introduction, **changes)


# -- where a group starts ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stands", "start"),
    [
        ([((3, 0), 0.0), ((3, 0), 0.0)], (3, 0)),
        ([((3, 0), 90.0), ((3, 1), 0.0)], (3, 181)),
        ([((3, 100), 8.0), ((3, 97), 9.0)], (3, 164)),
        ([((3, 100), 50.2), ((3, 97), 9.0)], (3, 201)),
        ([((2, 900), 0.0), ((3, 0), 0.0)], (3, 64)),
    ],
)
def test_a_working_group_starts_ahead_and_an_idle_one_where_it_is(stands: Any, start: tuple[int, int]) -> None:
    assert start_position(stands) == start


def parts(*introductions: Introduction) -> list[EnginePart]:
    return [EnginePart(each, "http://127.0.0.1:8001", 20, arm_id="arm") for each in introductions]


def test_a_group_starts_once_when_all_are_armed_and_tell_where_they_stand() -> None:
    one, two = parts(member(0), member(1))
    group = LockstepGroup([one, two])
    assert group.find_start() is None
    one.update(RECORDING, replace(status("armed"), position=(1, 7), steps_per_second=2.0), "arm")
    two.update(RECORDING, status("armed"), "arm")
    assert group.find_start() is None
    two.update(RECORDING, replace(status("armed"), position=(1, 9)), "arm")
    assert group.find_start() == (1, 73)
    assert group.find_start() is None


def test_a_group_is_ready_when_every_engine_has_seen_its_start() -> None:
    one, two = parts(member(0), member(1))
    group = LockstepGroup([one, two])
    assert not group.ready
    for part in (one, two):
        part.start_id = f"start {part.engine}"
        assert not group.ready
        part.update(RECORDING, replace(status("armed"), position=(1, 0)), part.start_id)
    assert group.ready


def test_engines_are_grouped_by_what_they_tell() -> None:
    other = replace(member(0), engine="f" * 16, dp_group="f" * 16)
    found = groups_of(parts(member(0), FIRST, other, member(1)))
    assert [[part.engine for part in group.parts] for group in found] == [
        [member(0).engine, member(1).engine],
        [other.engine],
    ]


# -- which engines -----------------------------------------------------------------------------------


def test_a_whole_group_is_no_partial_one() -> None:
    assert partial_groups([member(0), member(1), FIRST], [member(0), member(1), FIRST]) == ()


def test_missing_ranks_are_named_with_why() -> None:
    (found,) = partial_groups([member(0, 4), member(2, 4)], [member(0, 4), member(1, 4), member(2, 4)])
    assert found == PartialGroup((member(0, 4), member(2, 4)), 4, silent=(3,), left_out=(1,))
    assert found.labels == "127.0.0.1:8001/0, 127.0.0.1:8001/2"
    assert found.explanation == (
        "of its lockstep group of 4 engines, data-parallel rank 3 has no recorder and data-parallel rank 1 has"
        " been left out of this recording"
    )


def test_a_limit_takes_whole_groups() -> None:
    known = [SECOND, member(0), member(1)]
    selection = select(RecordingRequest(limit=2), [], known, {}, URL)
    assert [each.introduction for each in selection.chosen] == known
    assert select(RecordingRequest(limit=1), [], known, {}, URL).chosen[0].introduction == SECOND
    elsewhere = member(1, api_ports=(8009,))
    selection = select(RecordingRequest(limit=1), WORKERS[:1], [member(0), elsewhere], {}, URL)
    assert [each.introduction for each in selection.chosen] == [member(0), elsewhere]
    assert selection.partial == ()


def test_an_engine_without_an_api_server_of_its_own_goes_with_its_group() -> None:
    headless = member(1, api_ports=(), label="10.0.0.9:pid-7/1")
    selection = select(RecordingRequest(), WORKERS[:1], [member(0), headless], {}, URL)
    assert [(each.introduction, each.url) for each in selection.chosen] == [
        (member(0), "http://127.0.0.1:8001"),
        (headless, "http://127.0.0.1:8001"),
    ]
    assert selection.whole


def test_a_group_is_awaited_until_all_its_ranks_have_a_recorder() -> None:
    selection = select(RecordingRequest(), WORKERS[:1], [member(0)], {}, URL)
    assert not selection.whole
    assert selection.message == (
        "1 of 1 worker with a recorder;"
        " 127.0.0.1:8001/0: of its lockstep group of 2 engines, data-parallel rank 1 has no recorder"
    )
    left_out = select(RecordingRequest(), WORKERS[:1], [member(0), member(1, api_ports=(8009,))], {}, URL)
    assert left_out.whole
    assert left_out.partial[0].left_out == (1,)


# -- whole recordings --------------------------------------------------------------------------------


def record(root: Path, *behaviours: Behaviour, **body: Any) -> tuple[dict[str, Any], list[SimulatedRecorder]]:
    """Record engines that share a port, as those of one server do; what came of it."""
    with running(config(root, patience=replace(QUICK, late=0.2))) as collector:
        engines = [
            SimulatedRecorder(collector.url, engine, 8001, behaviour)
            for engine, behaviour in zip(ENGINES, behaviours, strict=False)
        ]
        for engine in engines:
            engine.start()
        try:
            client = ControlClient(collector.url)
            until(lambda: len(client.recorders()) == len(engines))
            body = {"steps": 4, "workers": ["http://127.0.0.1:8001"]} | body
            return client.record(**body), engines
        finally:
            for engine in engines:
                engine.__exit__()


def test_a_working_group_starts_at_one_position_and_shares_its_traces(tmp_path: Path) -> None:
    ended, engines = record(
        tmp_path,
        Behaviour(lockstep=lockstep(0, (5, 100), 10.0)),
        Behaviour(lockstep=lockstep(1, (5, 103), 40.0)),
    )
    assert (ended["complete"], ended["reasons"]) == (True, [])
    for engine in engines:
        assert [command["type"] for command in engine.commands] == ["arm", "start"]
        assert engine.commands[0]["together"] is True
        assert (engine.commands[1]["recording"], engine.commands[1]["position"]) == (ended["id"], [5, 183])
    run = RunDirectory(Path(ended["run"]))
    traces = [[row.trace_id for row in run.rows if row.engine == engine] for engine in ENGINES]
    assert traces[0] == traces[1]
    assert traces[0][2] == otlp.group_ids(ended["id"], GROUP, 5, 185)[0].hex()


def test_an_idle_group_starts_with_its_next_step_and_idle_steps_count_for_nothing(tmp_path: Path) -> None:
    ended, engines = record(
        tmp_path,
        Behaviour(lockstep=lockstep(0, (2, 0))),
        Behaviour(lockstep=lockstep(1, (2, 0)), only_idle=True),
    )
    assert [command["position"] for engine in engines for command in engine.commands[1:]] == [[2, 0]] * 2
    assert (ended["complete"], ended["steps"]) == (True, {"decode": 3, "prefill": 1})
    run = RunDirectory(Path(ended["run"]))
    assert [row.kind for row in run.rows if row.engine == ENGINES[1]] == ["idle"] * 4
    idle = next(engine for engine in run.header["engines"] if engine["id"] == ENGINES[1])
    assert (idle["complete"], idle["steps"], idle["ranks"]) == (True, {"idle": 4}, [])
    assert run.ranks() == [f"{ENGINES[0]}-0"]
    assert run.calls("decode")["step"] == 3


def test_spans_of_a_group_are_checked_against_their_totals(tmp_path: Path) -> None:
    ended, _ = record(
        tmp_path, Behaviour(lockstep=lockstep(0)), Behaviour(lockstep=lockstep(1), totals_off_by_ns=1), steps=2
    )
    assert ended["reasons"] == ["the spans of 2 steps do not add up to their totals (mismatched_steps names them)"]
    wrong = RunDirectory(Path(ended["run"])).header["mismatched_steps"]
    assert [(each["engine"], each["rank"]) for each in wrong] == [(ENGINES[1], "0")] * 2


def test_an_engine_that_starts_too_late_is_named_and_the_others_are_disarmed(tmp_path: Path) -> None:
    ended, engines = record(
        tmp_path,
        Behaviour(lockstep=lockstep(0, (5, 100)), has_started=True),
        Behaviour(lockstep=lockstep(1, (5, 100)), most_steps=2),
    )
    assert ended["complete"] is False
    told = ended["reasons"] or ended["message"].split("; ")  # the other one may not have made a step
    assert sorted(told) == [
        "127.0.0.1:8001/0: failed: the command to start with the group at (5, 164) came when it was at (5, 164)"
        " already",
        "127.0.0.1:8001/1: disarmed with its lockstep group, since 127.0.0.1:8001/0 failed",
    ]
    assert engines[1].phase == "cancelled"


def test_an_engine_that_will_not_begin_holds_no_other_one_up(tmp_path: Path) -> None:
    ended, engines = record(
        tmp_path, Behaviour(lockstep=lockstep(0), refuses="too little memory"), Behaviour(lockstep=lockstep(1))
    )
    assert (ended["state"], ended["run"]) == ("failed", None)
    assert sorted(ended["message"].split("; ")) == [
        "127.0.0.1:8001/0: refused: too little memory",
        "127.0.0.1:8001/1: disarmed with its lockstep group, since 127.0.0.1:8001/0 refused",
    ]
    assert [command["type"] for command in engines[1].commands] == ["arm", "cancel"]


def test_a_group_of_which_an_engine_has_no_recorder_is_recorded_in_part(tmp_path: Path) -> None:
    ended, _ = record(tmp_path, Behaviour(lockstep=lockstep(0)), wait_seconds=0.5)
    assert (ended["state"], ended["complete"], ended["steps"]) == ("done", False, {"decode": 3, "prefill": 1})
    assert ended["reasons"] == [
        "127.0.0.1:8001/0: of its lockstep group of 2 engines, data-parallel rank 1 has no recorder"
    ]


def test_a_group_of_which_an_engine_was_not_asked_for_is_noted(tmp_path: Path) -> None:
    with (
        running(config(tmp_path)) as collector,
        SimulatedRecorder(collector.url, ENGINES[0], 8001, Behaviour(lockstep=lockstep(0))),
        SimulatedRecorder(collector.url, ENGINES[1], 8002, Behaviour(lockstep=lockstep(1))) as other,
    ):
        client = ControlClient(collector.url)
        ended = client.record(steps=2, workers=["http://127.0.0.1:8001", "http://127.0.0.1:8002"])
        assert (ended["complete"], len(ended["engines"])) == (True, 2)
        before = len(other.commands)
        ended = client.record(steps=2, workers=["http://127.0.0.1:8001"])
        assert len(other.commands) == before
    assert ended["complete"] is True, ended["reasons"]
    assert RunDirectory(Path(ended["run"])).header["notes"] == [
        "127.0.0.1:8001/0: of its lockstep group of 2 engines, data-parallel rank 1 has been left out of this recording"
    ]


def test_part_of_a_group_is_not_forced_to_run_eagerly(tmp_path: Path) -> None:
    ended, (engine,) = record(tmp_path, Behaviour(lockstep=lockstep(0)), wait_seconds=0.5, force_eager=True)
    assert (ended["state"], ended["run"], engine.commands) == ("failed", None, [])
    assert ended["message"] == (
        "127.0.0.1:8001/0: not recorded: of its lockstep group of 2 engines, data-parallel rank 1 has no recorder,"
        " and a group can't be forced to run eagerly in part; record without --force-eager, or bring the whole group in"
    )


def test_a_whole_group_is_forced_and_engines_beside_a_partial_one_are_recorded(tmp_path: Path) -> None:
    compiled = Behaviour(execution="compiled")
    ended, _ = record(
        tmp_path / "whole",
        replace(compiled, lockstep=lockstep(0)),
        replace(compiled, lockstep=lockstep(1)),
        force_eager=True,
    )
    assert ended["complete"] is True, ended["reasons"]
    assert {row.execution for row in RunDirectory(Path(ended["run"])).rows} == {"forced_eager"}
    ended, engines = record(
        tmp_path / "part", replace(compiled, lockstep=lockstep(0)), compiled, force_eager=True, wait_seconds=0.5
    )
    assert ended["complete"] is False
    (reason,) = ended["reasons"]
    assert reason.startswith("127.0.0.1:8001/0: not recorded: ")
    assert [each["engine"] for each in ended["engines"]] == [ENGINES[1]]
    assert engines[0].commands == []


def test_completions_wait_until_the_group_knows_where_to_start(tmp_path: Path) -> None:
    api = {"GET /v1/models": answer(body={"data": [{"id": "m"}]}), "POST /v1/completions": answer(body={})}
    with serving_in_thread(api) as (url,), running(config(tmp_path)) as collector:
        port = int(url.rpartition(":")[2])
        with (
            SimulatedRecorder(collector.url, ENGINES[0], port, Behaviour(lockstep=lockstep(0))),
            SimulatedRecorder(collector.url, ENGINES[1], port, Behaviour(lockstep=lockstep(1))),
        ):
            ended = ControlClient(collector.url).record(workers=[url], requests=1, steps=8)
    assert (ended["complete"], ended["reasons"]) == (True, [])
