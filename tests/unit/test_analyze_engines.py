"""Which traces belong together, and who makes the others wait."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from trace_samples import TraceSample, case

from vime_otel.analyze.engines import Engine, group, rank_label
from vime_otel.analyze.names import find_traces, parse_name
from vime_otel.analyze.skew import Comparison, compare, step_shift
from vime_otel.analyze.summary import summarize
from vime_otel.data.errors import VimeOtelError


@pytest.mark.parametrize(
    ("name", "prefix", "ranks", "time_ns", "frontend"),
    [
        (
            "dp0_pp0_tp1_dcp0_ep1_rank1.1796026546491133700.pt.trace.json.gz",
            "",
            {"dp": 0, "pp": 0, "tp": 1, "dcp": 0, "ep": 1, "rank": 1},
            1796026546491133700,
            False,
        ),
        (
            "warm_dp1_pp0_tp0_dcp0_ep4_rank4.1796026546491133700.pt.trace.json",
            "warm",
            {"dp": 1, "pp": 0, "tp": 0, "dcp": 0, "ep": 4, "rank": 4},
            1796026546491133700,
            False,
        ),
        (
            "dp0_pp1_tp0_rank2.1796026546491133700.pt.trace.json.gz",
            "",
            {"dp": 0, "pp": 1, "tp": 0, "rank": 2},
            None,
            False,
        ),
        ("rank3.1796026546491133700.pt.trace.json.gz", "", {"rank": 3}, None, False),
        ("node7_4711-rank-5.1796026546491133700.pt.trace.json.gz", "node7_4711", {"rank": 5}, None, False),
        ("rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz", "", {"rank": 0}, None, False),
        ("sampled_rank-1.json.gz", "sampled", {"rank": 1}, None, False),
        ("rank_non_gpu.json.gz", "rank_non_gpu", {}, None, False),
        ("node7_4711.async_llm.1796026546491133700.pt.trace.json.gz", "node7_4711.async_llm", {}, None, True),
        ("host_4711.1796026546491133700.pt.trace.json.gz", "host_4711", {}, 1796026546491133700, False),
    ],
)
def test_names_of_traces_tell_ranks(
    name: str, prefix: str, ranks: dict[str, int], time_ns: int | None, frontend: bool
) -> None:
    found = parse_name(name)
    assert (found.prefix, found.ranks, found.frontend) == (prefix, ranks, frontend)
    assert time_ns is None or found.timestamp_ns == time_ns


def test_traces_are_found_below_a_folder_and_other_files_are_not(tmp_path: Path) -> None:
    for name in ("a.pt.trace.json", "b/c/d.json.gz", "recording.json", "b/profiler_out.txt", ".hidden.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("[]")
    assert [path.relative_to(tmp_path).as_posix() for path in find_traces(tmp_path)] == [
        "a.pt.trace.json",
        "b/c/d.json.gz",
    ]
    with pytest.raises(VimeOtelError, match="is no folder"):
        find_traces(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(VimeOtelError, match="vLLM writes them"):
        find_traces(tmp_path / "empty")


def write_rank(
    directory: Path,
    rank: int,
    *,
    stamp: int = 1,
    steps: int = 30,
    first: int = 0,
    shift_us: float = 0.0,
    late_us: float = 0.0,
    dp: int = 0,
    seed: int = 0,
    on_device: bool = True,
) -> Path:
    """One rank of an engine whose ranks meet in two collectives a step, each within a few µs of the others.

    The rank's clock is `shift_us` ahead, its profiler began before step `first`, and it always comes `late_us` late.
    """
    trace = TraceSample()
    meetings = random.Random(seed)
    jitter = random.Random(1000 * seed + rank)
    for step in range(steps):
        times = [3000 * step + meetings.uniform(500, 900), 3000 * step + meetings.uniform(1500, 1900)]
        if step < first:
            continue
        trace.step(shift_us + 3000 * step, 2500, (0, 0), (step % 3 + 1, step % 3 + 1))
        for number, meeting in enumerate(times):
            begin = shift_us + meeting - 60 + late_us + jitter.uniform(0, 8)
            end = shift_us + meeting + 40 + jitter.uniform(0, 0.4)
            if on_device:
                trace.kernel("ncclDevKernel_AllReduce_Sum_bf16", begin, end - begin, 10 * step + number)
            else:
                trace.add("_C::shm_allreduce", begin, end - begin)
    name = f"dp{dp}_pp0_tp{rank}_dcp0_ep{rank}_rank{rank}.{stamp}00000000000000000.pt.trace.json.gz"
    return trace.write(directory / name)


def compared(paths: list[Path]) -> tuple[Engine, Comparison]:
    (engine,) = group(map(summarize, paths))
    return engine, compare(engine.traces)


@pytest.mark.parametrize("on_device", [True, False])
def test_a_straggler_and_a_skewed_profiler_start_are_told_apart(on_device: bool, tmp_path: Path) -> None:
    paths = [
        write_rank(tmp_path, 0, on_device=on_device),
        write_rank(tmp_path, 1, late_us=35.0, on_device=on_device),
        write_rank(tmp_path, 2, shift_us=7_000_000.0, first=4, on_device=on_device),
        write_rank(tmp_path, 3, shift_us=-250.0, on_device=on_device),
    ]
    _, comparison = compared(paths)
    assert comparison.reason == ""
    honest, straggler, skewed, behind = comparison.ranks
    assert [rank.clock_offset_ns for rank in (skewed, behind)] == pytest.approx([7_000_000_000, -250_000], abs=500)
    assert abs(straggler.clock_offset_ns) < 500
    # Its trace begins with step 4, 12 ms into the others'.
    assert skewed.profiler_start_ns == pytest.approx(12_000_000, abs=100_000)
    assert straggler.profiler_start_ns < 200_000
    assert {rank.collectives for rank in comparison.ranks} == {52}
    assert (straggler.last, [rank.last for rank in (honest, skewed, behind)]) == (52, [0, 0, 0])
    assert straggler.delayed_ns / 52 == pytest.approx(33_000, abs=1_500)
    assert straggler.waited_ns == 0
    for rank in (honest, skewed, behind):
        assert rank.waited_ns / 52 == pytest.approx(35_000, abs=3_000)
        assert rank.systematic_ns == 0
    assert straggler.latest[0][0] in ("ncclDevKernel_AllReduce_Sum_bf16", "_C::shm_allreduce")


def test_ranks_that_are_late_by_turns_are_no_stragglers(tmp_path: Path) -> None:
    _, comparison = compared([write_rank(tmp_path, rank) for rank in range(4)])
    assert comparison.reason == ""
    assert sum(rank.last for rank in comparison.ranks) == 60
    assert all(rank.systematic_ns < 0.002 * 30 * 2_500_000 for rank in comparison.ranks)


def test_ranks_without_common_collectives_are_not_compared(tmp_path: Path) -> None:
    first, second = write_rank(tmp_path, 0), write_rank(tmp_path / "other", 1, seed=9)
    traces = [summarize(first), summarize(second)]
    assert "do not match" in compare(traces).reason
    bare = TraceSample()
    bare.add("op", 0, 5)
    traces[1] = summarize(bare.write(tmp_path / "rank1.1.pt.trace.json"))
    assert "no collective operations" in compare(traces).reason
    assert "one rank only" in compare(traces[:1]).reason


def test_two_engines_that_share_a_folder_are_told_apart(tmp_path: Path) -> None:
    paths = [
        write_rank(
            tmp_path, rank, stamp=number * 2 + rank + 1, shift_us=4_000.0 * number, seed=number, steps=30 - number
        )
        for number in range(2)
        for rank in range(2)
    ]
    engines = group(map(summarize, paths))
    assert [engine.label for engine in engines] == ["#1", "#2"]
    stamps = [[Path(trace.path).name.split(".")[1][0] for trace in engine.traces] for engine in engines]
    assert stamps == [["1", "2"], ["3", "4"]]
    assert [[rank_label(trace) for trace in engine.traces] for engine in engines] == [
        ["rank 0", "rank 1 (tp1 ep1)"]
    ] * 2
    assert len({engine.id for engine in engines}) == 2
    assert all(compare(engine.traces).reason == "" for engine in engines)


def test_data_parallel_ranks_are_engines_of_one_server(tmp_path: Path) -> None:
    paths = [write_rank(tmp_path, 2 * dp + tp, dp=dp) for dp in range(2) for tp in range(2)]
    engines = group(map(summarize, paths))
    assert [(engine.label, engine.dp, len(engine.traces), engine.server) for engine in engines] == [
        ("dp0", 0, 2, 0),
        ("dp1", 1, 2, 0),
    ]


def test_frontends_and_other_folders_are_engines_of_their_own(tmp_path: Path) -> None:
    write_rank(tmp_path / "one", 0)
    write_rank(tmp_path / "two", 0)
    frontend = TraceSample()
    frontend.add("python", 0, 5)
    frontend.write(tmp_path / "one" / "host_12.async_llm.1790000000000000000.pt.trace.json.gz")
    engines = group(map(summarize, find_traces(tmp_path)))
    assert [(engine.label, engine.frontend) for engine in engines] == [
        ("one", False),
        ("one/host_12.async_llm", True),
        ("two", False),
    ]


def test_ranks_of_other_programs_come_from_their_metadata() -> None:
    engines = group(summarize(case(f"sampled_rank-{rank}.json.gz")) for rank in (1, 0))
    assert [[rank_label(trace) for trace in engine.traces] for engine in engines] == [["rank 0", "rank 1"]]
    (alone,) = group([summarize(case("nccl_data.json.gz"))])
    assert rank_label(alone.traces[0]) == "rank 0"


@pytest.mark.parametrize(("first", "shift_us"), [(0, 0.0), (4, 0.0), (4, 9_000_000.0), (1, -700.0)])
def test_steps_of_ranks_are_laid_over_each_other_by_their_times(first: int, shift_us: float, tmp_path: Path) -> None:
    one = summarize(write_rank(tmp_path, 0))
    other = summarize(write_rank(tmp_path, 1, first=first, shift_us=shift_us))
    assert step_shift(one, other) == -first
