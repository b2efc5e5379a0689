"""Engines of several ranks and engines whose steps overlap, for real on the CPU: what they record is what happened."""

from __future__ import annotations

import statistics
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from otlp_sink import OtlpSink
from scripts import run_script
from streaming import slope

from vime_otel.data.recording import ENGINE_PART, StepRow
from vime_otel.data.rundir import RunDirectory
from vime_otel.demo.tiny_model import write_tiny_model

pytestmark = pytest.mark.engine

PLUGIN = Path(__file__).parent / "plugin"
EACH_A_CORE = {"VLLM_CPU_OMP_THREADS_BIND": "0|1"}
ONE_THREAD = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
IN_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
SHAPES = {
    "tensor": EACH_A_CORE,
    "pipeline": EACH_A_CORE,
    "one_process": {**ONE_THREAD, **IN_PROCESS},
    "asynchronous": ONE_THREAD,
    "asynchronous_one_process": {**ONE_THREAD, **IN_PROCESS},
}
LONG = ("tensor", "pipeline", "one_process", "asynchronous")
STAGES = {"tensor": {"0": 0, "1": 0}, "pipeline": {"0": 0, "1": 1}}
ENGINE_STACKS = {"step", "step;schedule", "step;wait", "step;update_from_output"}
STEADY = 80
"""Of a window's steps the last ones, in which all requests decode."""
LAYER = "step;execute_model;Qwen3MoeForCausalLM;model:Qwen3MoeModel;Qwen3MoeDecoderLayer"


