"""Spans of other services: folded by their parents in any order, in bounded memory, the same after a restart."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import shutil
import threading
from collections.abc import Sequence
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from otlp_client import send
from running_collector import QUICK, config, running, until

from collector.counts import Counts
from collector.foreign import foreign_run, foreign_runs, foreign_sums, trace_fold
from collector.foreign.foreign_run import STATE_FILE, ForeignRun
from collector.foreign.foreign_runs import ForeignRuns
from collector.foreign.foreign_sums import ForeignSums, SavedState, decode, encode
from collector.foreign.trace_fold import TraceSpan, TraceSums
from collector.journal import request_journal
from collector.journal.commits import GroupCommit
from collector.journal.intake import Part
from collector.otlp.signals import LOGS, TRACES
from collector.totals.tally import Tally
from viewer.app import create_app
from vime_otel.cli.main import main
from vime_otel.data import otlp
from vime_otel.data.find_runs import list_runs
from vime_otel.data.rundir import RunDirectory

TODAY = date(2026, 11, 30)
Tree = dict[bytes, TraceSpan]


def span_id(number: int) -> bytes:
    return number.to_bytes(8, "big")


def folded(trace: Tree) -> TraceSums:
    sums = TraceSums()
    sums.add_trace(trace)
    return sums


@st.composite
def traces(draw: st.DrawFn) -> Tree:
    """Any spans: parents among them, elsewhere, nowhere or in a circle; times at will."""
    count = draw(st.integers(1, 12))
    made = {}
    for number in range(1, count + 1):
        parent = draw(st.integers(0, count + 2))
        start, length = draw(st.integers(0, 50)), draw(st.integers(0, 50))
        name, remote = draw(st.sampled_from("abc")), draw(st.booleans())
        made[span_id(number)] = TraceSpan(span_id(parent) if parent else b"", name, start, start + length, remote)
    return made


def brute_force(trace: Tree) -> dict[str, int]:
    """Self time by stack, moment by moment: a span's time is its own where no child of it runs."""
    sums: dict[str, int] = {}
    for key, span in trace.items():
        children = [each for of, each in trace.items() if each.parent == key and of != key]
        own = sum(
            not any(child.start <= moment < child.end for child in children) for moment in range(span.start, span.end)
        )
        stack, at, seen = [span.name], span, {key}
        while at.parent in trace and at.parent not in seen:
            seen.add(at.parent)
            at = trace[at.parent]
            stack.insert(0, at.name)
        if at.parent and (at.parent in seen or not at.remote):
            stack.insert(0, trace_fold.UNKNOWN_PARENT)
        sums[";".join(stack)] = sums.get(";".join(stack), 0) + own
    return sums


@given(traces())
def test_self_time_is_what_no_child_covers(trace: Tree) -> None:
    sums = folded(trace)
    assert all(value >= 0 for value in sums.self_ns.values())
    assert sum(sums.calls.values()) == len(trace)
    circles = any(_in_circle(trace, key) for key in trace)
    if not circles:
        assert sums.self_ns == brute_force(trace)
        orphans = [s for s in trace.values() if s.parent and s.parent not in trace and not s.remote]
        assert sums.orphans == len(orphans)
    else:
        assert sums.orphans > 0


def test_a_circle_is_cut_once_and_what_hangs_below_it_keeps_its_parent() -> None:
    names = {1: (4, "below"), 2: (3, "a"), 3: (2, "b"), 4: (2, "child")}
    trace = {span_id(n): TraceSpan(span_id(parent), name, 0, 5, False) for n, (parent, name) in names.items()}
    sums = folded(trace)
    assert sums.orphans == 1
    assert sorted(stack.rpartition(";")[2] for stack in sums.calls) == ["a", "b", "below", "child"]
    assert any(stack.endswith("a;child;below") for stack in sums.calls)


def _in_circle(trace: Tree, key: bytes) -> bool:
    seen, at = {key}, trace[key].parent
    while at in trace:
        if at in seen:
            return True
        seen.add(at)
        at = trace[at].parent
    return False


def test_overlapping_children_are_counted_and_no_time_is_negative() -> None:
    trace = {
        span_id(1): TraceSpan(b"", "request", 0, 100, False),
        span_id(2): TraceSpan(span_id(1), "left", 10, 60, False),
        span_id(3): TraceSpan(span_id(1), "right", 40, 90, False),
        span_id(4): TraceSpan(span_id(1), "after", 95, 195, False),
    }
    sums = folded(trace)
    assert sums.self_ns == {"request": 15, "request;left": 50, "request;right": 50, "request;after": 100}
    assert (sums.overlapping, sums.overlap_ns) == (1, 20 + 95)


