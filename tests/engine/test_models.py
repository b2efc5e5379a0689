"""Models of many architectures on real in-process engines: the frames that each must have, and how much has no name."""

from __future__ import annotations

import json
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest
from otlp_sink import OtlpSink, span_attributes
from scripts import run_script

from vime_otel.demo.tiny_model import write_tiny_model

pytestmark = pytest.mark.engine

UNNAMED_BELOW = 0.05
DRAFTED = 3

# Qwen1.5-MoE-A2.7B in half its width, with 4 of its layers and half of its experts, decoding 64 tokens a step: where
# operators are as short as Python's way from one to the next, as in a toy, the share of that way says nothing.
SIZE: dict[str, Any] = {
    "num_hidden_layers": 4,
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "head_dim": 64,
    "intermediate_size": 2816,
    "num_experts": 32,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 704,
}

# Frames by the attribute that holds the module; one is found below the others before it, be they parents or not.
STEP = {
    "schedule",
    "wait",
    "update_from_output",
    "execute_model;preprocess",
    "execute_model;forward_context",
    "execute_model;postprocess;logits_processor",
    "sample_tokens;sample",
    "sample_tokens;bookkeep",
    "execute_model;model;embed_tokens",
    "execute_model;model;norm",
}
LAYER = {
    "input_layernorm",
    "post_attention_layernorm",
    "self_attn;qkv_proj",
    "self_attn;rotary_emb",
    "self_attn;attn",
    "self_attn;o_proj",
}
QK_NORMS = {"self_attn;q_norm", "self_attn;k_norm"}
DENSE = {"mlp;gate_up_proj", "mlp;act_fn", "mlp;down_proj"}
EXPERTS = {"gate", *(f"experts;moe.{phase}" for phase in ("route", "dispatch", "experts", "combine"))}
SHARED_EXPERTS = {
    f"moe.shared_experts;shared_expert;{part}" for part in ("gate_up_proj", "act_fn", "down_proj", "shared_expert_gate")
}

# These do work of their own between the calls that have frames.
WORKING = {"preprocess", "sample", "draft", "bookkeep", "postprocess", "self_attn", "moe.experts", "shared_expert"}


@dataclass(frozen=True)
class Model:
    """An architecture, what its config has besides SIZE, and the frames of one of its layers."""

    name: str
    model_type: str
    layer: set[str]
    config: dict[str, Any] = field(default_factory=dict)
    speculative: dict[str, Any] | None = None

    @property
    def title(self) -> str:
        """A word for test reports."""
        return f"{self.name}{' ngram' if self.speculative else ''}"


QWEN2_MOE = Model("Qwen2Moe", "qwen2_moe", LAYER | EXPERTS | SHARED_EXPERTS, {"shared_expert_intermediate_size": 2816})
NGRAM = {
    "method": "ngram",
    "num_speculative_tokens": DRAFTED,
    "prompt_lookup_max": 3,
    "prompt_lookup_min": 1,
}
LONG = [
    Model("Qwen3Moe", "qwen3_moe", LAYER | QK_NORMS | EXPERTS),
    Model("Mixtral", "mixtral", LAYER | EXPERTS, {"num_local_experts": 8, "num_experts_per_tok": 2}),
    Model("Olmoe", "olmoe", LAYER | QK_NORMS | EXPERTS),
    Model("Llama", "llama", LAYER | DENSE),
    Model("Llama", "llama", LAYER | DENSE, speculative=NGRAM),
]


@dataclass(frozen=True)
class Step:
    """One step's self time in nanoseconds by stack, from its spans."""

    kind: str
    self_ns: Counter[str]

    @property
    def shares(self) -> dict[str, float]:
        """Each stack's part of the step."""
        total = sum(self.self_ns.values())
        return {stack: took / total for stack, took in self.self_ns.items()}


@dataclass(frozen=True)
class Outcome:
    """What the script found about a model, and the steps that the OTLP endpoint got."""

    model: Model
    found: dict[str, Any]
    steps: list[Step]

    def of_kind(self, kind: str) -> list[Step]:
        """The steps of one kind."""
        return [step for step in self.steps if step.kind == kind]


