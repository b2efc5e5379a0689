"""Which engines are meant, and what an engine's polls say of its part."""

from __future__ import annotations

from dataclasses import replace

import pytest

from collector.addresses import addresses_of
from collector.recordings.engine_part import EnginePart
from collector.recordings.messages import Introduction, RecordingRequest, Status
from collector.recordings.selection import select
from collector.router import Worker

RECORDING = "feedfacefeedface"
FIRST = Introduction(
    engine="00000000000000a1",
    label="127.0.0.1:8001/0",
    addresses=tuple(addresses_of("127.0.0.1")),
    host="here",
    pid=1,
    api_ports=(8001,),
    model="m",
    dp_rank=0,
    ranks=1,
    vllm_version="0.32.0",
    vime_otel_version="0.1.0",
    execution="eager",
)
SECOND = replace(FIRST, engine="00000000000000b2", label="127.0.0.1:8002/0", api_ports=(8002,))
DP_SIBLING = replace(FIRST, engine="00000000000000c3", label="127.0.0.1:8001/1", dp_rank=1)
WORKERS = [Worker("http://127.0.0.1:8001"), Worker("http://127.0.0.1:8002")]
URL = "http://127.0.0.1:4318"


def test_all_recorders_are_meant_where_no_worker_is_named() -> None:
    selection = select(RecordingRequest(), [], [FIRST, SECOND], {}, URL)
    assert [each.url for each in selection.chosen] == ["http://127.0.0.1:8001", "http://127.0.0.1:8002"]
    assert selection.whole
    assert not select(RecordingRequest(), [], [], {}, URL).whole
    assert len(select(RecordingRequest(limit=1), [], [FIRST, SECOND], {}, URL).chosen) == 1
    unknown_port = replace(FIRST, api_ports=(), label="10.0.0.7:pid-1/0")
    assert select(RecordingRequest(), [], [unknown_port], {}, URL).chosen[0].url == ""


def test_workers_are_awaited_until_each_has_a_recorder() -> None:
    selection = select(RecordingRequest(), WORKERS, [FIRST], {}, URL)
    assert not selection.whole
    assert selection.message == "1 of 2 workers with a recorder"
    (unmatched,) = selection.unmatched
    assert unmatched.url == WORKERS[1].url
    assert f"VIME_OTEL_COLLECTOR={URL}" in unmatched.reason
    selection = select(RecordingRequest(), WORKERS, [FIRST, SECOND], {}, URL)
    assert selection.whole
    assert selection.message == "2 of 2 workers with a recorder"
    assert select(RecordingRequest(), WORKERS[:1], [], {}, URL).message == "0 of 1 worker with a recorder"


def test_every_data_parallel_rank_of_a_worker_is_chosen() -> None:
    selection = select(RecordingRequest(), WORKERS[:1], [FIRST, DP_SIBLING, SECOND], {}, URL)
    assert [each.introduction for each in selection.chosen] == [FIRST, DP_SIBLING]


def test_an_engine_of_another_recording_is_left_alone_and_told() -> None:
    claimed = {FIRST.engine: "0123456789abcdef"}
    selection = select(RecordingRequest(), WORKERS, [FIRST, SECOND], claimed, URL)
    assert [each.introduction for each in selection.chosen] == [SECOND]
    assert selection.whole
    assert [each.reason for each in selection.unmatched] == ["recording 0123456789abcdef runs on its engine"]


@pytest.mark.parametrize(("limit", "told"), [(None, 1), (1, 0), (2, 1)])
def test_where_no_worker_is_named_engines_of_another_recording_are_told_too(limit: int | None, told: int) -> None:
    claimed = {FIRST.engine: "0123456789abcdef"}
    selection = select(RecordingRequest(limit=limit), [], [FIRST, SECOND], claimed, URL)
    assert [each.introduction for each in selection.chosen] == [SECOND]
    assert [each.reason for each in selection.unmatched] == ["recording 0123456789abcdef runs on its engine"] * told


def part() -> EnginePart:
    return EnginePart(FIRST, "http://127.0.0.1:8001", 20, arm_id="arm")


def status(phase: str, recording: str | None = RECORDING, done: int = 0, reason: str | None = None) -> Status:
    return Status(phase, recording, done, 20, reason)


def test_a_part_follows_the_polls_of_its_recording() -> None:
    engine = part()
    assert not engine.update(RECORDING, status("idle", None), None)
    assert not engine.update(RECORDING, status("done", "another", 20), None)
    assert engine.in_window
    assert engine.update(RECORDING, status("armed"), "arm")
    assert engine.update(RECORDING, status("recording", done=3), "arm")
    assert not engine.update(RECORDING, status("recording", done=3), "arm")
    assert engine.update(RECORDING, status("exporting", done=20), "arm")
    assert not engine.in_window
    assert engine.update(RECORDING, status("done", done=20), "arm")
    assert engine.over
    assert engine.complaint() is None
    assert not engine.update(RECORDING, status("recording", done=1), "arm")  # late polls change nothing
    assert engine.phase == "done"


@pytest.mark.parametrize(("reason", "phase"), [(None, "done"), ("a hook failed", "failed")])
def test_a_recorder_that_went_on_to_idle_is_over(reason: str | None, phase: str) -> None:
    engine = part()
    engine.update(RECORDING, status("armed"), "arm")
    engine.update(RECORDING, status("idle", reason=reason), "arm")
    assert (engine.over, engine.phase) == (True, phase)


def test_all_that_is_known_against_a_part_is_told() -> None:
    engine = part()
    engine.update(RECORDING, status("recording", done=3), "arm")
    engine.problems.append("too few steps")
    engine.update(RECORDING, status("cancelled", reason="cancelled by the collector"), "arm")
    assert engine.complaint() == "127.0.0.1:8001/0: too few steps"
    engine = part()
    engine.problems.append("too few steps")
    engine.update(RECORDING, status("failed", reason="the disk is full"), "arm")
    assert engine.complaint() == "127.0.0.1:8001/0: too few steps; failed: the disk is full"


def test_a_refusal_is_ours_where_it_answers_our_command() -> None:
    engine = part()
    assert not engine.update(RECORDING, status("refused", "another"), "some other command")
    assert engine.update(RECORDING, status("refused", "another", reason="recording x runs"), "arm")
    assert engine.complaint() == "127.0.0.1:8001/0: refused: recording x runs"
