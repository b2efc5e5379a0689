"""A thread's events as a tree: sums that are the thread's time, and traces that are out of the format."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trace_samples import MAIN, TraceSample, case

from vime_otel.analyze.nesting import innermost
from vime_otel.analyze.summary import TraceSummary, summarize


def stacks(summary: TraceSummary) -> dict[str, tuple[int, int]]:
    """Stack → (inclusive nanoseconds, calls), over all steps; without the frames of threads and devices themselves."""
    found: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    for account in summary.accounts:
        for path, (value, count) in account.items():
            found[summary.stacks[path]] += value
            calls[summary.stacks[path]] += count
    return {stack: (value, calls[stack]) for stack, value in found.items() if ";" in stack}


def summary_of(events: list[dict[str, Any]], directory: Path) -> TraceSummary:
    path = directory / "trace.json"
    path.write_text(json.dumps(events))
    return summarize(path)


def test_events_that_overlap_without_nesting_stand_in_rows_of_their_own() -> None:
    summary = summarize(case("te-invalid-x-nesting.json"))
    assert stacks(summary) == {"thread;alpha": (10_000, 1), "thread, row 2;beta": (10_000, 1)}
    assert summary.oddities == ["1 events that overlap others without nesting, shown in a row of their own"]
    assert (summary.timeline.busy, summary.problems) == (15_000, [])


def test_begins_without_an_end_last_to_the_end_of_their_thread() -> None:
    summary = summarize(case("te-not-enough-end-events.json"))
    assert stacks(summary) == {"thread;A": (11_000, 1), "thread;A;A": (10_000, 1), "thread;A;A;A": (1_000, 1)}
    assert summary.oddities == ["2 begin events without an end, taken to last to the end of their thread"]


def test_events_out_of_order_nest_by_their_times() -> None:
    summary = summarize(case("te-out-of-order.json"))
    assert stacks(summary) == {"thread;A": (10_000, 1), "thread;A;B": (8_000, 1), "thread;A;B;C": (6_000, 1)}
    assert (summary.oddities, summary.problems) == ([], [])


def test_a_list_that_is_not_closed_is_read_to_its_last_comma() -> None:
    summary = summarize(case("te-simple-partial-trailing-comma.json"))
    assert stacks(summary) == {
        "thread;alpha": (14_000, 1),
        "thread;alpha;beta": (12_000, 1),
        "thread;alpha;beta;gamma": (5_000, 1),
    }
    assert summary.oddities == ["1 complete events without a time or a duration"]
    assert summary.problems == ["the file ends before its list of events does: it is cut off, or still being written"]


def mark(phase: str, name: str | None, ts: float) -> dict[str, Any]:
    return {"ph": phase, "pid": 1, "tid": 1, "ts": ts, **({} if name is None else {"name": name})}


@pytest.mark.parametrize(
    ("marks", "expected", "oddities"),
    [
        ([("E", "A", 1), ("B", "A", 2), ("E", "A", 5)], {"A": 3}, ["1 end events without a begin, left out"]),
        ([("B", "A", 0), ("B", "B", 2), ("E", None, 3), ("E", None, 9)], {"A": 9, "A;B": 1}, []),
        (
            [("B", "A", 0), ("B", "B", 2), ("E", "A", 6)],
            {"A": 6, "A;B": 4},
            ["1 begin events that end only with the event around them"],
        ),
        ([("B", "A", 0), ("B", "B", 2), ("E", "C", 4), ("E", "B", 5), ("E", "A", 6)], {"A": 6, "A;B": 3}, None),
    ],
)
def test_begin_and_end_events_pair_by_name(
    marks: list[tuple[str, str | None, float]], expected: dict[str, int], oddities: list[str] | None, tmp_path: Path
) -> None:
    summary = summary_of([mark(*each) for each in marks], tmp_path)
    assert stacks(summary) == {f"thread;{stack}": (value * 1000, 1) for stack, value in expected.items()}
    assert oddities is None or summary.oddities == oddities


def test_begin_and_end_events_nest_with_complete_ones(tmp_path: Path) -> None:
    events = [
        mark("B", "outer", 0),
        {"ph": "X", "name": "inner", "pid": 1, "tid": 1, "ts": 2, "dur": 3},
        mark("E", "outer", 9),
    ]
    assert stacks(summary_of(events, tmp_path)) == {"thread;outer": (9_000, 1), "thread;outer;inner": (3_000, 1)}


def test_of_events_that_begin_together_the_longest_is_the_parent(tmp_path: Path) -> None:
    events = [
        {"ph": "X", "name": name, "pid": 1, "tid": 1, "ts": 4.5, "dur": dur}
        for name, dur in (("c", 1), ("a", 3), ("b", 2))
    ]
    assert stacks(summary_of(events, tmp_path)) == {
        "thread;a": (3_000, 1),
        "thread;a;b": (2_000, 1),
        "thread;a;b;c": (1_000, 1),
    }


@pytest.mark.parametrize(("ts", "dur", "nests"), [(10.001, 2.0, True), (10.003, 2.0, False), (11, 2, False)])
def test_what_a_clock_rounds_away_is_no_overlap(ts: float, dur: float, nests: bool, tmp_path: Path) -> None:
    events = [
        {"ph": "X", "name": "parent", "pid": 1, "tid": 1, "ts": 9.5, "dur": 2.5},
        {"ph": "X", "name": "child", "pid": 1, "tid": 1, "ts": ts, "dur": dur},
    ]
    assert ("thread;parent;child" in stacks(summary_of(events, tmp_path))) is nests


def test_an_annotation_under_python_calls_is_not_torn_off_by_those_that_open_and_close_it(tmp_path: Path) -> None:
    trace = TraceSample()
    trace.add("module.py(1): forward", 0, 100, "python_function")
    trace.add("profiler.py(2): __enter__", 10, 4, "python_function")
    trace.add("mine", 12, 50, "user_annotation")
    trace.add("aten::mm", 20, 30)
    trace.add("profiler.py(3): __exit__", 60, 6, "python_function")
    summary = summarize(trace.write(tmp_path / "trace.json"))
    above = "thread;module.py(1): forward"
    assert stacks(summary) == {
        above: (100_000, 1),
        f"{above};profiler.py(2): __enter__": (2_000, 1),
        f"{above};mine": (48_000, 1),
        f"{above};mine;aten::mm": (30_000, 1),
        f"{above};profiler.py(3): __exit__": (6_000, 1),
    }
    assert summary.oddities == []


def test_an_event_that_reaches_into_the_next_step_is_shared_between_them(tmp_path: Path) -> None:
    trace = TraceSample()
    trace.add("outer", 0, 100)
    trace.step(10, 20, (1, 5), (0, 0))
    trace.step(40, 20, (0, 0), (1, 1))
    summary = summarize(trace.write(tmp_path / "trace.json"))
    named = [{summary.stacks[path]: value for path, value in account.items()} for account in summary.accounts]
    assert [account["thread;outer"] for account in named] == [[10_000, 1], [30_000, 0], [60_000, 0]]
    assert named[1]["thread;outer;execute_model"] == [20_000, 1]
    assert [step.kind for step in summary.steps] == ["prefill", "decode"]


def test_kernels_stand_under_what_launched_them_in_the_step_that_did(tmp_path: Path) -> None:
    trace = TraceSample()
    trace.step(0, 50, (1, 5), (0, 0))
    trace.add("aten::mm", 5, 20)
    trace.launch(10, 3, correlation=9)
    trace.step(60, 50, (0, 0), (1, 1))
    trace.kernel("gemm_kernel", 70, 30, correlation=9)
    trace.kernel("lost_kernel", 80, 5, correlation=77)
    summary = summarize(trace.write(tmp_path / "trace.json"))
    named = [{summary.stacks[path]: value for path, value in account.items()} for account in summary.accounts]
    assert named[1]["device;execute_model;aten::mm;gemm_kernel"] == [30_000, 1]
    assert named[1]["device;execute_model;aten::mm"] == [30_000, 0]
    assert named[1]["device"] == [30_000, 0]
    assert named[0] == {"device;lost_kernel": [5_000, 1], "device": [5_000, 0]}
    assert summary.unmatched_kernels == 1


def test_innermost_time_is_what_nothing_inside_takes() -> None:
    assert innermost([(0, 10, 1), (2, 6, 2), (3, 4, 3), (7, 9, 2)]) == {1: 4, 2: 5, 3: 1}


@st.composite
def trees(draw: st.DrawFn, begin: int = 0, end: int = 1000, depth: int = 3) -> list[tuple[int, int]]:
    """Intervals that nest, children strictly inside."""
    found: list[tuple[int, int]] = []
    cuts = sorted(draw(st.sets(st.integers(begin, end), max_size=6)))
    for start, stop in zip(cuts[::2], cuts[1::2], strict=False):
        found.append((start, stop))
        if depth and stop - start > 3:
            found += draw(trees(start + 1, stop - 1, depth - 1))
    return found


@given(trees(), st.lists(st.integers(0, 1000), max_size=4), st.randoms())
def test_whatever_the_order_sums_are_the_threads_time(
    tmp_path_factory: pytest.TempPathFactory, tree: list[tuple[int, int]], cuts: list[int], rng: Any
) -> None:
    shuffled = tree.copy()
    rng.shuffle(shuffled)
    trace = TraceSample()
    trace.add("background", 0.5, 0.25, tid=1)
    for start, stop in shuffled:
        trace.add("op", start, stop - start)
    for cut in sorted(set(cuts)):
        trace.events.append(
            {"ph": "X", "cat": "user_annotation", "name": "execute_context_0(0)_generation_1(1)"}
            | {"pid": 1, "tid": 2, "ts": cut, "dur": 0.125}
        )
    summary = summarize(trace.write(tmp_path_factory.mktemp("tree") / "trace.json"))
    covered = {second for start, stop in tree for second in range(start, stop)}
    main = [use for use in summary.threads if use.tid == MAIN and "row" not in use.label]
    assert sum(use.traced for use in main) == 1000 * len(covered)
    by_root: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for account in summary.accounts:
        for path, (value, _) in account.items():
            if summary.parents[path] < 0:
                by_root[summary.stacks[path]] += value
            total[summary.stacks[path].rpartition(";")[2]] += value
    assert all(by_root[use.label] == use.traced for use in summary.threads)
    assert total["op"] == 1000 * sum(stop - start for start, stop in tree)
    assert summary.oddities == []
