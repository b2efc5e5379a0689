"""`vime-otel analyze` on traces that vLLM's own profiler takes of real engines on the CPU."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from plain_figures import PlainFigures, covered, span
from scripts import run_script

from vime_otel.analyze.categories import category_of, is_collective
from vime_otel.analyze.names import find_traces
from vime_otel.cli.main import main
from vime_otel.data.find_runs import find_run
from vime_otel.demo.tiny_model import write_tiny_model

pytestmark = [pytest.mark.engine, pytest.mark.long]

ALONE = {"VIME_TEST_RANKS": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
TWO_RANKS = {"VIME_TEST_RANKS": "2", "VLLM_CPU_OMP_THREADS_BIND": "0|1"}
TOKENS = 6
LATER = 3


@dataclass(frozen=True)
class Traced:
    """What an engine's client did, and where the traces are."""

    steps: int
    traces: Path
    in_process: bool
    """Whether each of the client's steps is one of the engine's."""


def trace(model: Path, directory: Path, env: dict[str, str], name: str = "engine") -> Traced:
    traces = directory / "traces"
    found = run_script("torch_traces.py", model, directory / name, {**env, "VIME_TEST_TRACES": str(traces)})
    return Traced(found["steps"], traces, "VLLM_ENABLE_V1_MULTIPROCESSING" in env)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def one(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Traced:
    """One engine of one rank."""
    return trace(model, tmp_path_factory.mktemp("one"), ALONE)


def report(capsys: pytest.CaptureFixture[str], traced: Traced, *args: str) -> dict[str, Any]:
    """The report as JSON; the run goes into a folder beside the traces."""
    runs = traced.traces.parent / "runs"
    capsys.readouterr()
    status = main(["analyze", "--profile-dir", str(traced.traces), "--runs", str(runs), "--format", "json", *args])
    captured = capsys.readouterr()
    assert status == 0, captured.err
    found: dict[str, Any] = json.loads(captured.out)
    return found


def assert_as_counted(rank: dict[str, Any]) -> None:
    """Every figure of a CPU rank's report beside an independent count."""
    figures = PlainFigures(Path(rank["file"]))
    timeline = rank["timeline"]
    collectives = [event for event in figures.host if is_collective(event["name"])]
    assert (rank["problems"], rank["events"], timeline["of"]) == ([], figures.count, "host")
    assert timeline["wall"] == pytest.approx(span(figures.host) / 1e6, abs=1e-3)
    assert timeline["busy"] == pytest.approx(covered(figures.host) / 1e6, abs=1e-3)
    assert timeline["communication"] == pytest.approx(covered(collectives) / 1e6, abs=1e-3)
    expected: dict[str, list[float]] = {}
    for name, (count, time) in figures.own_times().items():
        frame = "execute_model" if name.startswith("execute_context_") else name
        entry = expected.setdefault(category_of(frame), [0, 0.0])
        entry[0] += count
        entry[1] += time / 1e6
    found = {row["category"]: [row["count"], row["ms"]] for row in rank["categories"]}
    assert found.keys() == expected.keys()
    for category, (count, ms) in expected.items():
        assert found[category] == pytest.approx([count, ms], abs=5e-3), category


def assert_steps(rank: dict[str, Any], traced: Traced) -> None:
    """Two requests of which one came later: a prefill, decodes and a step that mixes both, as annotated."""
    told = PlainFigures(Path(rank["file"])).steps()
    rows = {row["kind"]: row for row in rank["steps"]["rows"]}
    assert rank["steps"]["source"] == "vLLM's annotations"
    assert {kind: row["steps"] for kind, row in rows.items()} == {
        "prefill": 1,
        "mixed": 1,
        "decode": sum(not numbers[1] for _, _, numbers in told),
    }
    if traced.in_process:
        assert len(told) == traced.steps
    assert sum(row["generation_tokens"] for row in rows.values()) == sum(numbers[3] for _, _, numbers in told)
    assert sum(row["generation_tokens"] for row in rows.values()) == 2 * (TOKENS - 1)
    assert rows["prefill"]["context_tokens"] == told[0][2][1]
    assert rows["mixed"]["batch"]["p50"] == rows["decode"]["batch"]["most"] == 2
    means = [length for _, length, numbers in told if not numbers[1]]
    assert rows["decode"]["annotated_ms"]["mean"] == pytest.approx(sum(means) / len(means) / 1e6, rel=1e-6)
    assert rows["decode"]["step_ms"]["mean"] > rows["decode"]["annotated_ms"]["mean"]


def test_one_engines_report_is_what_a_plain_count_gives(one: Traced, capsys: pytest.CaptureFixture[str]) -> None:
    (engine,) = report(capsys, one)["engines"]
    (rank,) = engine["ranks"]
    assert_as_counted(rank)
    assert_steps(rank, one)
    assert rank["configuration"]["vllm_version"]
    assert rank["hardware"] == ["CPU only"]


def test_one_engines_flame_graph_is_its_threads_time(one: Traced, capsys: pytest.CaptureFixture[str]) -> None:
    (rank,) = report(capsys, one)["engines"][0]["ranks"]
    run = find_run(one.traces.parent / "runs")
    sums: dict[str, int] = {}
    for kind in run.steps:
        for stack, value in run.self_us(kind, run.ranks()[0]).items():
            root = stack.partition(";")[0]
            sums[root] = sums.get(root, 0) + value
    traced = {thread["thread"]: thread["traced_ms"] * 1000 for thread in rank["threads"]}
    assert sums == pytest.approx(traced, abs=0.5 * 2000)  # each of the stacks is rounded to a microsecond
    exact: dict[str, int] = {}
    for part in run.totals():
        for stack, value in zip(part.stacks, part.inclusive_ns, strict=True):
            if ";" not in stack:
                exact[stack] = exact.get(stack, 0) + value
    assert exact == {name: round(value * 1000) for name, value in traced.items()}


def test_two_engines_that_share_a_folder_are_two_engines(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("first", "second"):
        traced = trace(model, tmp_path, ALONE, name)
    engines = report(capsys, traced, "--all-ranks")["engines"]
    assert [engine["engine"] for engine in engines] == ["#1", "#2"]
    assert [len(engine["ranks"]) for engine in engines] == [1, 1]
    for engine in engines:
        assert_as_counted(engine["ranks"][0])
        assert_steps(engine["ranks"][0], traced)


def test_two_ranks_are_one_engine_and_are_compared(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    traced = trace(model, tmp_path, TWO_RANKS)
    (engine,) = report(capsys, traced, "--all-ranks")["engines"]
    assert [rank["rank"] for rank in engine["ranks"]] == ["rank 0", "rank 1 (tp1 ep1)"]
    for rank in engine["ranks"]:
        assert_as_counted(rank)
        assert_steps(rank, traced)
    assert engine["comparison"]["reason"] == ""
    assert all(row["collectives"] > 50 for row in engine["comparison"]["ranks"])
    # Both run on this machine and by its one clock.
    assert all(abs(row["clock_offset_ms"]) < 1.0 for row in engine["rank_table"])
    run = find_run(tmp_path / "runs")
    assert len(run.ranks()) == 2
    assert run.steps["decode"] == engine["ranks"][0]["steps"]["rows"][2]["steps"]


def test_python_stacks_stand_around_the_operators(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    traced = trace(model, tmp_path, {**ALONE, "VIME_TEST_STACKS": "1"})
    (rank,) = report(capsys, traced)["engines"][0]["ranks"]
    assert (rank["oddities"], rank["problems"]) == ([], [])
    assert_steps(rank, traced)
    run = find_run(tmp_path / "runs")
    under = [stack for stack in run.self_us("decode") if ";execute_model;" in stack and "gpu_model_runner.py" in stack]
    assert any("aten::" in stack.rpartition(";")[2] for stack in under)
    assert not [path for path in find_traces(traced.traces) if "rank0" not in path.name]