def test_a_parent_in_another_service_makes_a_root_and_one_that_did_not_come_an_orphan() -> None:
    sums = ForeignSums()
    remote = Span(trace_id=b"t" * 16, span_id=span_id(1), parent_span_id=span_id(9), name="GET", kind=2)
    flagged = Span(trace_id=b"t" * 16, span_id=span_id(2), parent_span_id=span_id(9), name="poll", flags=0x300)
    lost = Span(trace_id=b"t" * 16, span_id=span_id(3), parent_span_id=span_id(9), name="query")
    sums.add(request_of([remote, flagged, lost]))
    assert sums.state.folded().calls == {"GET": 1, "poll": 1, f"{trace_fold.UNKNOWN_PARENT};query": 1}
    assert sums.state.folded().orphans == 1


def test_a_span_that_ends_before_it_begins_takes_no_time() -> None:
    sums = ForeignSums()
    sums.add(request_of([Span(trace_id=b"t" * 16, span_id=span_id(1), name="n", start_time_unix_nano=9)]))
    assert sums.state.folded().self_ns == {"n": 0}


def test_a_chain_without_end_and_stacks_without_number_stay_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = {span_id(n): TraceSpan(span_id(n - 1) if n > 1 else b"", "n", 0, 10**6 - n, False) for n in range(1, 5001)}
    sums = folded(chain)
    assert max(stack.count(";") for stack in sums.calls) == trace_fold.MOST_FRAMES
    assert sums.calls[";".join(["n"] * trace_fold.MOST_FRAMES + [trace_fold.DEEPER])] == 5000 - trace_fold.MOST_FRAMES
    monkeypatch.setattr(trace_fold, "MOST_STACKS", 10)
    many = {span_id(n): TraceSpan(b"", f"GET /users/{n}", 0, 5, False) for n in range(1, 101)}
    sums = folded(many)
    assert len(sums.calls) == 11
    assert (sums.merged, sums.calls[trace_fold.OTHER], sums.self_ns[trace_fold.OTHER]) == (90, 90, 450)


def trace_of(number: int, spans: int = 10) -> list[Span]:
    """A root and a tree below it; span n's parent is n // 2."""
    trace_id = number.to_bytes(16, "big")
    return [
        Span(
            trace_id=trace_id,
            span_id=number.to_bytes(6, "big") + n.to_bytes(2, "big"),
            parent_span_id=b"" if n == 1 else number.to_bytes(6, "big") + (n // 2).to_bytes(2, "big"),
            name=f"op {n % 3}",
            start_time_unix_nano=1000 * n,
            end_time_unix_nano=1000 * n + 300 * (n % 4),
        )
        for n in range(1, spans + 1)
    ]


def request_of(spans: Sequence[Span], service: str = "shop") -> Any:
    return otlp.trace_request(otlp.resource({"service.name": service}), spans)


@pytest.mark.parametrize("seed", range(5))
def test_order_and_division_into_requests_change_nothing(seed: int) -> None:
    spans = [span for number in range(1, 51) for span in trace_of(number)]
    expected = ForeignSums()
    expected.add(request_of(spans))
    rnd = random.Random(seed)
    rnd.shuffle(spans)
    sums, tally = ForeignSums(), Tally()
    while spans:
        size = rnd.randrange(1, 30)
        tally.add(sums.add(request_of(spans[:size])))
        del spans[:size]
    assert sums.state.folded() == expected.state.folded()
    assert (tally.kept, tally.duplicate) == (500, 0)


def test_memory_is_bounded_and_every_span_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign_sums, "MOST_OPEN_SPANS", 100)
    sums, expected = ForeignSums(), TraceSums()
    for number in range(1, 501):
        sums.add(request_of(trace_of(number)))
        assert sums.open_spans <= 100
    whole = ForeignSums()
    monkeypatch.setattr(foreign_sums, "MOST_OPEN_SPANS", 10**9)
    whole.add(request_of([span for number in range(1, 501) for span in trace_of(number)]))
    assert sums.state.folded() == whole.state.folded() != expected
    late = trace_of(1, 12)[10:]  # its trace is folded already
    sums.add(request_of(late))
    assert sums.state.folded().orphans == 2


