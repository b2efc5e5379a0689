"""`vime-otel analyze` as a user meets it: findings, formats, options, the run that it makes, the comparison."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import write_sample
from test_analyze_engines import write_rank
from trace_samples import CASES, TraceSample, case

from vime_otel.analyze.engines import group
from vime_otel.analyze.layout import lay_out
from vime_otel.analyze.rendering import markdown
from vime_otel.analyze.report import build
from vime_otel.analyze.runs import recording
from vime_otel.analyze.summary import summarize
from vime_otel.analyze.thresholds import TABLE, parse
from vime_otel.cli.main import main
from vime_otel.data.find_runs import find_run, list_runs
from vime_otel.data.rundir import RunDirectory
from vime_otel.data.summary import opening_line


def engine_trace(slow: float = 1.0) -> TraceSample:
    """Decode steps of a device that waits for the host, one of them slow; a prefill before them."""
    trace = TraceSample(
        deviceProperties=[{"id": 0, "name": "NVIDIA H200", "totalGlobalMem": 150_000_000_000, "numSms": 132}],
        vllm_version="0.32.0",
    )
    correlation = 0
    for step in range(20):
        begin, length = 2000.0 * step, 900.0 * slow
        trace.step(begin, length, (1, 40) if step == 0 else (0, 0), (0, 0) if step == 0 else (2, 2))
        for number, name in enumerate(("gemm_bf16", "flash_fwd_kernel", "void at::native::elementwise_kernel<4>")):
            correlation += 1
            at = begin + 100 * number
            trace.add("aten::op", at + 5, 80)
            trace.launch(at + 10, 60, correlation)
            trace.kernel(name, at + 90, (5.0 if number else 80.0) * slow, correlation)
        trace.add("cudaStreamSynchronize", begin + 400, 400, "cuda_runtime", correlation=correlation + 10_000)
        trace.add("sampler", begin + 950, 200 if step != 7 else 900)
    return trace


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    """A folder with one rank's trace."""
    engine_trace().write(tmp_path / "traces" / "dp0_pp0_tp0_dcp0_ep0_rank0.1790000000000000000.pt.trace.json.gz")
    return tmp_path / "traces"


def analyze(capsys: pytest.CaptureFixture[str], *args: object) -> str:
    """What `analyze` prints when it must succeed."""
    status = main(["analyze", *map(str, args)])
    captured = capsys.readouterr()
    assert status == 0, captured.err
    return captured.out


def analyze_json(capsys: pytest.CaptureFixture[str], *args: object) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(analyze(capsys, *args, "--format", "json"))
    return found