@pytest.fixture(
    scope="module",
    params=[
        QWEN2_MOE,
        *(pytest.param(model, marks=pytest.mark.long) for model in LONG),
    ],
    ids=lambda model: model.title,
)
def outcome(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    model: Model = request.param
    directory = tmp_path_factory.mktemp("models") / "dir"
    config = {**SIZE, "model_type": model.model_type, **model.config}
    folder = write_tiny_model(directory.with_name("model"), f"{model.name}ForCausalLM", **config)
    with OtlpSink() as sink:
        env = {
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            # One thread: where several wait for each other, the machine's other load decides about the shares.
            "OMP_NUM_THREADS": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OTEL_EXPORTER_OTLP_ENDPOINT": sink.endpoint,
            "SPECULATIVE": json.dumps(model.speculative) if model.speculative else "",
        }
        found = run_script("models.py", folder, directory, env)
    return Outcome(model, found, steps_of(span for _, span in sink.spans()))


def steps_of(spans: Iterable[Any]) -> list[Step]:
    """The steps that spans belong to, a trace each."""
    traces = defaultdict(dict)
    for span in spans:
        traces[span.trace_id][span.span_id] = span
    steps = []
    for trace in traces.values():
        self_ns: Counter[str] = Counter()
        kind = ""
        for span in trace.values():
            attributes = span_attributes(span)
            took = span.end_time_unix_nano - span.start_time_unix_nano
            self_ns[attributes["vime.stack"]] += took
            if span.parent_span_id:
                self_ns[span_attributes(trace[span.parent_span_id])["vime.stack"]] -= took
            else:
                kind = attributes["vime.step.kind"]
        steps.append(Step(kind, self_ns))
    return steps


def attributes_of(stack: str) -> list[str]:
    """A stack's frames without their classes, a layer's but for its class."""
    return [frame.partition(":")[0] for frame in stack.split(";")]


def has(stacks: Iterable[str], wanted: str) -> bool:
    """Whether a stack ends in the last of the wanted frames and has the others above it, in this order."""
    *above, last = wanted.split(";")
    for stack in stacks:
        *frames, end = attributes_of(stack)
        rest = iter(frames)
        if end == last and all(frame in rest for frame in above):
            return True
    return False


def unnamed(step: Step) -> dict[str, float]:
    """The shares of a step that only what contains other frames has, by stack."""
    containers = {stack.rpartition(";")[0] for stack in step.self_ns}
    return {
        stack: share
        for stack, share in step.shares.items()
        if stack in containers and attributes_of(stack)[-1] not in WORKING
    }


def test_the_recording_is_whole_and_nothing_is_left_behind(outcome: Outcome) -> None:
    header = outcome.found["header"]
    assert (header["complete"], header["reasons"]) == (True, [])
    assert outcome.found["left_behind"] == [[]]
    assert len(outcome.steps) == len(outcome.found["rows"])


@pytest.mark.parametrize("kind", ["decode", "prefill"])
def test_every_step_has_the_frames_of_the_model(outcome: Outcome, kind: str) -> None:
    layer = f"execute_model;{outcome.model.name}ForCausalLM;model;{outcome.model.name}DecoderLayer"
    wanted = STEP | {f"{layer};{frames}" for frames in outcome.model.layer}
    steps = outcome.of_kind(kind)
    assert steps
    for step in steps:
        assert {frames for frames in wanted if not has(step.self_ns, frames)} == set()


def test_less_than_a_twentieth_of_a_decode_step_has_no_name(outcome: Outcome) -> None:
    steps = [unnamed(step) for step in outcome.of_kind("decode")]
    by_stack = {stack: statistics.median(step.get(stack, 0.0) for step in steps) for stack in steps[0]}
    largest = sorted(by_stack.items(), key=lambda item: -item[1])
    assert statistics.median(sum(step.values()) for step in steps) < UNNAMED_BELOW, largest


def test_drafts_are_counted_and_drafting_has_a_frame(outcome: Outcome) -> None:
    if outcome.model.speculative is None:
        assert {row["speculative_tokens"] for row in outcome.found["rows"]} == {0}
        assert not any(has(step.self_ns, "draft") for step in outcome.steps)
        return
    assert any(row["speculative_tokens"] > 0 for row in outcome.found["rows"])
    assert all(has(step.self_ns, "sample_tokens;draft") for step in outcome.of_kind("decode"))
