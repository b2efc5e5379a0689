"""What the report says of causes: whose doing a gap is, what waiting costs, who is late, what is not known."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from test_analyze_engines import compared, write_rank
from test_analyze_report import analyze, analyze_json, engine_trace
from trace_samples import TraceSample, case

from vime_otel.analyze.engines import group
from vime_otel.analyze.gaps import NOTHING_TRACED
from vime_otel.analyze.layout import lay_out
from vime_otel.analyze.rank_report import rank_report
from vime_otel.analyze.rendering import print_text
from vime_otel.analyze.report import build
from vime_otel.analyze.runs import recording
from vime_otel.analyze.summary import summarize
from vime_otel.analyze.thresholds import parse
from vime_otel.cli.main import main

WAITER, WORKER = 1, 2


def two_threads(busy_us: float) -> TraceSample:
    """One thread waits for another, which works `busy_us` of a gap of 1,000 µs and then launches what ends it."""
    trace = TraceSample()
    trace.add("wait for the other", 0, 3000, tid=WAITER)
    trace.launch(5, 5, 1, tid=WAITER)
    trace.kernel("first", 20, 80, 1)
    trace.add("work", 1100 - busy_us, busy_us, tid=WORKER)
    trace.launch(1100 - busy_us / 10, 5, 2, tid=WORKER)
    trace.kernel("second", 1100, 50, 2)
    return trace


@pytest.mark.parametrize(("busy_us", "cause"), [(900.0, "work"), (300.0, "wait for the other")])
def test_a_gap_is_the_doing_of_the_thread_that_ended_it_while_that_was_at_work(
    busy_us: float, cause: str, tmp_path: Path
) -> None:
    summary = summarize(two_threads(busy_us).write(tmp_path / "trace.json"))
    (gap,) = summary.gaps
    assert (gap.explained_by, gap.length) == (cause, 1_000_000)


def test_a_gap_in_which_no_launching_thread_did_anything_says_so(tmp_path: Path) -> None:
    trace = TraceSample()
    trace.launch(0, 5, 1)
    trace.kernel("first", 10, 10, 1)
    trace.launch(900, 5, 2)
    trace.kernel("second", 910, 10, 2)
    (gap,) = summarize(trace.write(tmp_path / "trace.json")).gaps
    assert gap.explained_by == NOTHING_TRACED


def test_of_a_real_trace_the_longest_gap_is_the_launch_that_took_its_time() -> None:
    summary = summarize(case("mi250_minitoy_train_ROCm6_2_kineto.json.gz"))
    longest = max(summary.gaps, key=lambda gap: gap.length)
    assert (longest.explained_by, round(longest.length / 1e6, 3)) == ("hipLaunchKernel", 6.633)
    assert longest.explained > 0.98


def finding(report: dict[str, Any], threshold: str) -> dict[str, Any]:
    (found,) = [each for each in report["engines"][0]["findings"] if each["threshold"] == threshold]
    return dict(found)


@pytest.mark.parametrize(("kernel_us", "share"), [(400.0, "100%"), (100.0, "25%")])
def test_waiting_for_a_busy_device_is_told_from_waiting_for_an_idle_one(
    kernel_us: float, share: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = TraceSample()
    for step in range(5):
        trace.step(1000 * step, 600, (0, 0), (1, 1))
        trace.launch(1000 * step + 10, 10, step)
        trace.kernel("gemm", 1000 * step + 100, kernel_us, step)
        trace.add("cudaEventSynchronize", 1000 * step + 100, 400, "cuda_runtime", correlation=step + 100)
    path = trace.write(tmp_path / "trace.json")
    found = finding(analyze_json(capsys, "--profile-dir", path, "--no-run"), "synchronisation")
    assert found["what"].endswith(f"; for {share} of that the device is busy")


def test_a_copy_is_no_kernel_that_takes_most_of_the_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = engine_trace()
    trace.kernel("Memcpy HtoD (Pageable -> Device)", 50_000, 9_000, 9_999, cat="gpu_memcpy")
    path = trace.write(tmp_path / "trace.json")
    report = analyze_json(capsys, "--profile-dir", path, "--no-run", "--threshold", "one-kernel=0.1")
    assert finding(report, "one-kernel")["what"].endswith(": gemm_bf16")
    assert "Memcpy HtoD" in finding(report, "copies")["evidence"][0]


def test_the_idle_device_has_its_causes_each_with_its_time_and_longest_gap(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = engine_trace().write(tmp_path / "trace.json")
    evidence = finding(analyze_json(capsys, "--profile-dir", path, "--no-run"), "idle")["evidence"]
    assert len(evidence) == len({line.split(":")[0] for line in evidence}) > 1
    assert all(" gap" in line and "; the longest " in line and " ms at " in line for line in evidence)


def test_a_device_whose_kernels_may_be_cut_off_is_not_called_idle(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = engine_trace().text(pretty=False)
    whole, cut = tmp_path / "whole.json", tmp_path / "cut.json"
    whole.write_bytes(text)
    cut.write_bytes(text[: 2 * len(text) // 3])
    assert finding(analyze_json(capsys, "--profile-dir", whole, "--no-run"), "idle")
    findings = analyze_json(capsys, "--profile-dir", cut, "--no-run")["engines"][0]["findings"]
    thresholds = {each["threshold"] for each in findings}
    assert "synchronisation" in thresholds
    assert "idle" not in thresholds
    lines = analyze(capsys, "--profile-dir", cut, "--no-run").splitlines()
    assert lines[lines.index("Findings") + 1] == (
        "the trace of rank 0 is incomplete, and so is every figure; idle time is not judged"
    )
    assert "is incomplete" not in analyze(capsys, "--profile-dir", whole, "--no-run")


def test_kernels_without_launches_leave_the_steps_device_time_unknown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = engine_trace()
    trace.events = [event for event in trace.events if event["cat"] != "cuda_runtime"]
    path = trace.write(tmp_path / "trace.json")
    rank = analyze_json(capsys, "--profile-dir", path, "--no-run")["engines"][0]["ranks"][0]
    assert {row["device_busy_ms"] for row in rank["steps"]["rows"]} == {None}
    assert all(row["per_step"] == {} for row in rank["categories"])
    (row,) = [line for line in analyze(capsys, "--profile-dir", path, "--no-run").splitlines() if line[:4] == "GEMM"]
    assert row.split()[-2:] == ["–", "–"]


def periodic(directory: Path, rank: int, first: int = 0, steps: int = 30) -> Path:
    """A rank whose steps and collectives repeat to the nanosecond, and whose trace begins with step `first`."""
    trace = TraceSample()
    for step in range(first, steps):
        trace.step(2000 * step, 1000, (0, 0), (4, 4))
        trace.launch(2000 * step + 5, 5, step)
        trace.kernel("ncclDevKernel_AllReduce_Sum_bf16", 2000 * step + 300, 60, step)
    return trace.write(directory / f"dp0_pp0_tp{rank}_dcp0_ep0_rank{rank}.1790000000000000000.pt.trace.json")


def test_a_trace_that_begins_later_among_steps_that_repeat_has_no_other_clock(tmp_path: Path) -> None:
    _, comparison = compared([periodic(tmp_path, 0), periodic(tmp_path, 1, first=4)])
    late = comparison.ranks[1]
    assert (late.clock_offset_ns, late.profiler_start_ns, late.collectives) == (0, 8_000_000, 26)


def test_thousands_of_collectives_are_laid_over_each_other_by_a_sample_of_them(tmp_path: Path) -> None:
    steps, first = 600, 37
    paths = [write_rank(tmp_path, 0, steps=steps), write_rank(tmp_path, 1, steps=steps, first=first, shift_us=90_000.0)]
    _, comparison = compared(paths)
    late = comparison.ranks[1]
    assert late.collectives == 2 * (steps - first)
    assert late.clock_offset_ns == pytest.approx(90_000_000, abs=500)


def test_of_ranks_that_come_at_the_same_moment_none_is_last(tmp_path: Path) -> None:
    _, comparison = compared([periodic(tmp_path, rank) for rank in range(3)])
    assert [(rank.collectives, rank.last) for rank in comparison.ranks] == [(30, 0)] * 3


def test_a_straggler_costs_what_it_delays_more_than_others_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_rank(tmp_path, 0)
    write_rank(tmp_path, 1, late_us=45.0)
    _, comparison = compared(sorted(tmp_path.iterdir()))
    report = analyze_json(capsys, "--profile-dir", tmp_path, "--no-run", "--all-ranks", "--jobs", 1)
    found = finding(report, "straggler")
    assert found["ms_per_step"] == pytest.approx(comparison.ranks[1].systematic_ns / 1e6 / 30)
    assert found["what"].endswith("more than other ranks do")


@pytest.mark.parametrize("width", [40, 80, 100, 160])
def test_no_figure_is_cut_on_a_narrow_terminal(width: int, tmp_path: Path) -> None:
    trace = engine_trace()
    trace.kernel("void at::native::" + "elementwise_kernel<4>" * 9, 50_000, 12.345, 9_999)
    for number in range(2):
        trace.write(tmp_path / f"dp0_pp0_tp{number}_dcp0_ep{number}_rank{number}.1790000000000000000.pt.trace.json")
    report = build("traces", group(map(summarize, sorted(tmp_path.iterdir()))), parse(()), 15)
    sections = lay_out(report, True)
    file = io.StringIO()
    print_text(Console(file=file, width=width, color_system=None), sections)
    shown = file.getvalue()
    assert max(map(len, [line for line in shown.splitlines() if "…" in line])) <= width
    words = set(shown.split())
    for table in (table for section in sections for table in section.tables):
        for number, heading in enumerate(table.headings):
            if heading.startswith(">"):
                assert {row[number] for row in table.rows} - {""} <= words, (table.headings[0], heading)


def test_alike_devices_share_a_line(tmp_path: Path) -> None:
    card = {"name": "H100", "totalGlobalMem": 80 * 2**30}
    trace = TraceSample(deviceProperties=[*({"id": number, **card} for number in range(3)), {"id": 3, "name": "T4"}])
    trace.add("op", 0, 5)
    summary = summarize(trace.write(tmp_path / "trace.json"))
    assert rank_report(summary, 15).hardware == ["devices 0, 1, 2: H100, 80 GiB", "device 3: T4"]


def test_a_run_says_which_ranks_lack_steps(tmp_path: Path) -> None:
    paths = [write_rank(tmp_path, rank, first=4 * rank, on_device=False) for rank in range(2)]
    notes = recording("0" * 16, group(map(summarize, paths)), None).header["notes"]
    assert [note for note in notes if "means over the ranks" in note] == [
        f"{paths[1].name} holds 26 of the 30 steps: means over the ranks are lower by what it lacks"
    ]


def test_engines_whose_traces_have_the_same_names_stay_apart_in_a_run(tmp_path: Path) -> None:
    paths = [engine_trace().write(tmp_path / host / "rank0.json") for host in ("one", "other")]
    made = recording("0" * 16, group(map(summarize, paths)), None)
    assert len({engine["id"] for engine in made.header["engines"]}) == 2
    assert len(made.rows) == 40


def test_a_comparison_says_what_can_not_be_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cpu_only = TraceSample()
    cpu_only.step(0, 500, (1, 8), (2, 2))
    cpu_only.add("aten::mm", 10, 100)
    cpu_only.step(1000, 500, (0, 0), (2, 2))
    before = tmp_path / "before"
    text = cpu_only.text(pretty=False)
    before.mkdir()
    (before / "rank0.json").write_bytes(text[: text.rindex(b"]")])
    (before / "empty.json").write_text("")
    after = engine_trace().write(tmp_path / "after" / "rank0.json")
    args = ["--profile-dir", str(after), "--baseline", str(before), "--no-run", "--jobs", "1"]
    assert main(["analyze", *args]) == 1
    text_out = capsys.readouterr().out
    compared_with = text_out[text_out.index("Compared with") :]
    for line in (
        f"left out there: {before / 'empty.json'}: the file is empty",
        "only there: mixed steps",
        "only here: prefill steps",
        "a device was traced only here: no kernels to compare",
        "incomplete there: rank0.json: the file ends before its list of events does",
    ):
        assert line in compared_with, line
    assert "new" not in compared_with
    assert "mixed  " not in compared_with