def test_the_report_opens_with_steps_and_findings_and_has_every_table(
    traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = analyze(capsys, "--profile-dir", traces, "--runs", tmp_path / "runs")
    lines = text.splitlines()
    assert (
        "prefill 1.150 ms (batch 1, 1 step) · decode 1.187 ms (batch 2, 19 steps); steps from vLLM's annotations"
        in lines
    )
    for part in (
        *(
            "device 0: NVIDIA H200, 140 GiB, 132 SMs",
            "vllm_version 0.32.0",
            "exposed communication",
            "tokens per second",
        ),
        *("kernels by category", "flash_fwd_kernel", "cudaStreamSynchronize", "longest gaps", "thread", "stream"),
    ):
        assert part in text, part
    assert "\x1b" not in text


def test_findings_have_their_figures_from_this_trace(traces: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = analyze_json(capsys, "--profile-dir", traces, "--no-run")
    found = {finding["threshold"]: finding for finding in report["engines"][0]["findings"]}
    assert {"idle", "synchronisation", "one-kernel"} <= found.keys()
    assert found["synchronisation"]["ms_per_step"] == pytest.approx(0.4)
    assert found["synchronisation"]["what"].startswith("the host waits for the device in synchronising calls for 34%")
    assert found["synchronisation"]["evidence"][0].startswith("cudaStreamSynchronize: 20 times, 8.000 ms")
    assert found["one-kernel"]["ms_per_step"] == pytest.approx(0.08)
    timeline = report["engines"][0]["ranks"][0]["timeline"]
    assert found["idle"]["ms_per_step"] == pytest.approx(timeline["idle"] / 20)
    assert "exposed-communication" not in found
    costs = [finding["ms_per_step"] for finding in report["engines"][0]["findings"]]
    assert costs == sorted(costs, reverse=True)


def test_a_slow_step_is_found_when_the_threshold_asks_for_it(traces: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def uneven(*args: str) -> list[dict[str, Any]]:
        report = analyze_json(capsys, "--profile-dir", traces, "--no-run", *args)
        return [f for f in report["engines"][0]["findings"] if f["threshold"] == "uneven-steps"]

    assert uneven() == []
    (finding,) = uneven("--threshold", "uneven-steps=1.5")
    assert finding["evidence"][0].startswith("step 7: 1.850 ms at 0.014000 s, batch 2")
    assert finding["ms_per_step"] == pytest.approx((1.85 - 1.15) / 20)


@pytest.mark.parametrize("threshold", [each.name for each in TABLE])
def test_no_finding_stands_below_a_threshold_that_nothing_reaches(
    threshold: str, traces: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = analyze_json(capsys, "--profile-dir", traces, "--no-run", "--threshold", f"{threshold}=1e9")
    assert threshold not in {finding["threshold"] for finding in report["engines"][0]["findings"]}


def test_a_planted_straggler_is_named_and_a_late_profiler_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_rank(tmp_path, 0)
    write_rank(tmp_path, 1, late_us=45.0)
    write_rank(tmp_path, 2, shift_us=5_000_000.0, first=6)
    report = analyze_json(capsys, "--profile-dir", tmp_path, "--no-run", "--all-ranks", "--jobs", 1)
    (engine,) = report["engines"]
    stragglers = [finding for finding in engine["findings"] if finding["threshold"] == "straggler"]
    assert [finding["where"] for finding in stragglers] == ["rank 1 (tp1 ep1)"]
    assert "comes last in 48 of 48 collectives" in stragglers[0]["what"]
    table = engine["rank_table"]
    assert [round(row["profiler_start_ms"]) for row in table] == [0, 0, 18]
    assert [round(row["clock_offset_ms"]) for row in table] == [0, 0, 5000]
    text = analyze(capsys, "--profile-dir", tmp_path, "--no-run", "--all-ranks", "--jobs", 1)
    assert text.count("kernels by category") == 3


def test_ranks_are_chosen_and_rankings_cut(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rank in (1, 2):
        write_rank(tmp_path, rank)
    one = analyze_json(capsys, "--profile-dir", tmp_path, "--no-run")
    assert [rank["rank"] for rank in one["engines"][0]["ranks"]] == ["rank 1 (tp1 ep1)"]
    two = analyze_json(capsys, "--profile-dir", tmp_path, "--no-run", "--rank", 2)
    assert [rank["rank"] for rank in two["engines"][0]["ranks"]] == ["rank 2 (tp2 ep2)"]
    engine_trace().write(tmp_path / "other" / "rank0.1.pt.trace.json")
    cut = analyze_json(capsys, "--profile-dir", tmp_path / "other", "--no-run", "--top-n", 2)
    assert len(cut["engines"][0]["ranks"][0]["kernels"]) == 2


@pytest.mark.parametrize(
    ("args", "status", "message"),
    [
        (("--profile-dir", "nowhere"), 1, "nowhere is no folder"),
        (("--profile-dir", "traces", "--rank", "5"), 1, "no trace of rank 5 in traces could be read"),
        (("--profile-dir", "traces", "--rank", "0", "--all-ranks"), 2, "give one of them"),
        (("--profile-dir", "traces", "--threshold", "idel=1"), 2, "no threshold 'idel'; there are idle, "),
        (("--profile-dir", "traces", "--threshold", "idle=much"), 2, "write idle=0.2, say"),
        (("--profile-dir", "traces", "--format", "pdf"), 2, "'pdf' is not one of"),
        (("--profile-dir", "traces", "--no-run", "-o", "no/such/folder"), 1, "can't write no/such/folder"),
        ((), 2, "Missing option '--profile-dir'"),
    ],
)
def test_mistakes_are_told_in_one_line(
    args: tuple[str, ...],
    status: int,
    message: str,
    traces: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(traces.parent)
    assert main(["analyze", *args]) == status
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1


def test_a_file_that_is_no_trace_is_told_and_the_others_are_read(
    traces: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (traces / "broken.json").write_text("{")
    assert main(["analyze", "--profile-dir", str(traces), "--no-run", "--all-ranks", "--jobs", "1"]) == 1
    text = capsys.readouterr().out
    assert f"left out: {traces / 'broken.json'}: the file holds no list of trace events" in text
    assert "flash_fwd_kernel" in text


class _Text(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize("form", ["text", "md", "html", "json"])
def test_every_format_shows_names_as_they_are_and_runs_none_of_them(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = engine_trace()
    hostile = "<script>alert(1)</script> | [x](http://y) `z` \x1b[31m"
    trace.kernel(hostile, 50_000, 900, 999)
    trace.write(tmp_path / "rank0.1.pt.trace.json")
    target = tmp_path / "report"
    analyze(capsys, "--profile-dir", tmp_path, "--no-run", "--format", form, "-o", target)
    content = target.read_text()
    if form == "html":
        parser = _Text()
        parser.feed(content)
        assert "<script>alert(1)</script>" in parser.text
        assert "script" not in parser.tags
        assert "http" not in content.replace("http://y", "")
    elif form == "md":
        assert "\\<script\\>alert(1)\\</script\\> \\| \\[x\\]" in content
    elif form == "json":
        assert hostile in [k["name"] for k in json.loads(content)["engines"][0]["ranks"][0]["kernels"]]
    else:
        assert "<script>alert(1)</script>" in content
    assert form == "json" or "\x1b" not in content


def test_the_run_opens_like_any_other_and_its_sums_are_the_threads_time(
    traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    analyze(capsys, "--profile-dir", traces, "--runs", tmp_path / "runs")
    run = find_run(tmp_path / "runs")
    assert run.header["label"] == "torch-traces"
    assert run.steps == {"decode": 19, "prefill": 1}
    assert [(row.kind, row.requests, row.generation_tokens) for row in run.rows[:2]] == [
        ("prefill", 1, 0),
        ("decode", 2, 2),
    ]
    (rank,) = run.ranks()
    thread = sum(v for kind in run.steps for s, v in run.self_us(kind, rank).items() if s.startswith("thread"))
    device = sum(v for kind in run.steps for s, v in run.self_us(kind, rank).items() if s.startswith("device"))
    assert thread == 20 * 900 + 20 * 200 + 700
    assert device == 20 * (80 + 5 + 5)
    assert run.self_us("decode")["device;execute_model;aten::op;gemm_bf16"] == 19 * 80
    for args in (("top", "--limit", "3"), ("export", "--format", "folded"), ("export", "--format", "svg")):
        assert main([args[0], "--runs", str(tmp_path / "runs"), *args[1:]]) == 0
    assert "execute_model" in capsys.readouterr().out


def test_the_same_traces_make_the_same_run_again(
    traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        analyze(capsys, "--profile-dir", traces, "--runs", tmp_path / "runs", "--label", "mine")
    (run,) = (tmp_path / "runs").iterdir()
    assert run.name.endswith("-mine")
    header = RunDirectory(run).header
    assert (header["complete"], header["timing"]) == (True, "torch profiler")
    assert opening_line(header, RunDirectory(run).rows).startswith(
        "recorded decode step 1.2 ms (batch 2, 19 steps, traced"
    )


@pytest.mark.parametrize(
    "name",
    sorted(path.name for path in CASES.glob("*")) or [pytest.param("", marks=pytest.mark.skip(reason="no cases"))],
)
def test_folded_sums_are_the_traced_time_of_every_thread_of_a_real_trace(name: str) -> None:
    trace = summarize(case(name))
    (engine,) = group([trace])
    made = recording("0" * 16, [engine], None)
    sums: dict[str, int] = {}
    own: dict[str, int] = {}
    for part in made.totals:
        inclusive = dict(zip(part.stacks, part.inclusive_ns, strict=True))
        for stack, value in inclusive.items():
            root = stack.partition(";")[0]
            children = (
                sum(v for s, v in inclusive.items() if s.rpartition(";")[0] == stack) if len(inclusive) < 400 else 0
            )
            own[root] = own.get(root, 0) + value - children
            if root == stack:
                sums[root] = sums.get(root, 0) + value
    assert {use.label: sums[use.label] for use in trace.threads} == {use.label: use.traced for use in trace.threads}
    kernels = sum(usage.total for table in trace.kernels.values() for usage in table.values())
    assert sum(value for root, value in sums.items() if root.startswith("device")) == kernels


def test_ranks_that_began_at_different_steps_are_laid_over_each_other(tmp_path: Path) -> None:
    paths = [write_rank(tmp_path, rank, first=4 * rank, on_device=False) for rank in range(2)]
    made = recording("0" * 16, group(map(summarize, paths)), None)
    assert len(made.rows) == 30
    assert sorted(part.index for part in made.totals if part.rank == "1") == list(range(4, 30))


def test_stacks_deeper_than_anyone_draws_are_cut_and_keep_their_time(tmp_path: Path) -> None:
    trace = TraceSample()
    for depth in range(400):
        trace.add(f"f{depth}", depth, 1000 - 2 * depth, "python_function")
    summary = summarize(trace.write(tmp_path / "trace.json"))
    made = recording("0" * 16, group([summary]), None)
    (part,) = made.totals
    assert max(stack.count(";") for stack in part.stacks) == 199
    assert dict(zip(part.stacks, part.inclusive_ns, strict=True))["thread"] == 1_000_000


@pytest.mark.parametrize("below", [".", "torch", "torch/worker"])
def test_the_recording_of_the_same_engines_stands_beside_their_traces(
    below: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded = write_sample(tmp_path / "runs")
    engine_trace().write(recorded / "torch" / "worker" / "rank0.1.pt.trace.json")
    args = ("--profile-dir", recorded / below, "--runs", tmp_path / "runs")
    beside = analyze_json(capsys, *args)["recorded"]
    rows = {row["kind"]: row for row in beside["rows"]}
    assert (rows["decode"]["recorded_steps"], rows["decode"]["traced_steps"]) == (36, 19)
    assert rows["decode"]["traced_ms"] == pytest.approx(1.187, abs=1e-3)
    assert "moe.experts" in {frame["frame"].partition(":")[0] for frame in beside["frames"]}
    assert "The recording of the same engines" in analyze(capsys, *args)
    assert len(list((tmp_path / "runs").iterdir())) == 2
    assert any(
        f"the same engines were recorded, too: {recorded.name}" in run.header["notes"]
        for run in list_runs(tmp_path / "runs")
    )


def test_a_baseline_is_compared_by_step_kind_category_and_kernel(
    traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine_trace(slow=1.1).write(tmp_path / "slower" / "rank0.1.pt.trace.json")
    args = ("--profile-dir", tmp_path / "slower", "--baseline", traces, "--no-run")
    baseline = analyze_json(capsys, *args)["baseline"]

    def change(rows: list[dict[str, Any]], kind: str, name: str) -> tuple[float, float]:
        (row,) = [row for row in rows if (row["kind"], row["name"]) == (kind, name)]
        return row["before_ms"], row["after_ms"]

    assert change(baseline["categories"], "decode", "GEMM") == pytest.approx((0.08, 0.088))
    assert change(baseline["names"], "prefill", "flash_fwd_kernel") == pytest.approx((0.005, 0.0055))
    assert change(baseline["steps"], "decode", "device busy") == pytest.approx((0.09, 0.099))
    text = analyze(capsys, *args)
    assert f"Compared with {traces}" in text
    assert "1.10" in text


def test_the_documentation_lists_the_thresholds_as_they_are() -> None:
    text = (Path(__file__).parents[2] / "docs" / "analyze.md").read_text()
    table = text.partition("<!-- thresholds:")[2].partition("<!-- /thresholds -->")[0]
    rows = [f"| `{each.name}` | {each.value:g} | {each.meaning} |" for each in TABLE]
    assert table.splitlines()[3:] == rows


NUMBER = (
    st.integers(0, 400) | st.floats(0, 400, allow_nan=False) | st.none() | st.sampled_from(["7", "x", -3, 2**70, 1e300])
)
ANY_EVENT = st.fixed_dictionaries(
    {"ph": st.sampled_from("XXXXXBEMis")},
    optional={
        "name": st.sampled_from(
            [
                *(
                    "aten::mm",
                    "ncclDevKernel_AllReduce",
                    "cudaGraphLaunch",
                    "cudaLaunchKernel",
                    "_C::shm_allreduce",
                    "",
                    5,
                ),
                *("execute_context_0(0)_generation_2(2)", "execute_context_1(9)_generation_0(0)", "ProfilerStep#3"),
                *("execute_context_0(0)_generation_0(0)", "process_name", "thread_name"),
            ]
        ),
        "cat": st.sampled_from(
            ["cpu_op", "kernel", "gpu_memcpy", "cuda_runtime", "user_annotation", "python_function"]
        ),
        "pid": st.sampled_from([0, 1, "Spans", None]),
        "tid": st.sampled_from([1, 2, 7, "x"]),
        "ts": NUMBER,
        "dur": NUMBER,
        "args": st.fixed_dictionaries({}, optional={"correlation": NUMBER, "name": st.sampled_from(["a", 3])}),
    },
)


@given(st.lists(ANY_EVENT, max_size=30))
def test_whatever_a_trace_holds_makes_a_report_and_a_run_with_the_threads_time(
    tmp_path_factory: pytest.TempPathFactory, events: list[dict[str, Any]]
) -> None:
    path = tmp_path_factory.mktemp("any") / "rank0.json"
    path.write_text(json.dumps({"traceEvents": events}))
    trace = summarize(path)
    engines = group([trace])
    report = build("any", engines, parse(()), 5)
    sections = lay_out(report, all_ranks=True)
    assert markdown(sections).startswith("# ")
    json.loads(orjson.dumps(report))
    sums: dict[str, int] = {}
    for part in recording("0" * 16, engines, None).totals:
        for stack, value in zip(part.stacks, part.inclusive_ns, strict=True):
            if ";" not in stack:
                sums[stack] = sums.get(stack, 0) + value
    assert {use.label: sums.get(use.label, 0) for use in trace.threads} == {
        use.label: use.traced for use in trace.threads
    }