def test_the_state_goes_on_from_any_point() -> None:
    requests = [request_of(trace_of(number % 7 + 1)[number % 3 :: 3]) for number in range(40)]
    straight = ForeignSums()
    for request in requests:
        straight.add(request)
    for cut in (0, 13, 40):
        first = ForeignSums()
        for request in requests[:cut]:
            first.add(request)
        second = ForeignSums(decode(encode(SavedState("shop", TODAY, 5, first.state, {1: 2}))).state)
        for request in requests[cut:]:
            second.add(request)
        assert second.state == straight.state
        assert second.open_spans == straight.open_spans


def in_loop(coroutine: Any) -> Any:
    return asyncio.run(coroutine)


async def take(run: ForeignRun, spans: Sequence[Span]) -> Tally:
    request = request_of(spans)
    return await run.take(Part(TRACES, request, request.SerializeToString()))


@pytest.mark.parametrize("damage", ["none", "removed", "garbage", "old", "of a longer journal"])
def test_a_run_goes_on_with_and_without_its_state(tmp_path: Path, damage: str) -> None:
    async def begin() -> bytes:
        commits = GroupCommit(Counts())
        commits.start()
        run = ForeignRun("shop", TODAY, tmp_path, "0", commits)
        await take(run, trace_of(1))
        early = run.saved()
        await take(run, trace_of(2)[:5])
        run.write(run.saved())
        await take(run, trace_of(2)[5:])  # in the journal, not in the state
        await run.close()
        await commits.close()
        return early

    async def go_on() -> None:
        commits = GroupCommit(Counts())
        commits.start()
        run = ForeignRun("shop", TODAY, tmp_path, "0", commits)
        assert (await take(run, trace_of(1))) == Tally(duplicate=10)
        await take(run, trace_of(3))
        run.write(run.saved())
        await run.close()
        await commits.close()

    early = in_loop(begin())
    (state,) = tmp_path.glob(f"*/{STATE_FILE}")
    if damage == "removed":
        state.unlink()
    elif damage == "garbage":
        state.write_bytes(b"\xc1" + os.urandom(100))
    elif damage == "old":
        state.write_bytes(early)
    elif damage == "of a longer journal":
        saved = decode(state.read_bytes())
        state.write_bytes(encode(SavedState("shop", TODAY, 10**9, saved.state)))
    in_loop(go_on())
    (run,) = list_runs(tmp_path)
    whole = ForeignSums()
    whole.add(request_of([span for number in (1, 2, 3) for span in trace_of(number)]))
    assert run.calls("all") == whole.state.folded().calls
    assert run.header["intake"]["spans"]["kept"] == 30
    assert run.steps == {"all": 3}


def test_what_comes_again_byte_by_byte_is_known_when_its_trace_is_long_folded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(foreign_sums, "MOST_OPEN_SPANS", 5)

    async def check(again: bool) -> None:
        commits = GroupCommit(Counts())
        commits.start()
        run = ForeignRun("shop", TODAY, tmp_path, "0", commits)
        for number in (1, 2, 3):
            # All three at once, too: the second waits for the first one's way to the disk.
            tallies = await asyncio.gather(*(take(run, trace_of(number)) for _ in range(3)))
            assert sorted(tally.kept for tally in tallies) == ([0, 0, 0] if again else [0, 0, 10])
            assert sum(tally.duplicate for tally in tallies) == (30 if again else 20)
        run.write(run.saved())
        await run.close()
        await commits.close()

    in_loop(check(again=False))
    in_loop(check(again=True))
    (run,) = list_runs(tmp_path)
    assert run.header["intake"]["spans"] == {"accepted": 180, "kept": 30, "duplicate": 150, "dropped": {}}


def test_requests_that_only_look_alike_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_journal, "checksum", lambda signal, payload: 7)

    async def check() -> None:
        commits = GroupCommit(Counts())
        commits.start()
        run = ForeignRun("shop", TODAY, tmp_path, "0", commits)
        tallies = await asyncio.gather(*(take(run, trace_of(number)) for number in (1, 2, 1, 2)))
        assert sum(tally.kept for tally in tallies) == 20
        await run.close()
        await commits.close()

    in_loop(check())


def test_what_comes_again_after_midnight_counts_for_the_day_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check() -> None:
        counts = Counts()
        commits = GroupCommit(counts)
        commits.start()
        runs = ForeignRuns(tmp_path, "0", commits, counts)
        monkeypatch.setattr(foreign_runs, "utc_today", lambda: TODAY)
        resource = request_of(trace_of(1)).resource_spans[0]
        before = runs.find(resource)
        assert before is not None
        await take(before, trace_of(1))
        monkeypatch.setattr(foreign_runs, "utc_today", lambda: TODAY + timedelta(days=1))
        after = runs.find(resource)
        assert after is not None
        assert after is not before
        assert await take(after, trace_of(1)) == Tally(duplicate=10)
        assert await take(after, trace_of(2)) == Tally(kept=10)
        await runs.stop()
        await commits.close()

    in_loop(check())
    assert sorted(run.header["intake"]["spans"]["kept"] for run in list_runs(tmp_path)) == [10, 10]


