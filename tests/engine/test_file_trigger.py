"""The file trigger on a real in-process engine without a collector, its spans going to a plain OTLP endpoint."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from otlp_sink import OtlpSink, span_attributes
from scripts import run_script

from vime_otel.data.folded import unescape_frame
from vime_otel.data.otlp import step_ids
from vime_otel.data.rundir import RunDirectory

pytestmark = pytest.mark.engine

MODEL_STACK = "step;execute_model;Qwen3MoeForCausalLM;model:Qwen3MoeModel;Qwen3MoeDecoderLayer"
STEPS = 12


@dataclass
class Outcome:
    """What the script found, where it recorded, and what the OTLP endpoint got."""

    found: dict[str, Any]
    directory: Path
    sink: OtlpSink


@pytest.fixture(scope="module")
def outcome(model_with_weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    directory = tmp_path_factory.mktemp("trigger") / "dir"
    with OtlpSink() as sink:
        env = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "OTEL_EXPORTER_OTLP_ENDPOINT": sink.endpoint}
        found = run_script("batches.py", model_with_weights, directory, env)
    return Outcome(found, directory, sink)


def spans_of(outcome: Outcome) -> list[tuple[dict[str, Any], Any]]:
    """The spans of the first recording."""
    recording = outcome.found["header"]["id"]
    return [(r, span) for r, span in outcome.sink.spans() if r["vime.recording.id"] == recording]


def test_the_same_requests_give_the_same_tokens_recorded_or_not(outcome: Outcome) -> None:
    assert outcome.found["recorded"] == outcome.found["baseline"]
    assert len({str(tokens) for tokens in outcome.found["baseline"]}) == 8, "each prompt has an answer of its own"


def test_the_recording_is_whole_and_the_start_file_is_gone(outcome: Outcome) -> None:
    header = outcome.found["header"]
    assert (header["complete"], header["reasons"]) == (True, [])
    assert not (outcome.directory / "start").exists()


def test_eight_requests_that_decode_together_are_a_decode_step(outcome: Outcome) -> None:
    assert outcome.found["header"]["engines"][0]["steps"] == {"prefill": 1, "decode": STEPS - 1}


def test_a_start_file_that_holds_no_number_means_one_step(outcome: Outcome) -> None:
    second = outcome.found["second"]
    assert second["id"] != outcome.found["header"]["id"]
    run = RunDirectory(outcome.directory)
    assert run.steps == {"prefill": 1}
    assert not (outcome.directory / "decode.folded").exists(), "nothing is left of the recording before"


def test_nothing_is_left_on_any_module_or_class(outcome: Outcome) -> None:
    assert outcome.found["left_behind"] == [[]]
    assert outcome.found["engine_scheduler_clean"]


def test_every_parent_exists_and_children_lie_within(outcome: Outcome) -> None:
    spans = {span.span_id: span for _, span in spans_of(outcome)}
    roots = [span for span in spans.values() if not span.parent_span_id]
    assert len(roots) == STEPS
    for span in spans.values():
        if span.parent_span_id:
            parent = spans[span.parent_span_id]
            assert parent.trace_id == span.trace_id
            assert parent.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano
            assert span.end_time_unix_nano <= parent.end_time_unix_nano


def test_ids_are_unique_and_every_step_is_one_trace(outcome: Outcome) -> None:
    ids = Counter(span.span_id for _, span in spans_of(outcome))
    assert set(ids.values()) == {1}
    header = outcome.found["header"]
    engine = header["engines"][0]["id"]
    agreed = {step_ids(header["id"], engine, index) for index in range(STEPS)}
    roots = [span for _, span in spans_of(outcome) if not span.parent_span_id]
    assert {(span.trace_id, span.span_id) for span in roots} == agreed


def test_spans_say_by_themselves_where_they_belong(outcome: Outcome) -> None:
    stacks = defaultdict(set)
    for resource, span in spans_of(outcome):
        values = span_attributes(span)
        assert resource["service.name"] == "vllm"
        assert resource["vllm.version"]
        assert values["vime.step.kind"] in ("decode", "prefill")
        stacks[values["vime.stack"]].add(span.name)
        if not span.parent_span_id:
            assert span.name == f"{values['vime.step.kind']} step"
            assert values["vime.step.requests"] == 8
            assert values["vime.step.interval_ns"] > 0
    frames = {stack.rpartition(";")[2]: names for stack, names in stacks.items() if stack != "step"}
    assert all(names == {unescape_frame(frame)} for frame, names in frames.items())
    moe = f"{MODEL_STACK};mlp:Qwen3MoeSparseMoeBlock;experts:MoERunner"
    assert {
        "step;schedule",
        "step;wait",
        "step;update_from_output",
        "step;execute_model;preprocess",
        "step;sample_tokens;sample",
        "step;sample_tokens;bookkeep",
        "step;sample_tokens;sample;my phase%3B mine",
        f"{MODEL_STACK};self_attn:Qwen3MoeAttention;attn:Attention",
        f"{MODEL_STACK};input_layernorm:RMSNorm",
    } <= set(stacks)
    # What lies between them and the layer's module differs from release to release.
    phases = {stack.rpartition(";")[2] for stack in stacks if stack.startswith(f"{moe};")}
    assert {"moe.route", "moe.dispatch", "moe.experts", "moe.combine"} <= phases


def test_module_spans_carry_the_modules_path(outcome: Outcome) -> None:
    modules = {span_attributes(span).get("vime.module") for _, span in spans_of(outcome)}
    assert {"model.layers.0.mlp", "model.layers.1.mlp", "model.layers.1.self_attn.attn"} <= modules


def test_rank_and_engine_spans_have_resources_of_their_own(outcome: Outcome) -> None:
    resources = [resource for resource, _ in spans_of(outcome)]
    assert {resource.get("vime.rank") for resource in resources} == {None, 0}
    assert {resource["process.pid"] for resource in resources} == {outcome.found["header"]["engines"][0]["pid"]}