@pytest.fixture(scope="module")
def deep_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose steps take several times what lies between them."""
    return write_tiny_model(tmp_path_factory.mktemp("model"), num_hidden_layers=6)


def run(script: str, model: Path, directory: Path, env: dict[str, str]) -> tuple[dict[str, Any], OtlpSink]:
    """What the script found, and the spans that came."""
    with OtlpSink() as sink:
        env = {**env, "PYTHONPATH": str(PLUGIN), "OTEL_EXPORTER_OTLP_ENDPOINT": sink.endpoint}
        return run_script(script, model, directory, env), sink


class Recorded:
    """One recording, and its spans by trace."""

    def __init__(self, window: dict[str, Any], sink: OtlpSink) -> None:
        self.run = RunDirectory(Path(window["run"]))
        self.outputs_ns = window["outputs_ns"]
        self.recording = self.run.recording()
        self.traces: dict[str, list[tuple[dict[str, Any], Any]]] = defaultdict(list)
        for resource, span in sink.spans():
            if resource["vime.recording.id"] == self.run.id:
                self.traces[span.trace_id.hex()].append((resource, span))

    def rows_of(self, engine: str) -> list[StepRow]:
        return [row for row in self.run.rows if row.engine == engine]

    def mean_interval_ns(self, kind: str) -> float:
        return statistics.mean(row.interval_ns for row in self.run.rows if row.kind == kind)

    def assert_one_tree_a_trace(self) -> None:
        """One root, every parent there, every child within."""
        for spans in self.traces.values():
            by_id = {span.span_id: span for _, span in spans}
            assert len(by_id) == len(spans)
            assert sum(not span.parent_span_id for span in by_id.values()) == 1
            for span in by_id.values():
                if span.parent_span_id:
                    assert span.parent_span_id in by_id


@dataclass
class Outcome:
    """What came of one shape."""

    shape: str
    found: dict[str, Any]
    windows: dict[str, Recorded]


@pytest.fixture(
    scope="module", params=[pytest.param(shape, marks=[pytest.mark.long] if shape in LONG else []) for shape in SHAPES]
)
def outcome(request: pytest.FixtureRequest, deep_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    shape = request.param
    directory = tmp_path_factory.mktemp(shape) / "dir"
    found, sink = run("parallel.py", deep_model, directory, {**SHAPES[shape], "VIME_TEST_SHAPE": shape})
    return Outcome(shape, found, {name: Recorded(window, sink) for name, window in found["windows"].items()})


def test_each_step_of_the_work_is_a_row(outcome: Outcome) -> None:
    for recorded in outcome.windows.values():
        header, rows = recorded.run.header, recorded.run.rows
        assert (header["complete"], header["reasons"]) == (True, [])
        assert [row.index for row in rows] == list(range(header["asked"]["steps"]))
    one = outcome.windows["one"].run
    assert len(outcome.windows["one"].outputs_ns) == len(one.rows), "a step for each token"
    assert one.steps == {"prefill": 1, "decode": len(one.rows) - 1}
    assert {row.requests for row in one.rows} == {1}


def test_all_ranks_record_the_same_steps(outcome: Outcome) -> None:
    stages = STAGES.get(outcome.shape, {"0": 0})
    for recorded in outcome.windows.values():
        (engine,) = recorded.run.header["engines"]
        assert {rank["rank"]: rank["stage"] for rank in engine["ranks"]} == stages
        assert recorded.run.ranks() == [f"{engine['id']}-{rank}" for rank in stages]
        steps = defaultdict(set)
        for part in recorded.recording.totals:
            steps[part.rank].add((part.index, part.stage))
            if part.rank != ENGINE_PART:
                assert dict(zip(part.stacks, part.calls, strict=True))["step;execute_model"] == 1
        for rank, stage in stages.items():
            assert steps[rank] == {(row.index, stage) for row in recorded.run.rows}


def test_a_step_is_one_trace_of_all_ranks(outcome: Outcome) -> None:
    ranks = {None, *(int(rank) for rank in STAGES.get(outcome.shape, {"0": 0}))}
    for recorded in outcome.windows.values():
        assert set(recorded.traces) == {row.trace_id for row in recorded.run.rows}
        assert len(recorded.traces) == len(recorded.run.rows)
        for spans in recorded.traces.values():
            assert {resource.get("vime.rank") for resource, _ in spans} == ranks
        recorded.assert_one_tree_a_trace()


def test_ranks_are_averaged_over_their_stage_and_stages_summed(outcome: Outcome) -> None:
    stages = set(STAGES.get(outcome.shape, {"0": 0}).values())
    for recorded in outcome.windows.values():
        run = recorded.run
        of_ranks = [run.calls("decode", rank) for rank in run.ranks()]
        for stack, calls in run.calls("decode").items():
            if stack in ENGINE_STACKS:
                continue
            expected = sum(of_rank.get(stack, 0) for of_rank in of_ranks) * len(stages) / len(of_ranks)
            assert calls == pytest.approx(expected, abs=1), stack


def test_the_client_sees_the_same_time_go_by(outcome: Outcome) -> None:
    recorded = outcome.windows["one"]
    rows, times = recorded.run.rows, recorded.outputs_ns
    if outcome.shape == "pipeline":
        # With one request alone vLLM's loop sleeps for a millisecond after each step, outside of all steps.
        recorded = outcome.windows["two"]
        rows = recorded.run.rows[-STEADY:]
        times = [ns for ns in recorded.outputs_ns if ns > rows[0].start_unix_nano + rows[0].duration_ns][:STEADY]
    if outcome.shape == "asynchronous_one_process":
        # Nothing runs beside the engine: a step has run before the outputs of the one before are looked at.
        rows, times = rows[1:], times[:-1]
    intervals = [row.interval_ns for row in rows]
    ratio = slope(times, intervals)
    mean_ns = recorded.mean_interval_ns("decode")
    print(f"{outcome.shape}: mean interval {mean_ns / 1e6:.3f} ms, client over intervals {ratio:.4f}")
    assert ratio == pytest.approx(1, rel=0.05)


def test_the_folded_time_is_the_time_of_the_steps(outcome: Outcome) -> None:
    one = outcome.windows["one"]
    folded_ns = sum(one.run.self_us("decode").values()) * 1000 / one.run.steps["decode"]
    assert folded_ns == pytest.approx(one.mean_interval_ns("decode"), rel=0.01)
    for recorded in outcome.windows.values():
        # Where both stages are at work their sum goes beyond the clock, and the recording says by how much.
        values = [value for kind in recorded.run.steps for value in recorded.run.self_us(kind).values()]
        intervals_ns = sum(row.interval_ns for row in recorded.run.rows)
        beyond_ns = recorded.run.header["overlap_ns"]
        assert sum(values) * 1000 == pytest.approx(intervals_ns + beyond_ns, abs=1000 * len(values))


def test_overlapping_steps_say_so(outcome: Outcome) -> None:
    asynchronous = outcome.shape.startswith("asynchronous")
    assert outcome.found["asynchronous"] is asynchronous
    one, two = ({row.overlapped for row in outcome.windows[name].run.rows[-STEADY:-1]} for name in ("one", "two"))
    assert one == {asynchronous}
    assert two == {asynchronous or outcome.shape == "pipeline"}


def test_compiled_stages_show_what_they_can_and_forced_ones_the_whole_tree(outcome: Outcome) -> None:
    if outcome.shape != "pipeline":
        assert {row.execution for row in outcome.windows["one"].run.rows} == {"eager"}
        assert f"{LAYER};mlp:Qwen3MoeSparseMoeBlock" in outcome.windows["one"].run.calls("decode")
        return
    one, forced = outcome.windows["one"].run, outcome.windows["forced"].run
    assert {row.execution for row in one.rows} == {"compiled"}
    assert LAYER not in one.calls("decode")
    assert {row.execution for row in forced.rows} == {"forced_eager"}
    layers = [forced.calls("decode", rank)[LAYER] for rank in forced.ranks()]
    assert layers == [3 * forced.steps["decode"]] * 2


@pytest.fixture(scope="module")
def group(deep_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, GroupRecorded]:
    """The windows of two data-parallel engines."""
    found, sink = run("data_parallel.py", deep_model, tmp_path_factory.mktemp("data") / "dir", ONE_THREAD)
    return {name: GroupRecorded(window, sink) for name, window in found.items()}


class GroupRecorded(Recorded):
    """A recording of both engines of a group."""

    def __init__(self, window: dict[str, Any], sink: OtlpSink) -> None:
        super().__init__(window, sink)
        self.window = window
        self.engines = sorted(self.run.header["engines"], key=lambda engine: engine["label"].rpartition("/")[2])
        self.ids = [engine["id"] for engine in self.engines]
        self.rows = [self.rows_of(engine) for engine in self.ids]

    def kinds(self, rank: int) -> list[str]:
        return [row.kind for row in self.rows[rank]]


@pytest.mark.long
def test_a_group_is_one_recording_with_the_same_steps_on_all_its_engines(group: dict[str, GroupRecorded]) -> None:
    for recorded in group.values():
        header = recorded.run.header
        assert (header["complete"], header["reasons"]) == (True, [])
        assert [engine["label"].rpartition("/")[2] for engine in recorded.engines] == ["0", "1"]
        assert [engine["complete"] for engine in recorded.engines] == [True, True]
        first, second = ([(row.index, row.trace_id) for row in rows] for rows in recorded.rows)
        assert first == second
        assert [index for index, _ in first] == list(range(header["asked"]["steps"]))


@pytest.mark.long
def test_a_lockstep_step_is_one_trace_under_the_first_engines_root(group: dict[str, GroupRecorded]) -> None:
    for recorded in group.values():
        assert set(recorded.traces) == {row.trace_id for row in recorded.rows[0]}
        assert len(recorded.traces) == len(recorded.rows[0])
        recorded.assert_one_tree_a_trace()
        for spans in recorded.traces.values():
            roots = [(resource["service.instance.id"], span) for resource, span in spans if span.name.endswith(" step")]
            by_engine = dict(roots)
            assert by_engine.keys() == set(recorded.ids)
            first, second = (by_engine[engine] for engine in recorded.ids)
            assert (first.parent_span_id, second.parent_span_id) == (b"", first.span_id)


@pytest.mark.long
def test_steps_of_the_same_index_went_on_at_the_same_time(group: dict[str, GroupRecorded]) -> None:
    # In each the ranks exchanged what their experts needed: no rank can end it before the other has begun it.
    for recorded in group.values():
        for first, second in zip(*recorded.rows, strict=True):
            assert first.start_unix_nano < second.start_unix_nano + second.duration_ns
            assert second.start_unix_nano < first.start_unix_nano + first.duration_ns


@pytest.mark.long
def test_a_rank_without_work_has_idle_steps_and_is_complete(group: dict[str, GroupRecorded]) -> None:
    recorded = group["one_rank"]
    steps = len(recorded.rows[0])
    assert recorded.kinds(0) == ["idle"] * steps
    assert recorded.kinds(1) == ["prefill"] + ["decode"] * (steps - 1)
    assert [engine["steps"] for engine in recorded.engines] == [{"idle": steps}, {"prefill": 1, "decode": steps - 1}]
    assert recorded.run.ranks() == [f"{recorded.ids[1]}-0"]
    assert recorded.run.steps == {"prefill": 1, "decode": steps - 1}, "idle steps count nowhere"


@pytest.mark.long
def test_the_working_ranks_steps_are_those_of_its_client(group: dict[str, GroupRecorded]) -> None:
    recorded = group["one_rank"]
    ratio = slope(recorded.outputs_ns, [row.interval_ns for row in recorded.rows[1]])
    mean_ns = recorded.mean_interval_ns("decode")
    print(f"data parallel: mean interval {mean_ns / 1e6:.3f} ms, client over intervals {ratio:.4f}")
    assert ratio == pytest.approx(1, rel=0.05)
    folded_ns = sum(recorded.run.self_us("decode").values()) * 1000 / recorded.run.steps["decode"]
    assert folded_ns == pytest.approx(mean_ns, rel=0.01)


@pytest.mark.long
def test_a_window_goes_on_in_the_next_wave(group: dict[str, GroupRecorded]) -> None:
    recorded = group["two_waves"]
    (before, also_before), (after, also_after) = recorded.window["waves"]
    assert before == also_before < after == also_after
    tokens = len(recorded.outputs_ns[0])
    first, second = recorded.kinds(0), recorded.kinds(1)
    began = second.index("prefill")
    assert first == ["prefill"] + ["decode"] * (tokens - 1) + ["idle"] * (len(first) - tokens)
    assert second == ["idle"] * began + ["prefill"] + ["decode"] * (len(second) - began - 1)
    assert began >= tokens


@pytest.mark.long
def test_a_running_group_is_armed_at_one_step(group: dict[str, GroupRecorded]) -> None:
    recorded = group["running"]
    for rank in (0, 1):
        assert "decode" in recorded.kinds(rank)
    pauses = [engine["pause_ms"] for engine in recorded.engines]
    print(f"arming and fetching put {pauses} ms between two steps")