def test_two_collectors_never_write_one_run(tmp_path: Path) -> None:
    with (
        running(config(tmp_path, serves=True)) as first,
        running(config(tmp_path, serves=True)) as second,
    ):
        assert send(first, "http", TRACES, request_of(trace_of(1))).code == 0
        refused = send(second, "http", TRACES, request_of(trace_of(2)))
        assert (refused.http_status, refused.retry_seconds) == (503, 1)
        assert "another collector has it" in refused.message
    (run,) = list_runs(tmp_path)
    assert run.header["intake"]["spans"]["kept"] == 10


@pytest.mark.parametrize("damage", ["removed", "replaced"])
def test_when_somebody_removes_the_run_what_comes_is_refused_until_it_goes_into_a_new_one(
    tmp_path: Path, damage: str
) -> None:
    runs = tmp_path / "runs"
    with running(config(runs, serves=True, patience=replace(QUICK, rolling=0.2))) as collector:
        assert send(collector, "http", TRACES, request_of(trace_of(1))).code == 0
        (run,) = runs.iterdir()
        run.rename(tmp_path / "elsewhere")
        if damage == "replaced":
            run.mkdir()
            (run / "spans.otlp").touch()
        taken = [
            number for number in range(2, 20) if send(collector, "http", TRACES, request_of(trace_of(number))).code == 0
        ]
        until(lambda: send(collector, "http", TRACES, request_of(trace_of(20))).code == 0)
    (found,) = list_runs(runs)
    assert found.header["traces"]["folded"] == len(taken) + 1


def test_a_run_whose_folder_became_a_file_keeps_no_other_from_being_written(tmp_path: Path) -> None:
    with running(config(tmp_path, serves=True, patience=replace(QUICK, rolling=0.05))) as collector:
        assert send(collector, "http", TRACES, request_of(trace_of(1), "gone")).code == 0
        (run,) = tmp_path.iterdir()
        shutil.rmtree(run)
        run.touch()
        assert send(collector, "http", TRACES, request_of(trace_of(2), "other")).code == 0
        until(lambda: list_runs(tmp_path))
        run.unlink()
        until(lambda: send(collector, "http", TRACES, request_of(trace_of(3), "gone")).code == 0)
    assert sorted(found.header["service"] for found in list_runs(tmp_path)) == ["gone", "other"]


@pytest.mark.parametrize(("code", "removed"), [(errno.ESTALE, True), (errno.EACCES, False), (errno.EIO, False)])
def test_a_run_that_can_not_be_looked_at_is_removed_only_if_the_system_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, removed: bool
) -> None:
    def refuse(path: object) -> None:
        raise OSError(code, os.strerror(code))

    async def check() -> None:
        run = ForeignRun("shop", TODAY, tmp_path, "0", GroupCommit(Counts()))
        with monkeypatch.context() as patch:
            patch.setattr(foreign_run.os, "stat", refuse)
            assert run.removed() == removed
        os.close(run._lock)

    in_loop(check())


def test_a_day_that_is_over_stays_open_until_it_could_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async def check() -> None:
        commits = GroupCommit(Counts())
        commits.start()
        runs = ForeignRuns(tmp_path, "0", commits, Counts())
        monkeypatch.setattr(foreign_runs, "utc_today", lambda: TODAY)
        run = runs.find(request_of(trace_of(1)).resource_spans[0])
        assert run is not None
        await take(run, trace_of(1))
        monkeypatch.setattr(foreign_runs, "utc_today", lambda: TODAY + timedelta(days=2))
        with monkeypatch.context() as patch:
            patch.setattr(ForeignRun, "write", full)
            await runs._write_all()
        assert list_runs(tmp_path) == []
        await runs._write_all()
        assert list_runs(tmp_path)[0].header["intake"]["spans"]["kept"] == 10
        assert runs._open == {}
        await runs.stop()
        await commits.close()

    in_loop(check())


def test_a_write_that_the_stop_comes_upon_is_waited_for_and_followed_by_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    writing, goes_on = threading.Event(), threading.Event()
    real = ForeignRun.write

    def failing_once(self: ForeignRun, saved: bytes) -> None:
        if not writing.is_set():
            writing.set()
            assert goes_on.wait(10)
            raise OSError(errno.ENOSPC, "No space left on device")
        real(self, saved)

    async def check() -> None:
        commits = GroupCommit(Counts())
        commits.start()
        runs = ForeignRuns(tmp_path, "0", commits, Counts())
        run = runs.find(request_of(trace_of(1)).resource_spans[0])
        assert run is not None
        await take(run, trace_of(1))
        keeping = asyncio.ensure_future(runs.keep_writing(0.0))
        assert await asyncio.to_thread(writing.wait, 10)
        keeping.cancel()
        for _ in range(5):
            await asyncio.sleep(0)
        early = keeping.done()
        goes_on.set()
        await asyncio.wait([keeping], timeout=10)
        assert (early, keeping.cancelled()) == (False, True)
        await runs.stop()
        await commits.close()

    monkeypatch.setattr(ForeignRun, "write", failing_once)
    in_loop(check())
    (found,) = list_runs(tmp_path)
    assert found.header["intake"]["spans"]["kept"] == 10
    assert not caplog.text


def test_a_torn_end_is_cut_off_and_told_at_the_first_start_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with running(config(tmp_path, serves=True)) as collector:
        assert send(collector, "http", TRACES, request_of(trace_of(1))).code == 0
    (run,) = list_runs(tmp_path)
    with open(run.path / "spans.otlp", "ab") as journal:
        journal.write(b"torn")
    for torn in (4, 0):
        with running(config(tmp_path, serves=True)) as collector:
            assert collector.collector.counts.torn_bytes == torn
    assert caplog.text.count("4 bytes at the end of the journal were torn") == 1


def test_a_run_that_can_not_be_opened_is_told_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(foreign_runs, "ForeignRun", full)
    with running(config(tmp_path, serves=True)) as collector:
        assert send(collector, "http", TRACES, request_of(trace_of(1))).retry_seconds == 1
    assert "no run of shop can be opened (No space left on device)" in caplog.text


def test_one_service_too_many_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign_runs, "MOST_SERVICES", 2)
    with running(config(tmp_path, serves=True)) as collector:
        answers = [send(collector, "grpc", TRACES, request_of(trace_of(1), name)) for name in "abcb"]
        assert [answer.rejected for answer in answers] == [0, 0, 10, 0]
        assert answers[2].message == "10 spans are of one service too many for a day"
        assert collector.collector.counts.dropped["spans", "too_many_services"] == 10


def test_a_collect_takes_no_spans_of_other_services(tmp_path: Path) -> None:
    with running(config(tmp_path)) as collector:
        answer = send(collector, "json", TRACES, request_of(trace_of(1)))
        assert (answer.rejected, answer.message) == (
            10,
            "10 spans belong to no recording that is open here (no recording named)",
        )
    assert list(tmp_path.iterdir()) == []


def test_the_run_grows_while_the_collector_runs_and_every_command_shows_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with running(config(tmp_path, serves=True, patience=replace(QUICK, rolling=0.05))) as collector:
        assert send(collector, "grpc", TRACES, request_of(trace_of(1), "my shop/<b>")).code == 0
        until(lambda: list_runs(tmp_path))
        assert send(collector, "grpc", TRACES, request_of(trace_of(2)[1:], "my shop/<b>")).code == 0
        assert send(collector, "grpc", LOGS, otlp.logs_request(otlp.resource({}), [])).code == 0
        until(lambda: RunDirectory(list_runs(tmp_path)[0].path).header["intake"]["spans"]["kept"] == 19)
    (run,) = list_runs(tmp_path)
    assert run.path.name.endswith("-my_shop_b_")
    assert run.header["traces"] == {"folded": 2, "orphans": 2, "overlapping": run.header["traces"]["overlapping"]}
    assert main(["top", str(run.path)]) == 0
    shown = capsys.readouterr().out
    assert "19 spans in 2 traces of the service my shop/<b>" in shown
    assert "2 spans without their parent" in shown
    assert main(["export", str(run.path), "--format", "folded"]) == 0
    assert f"{trace_fold.UNKNOWN_PARENT};op 2" in capsys.readouterr().out
    client = create_app(tmp_path).test_client()
    page = client.get(f"/runs/{run.id}")
    assert page.status_code == 200
    assert "&lt;b&gt;" in page.text
    assert "<b>" not in page.text
    assert client.get("/").status_code == 200
