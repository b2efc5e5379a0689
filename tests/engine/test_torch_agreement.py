"""The recorder's module times beside the torch profiler's, of the same calls: two clocks, one truth."""

from __future__ import annotations

import statistics
from collections import defaultdict
from typing import Any

import pytest
from otlp_sink import OtlpSink, span_attributes
from scripts import run_script

from vime_otel.demo.tiny_model import write_tiny_model

pytestmark = [pytest.mark.engine, pytest.mark.long]

LONG_CALL_US = 200.0
WITHIN = 0.10


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, list[float]]]:
    """(what the script found, the recorder's microseconds by module path, a call each in order of time)."""
    model = write_tiny_model(
        tmp_path_factory.mktemp("model"),
        hidden_size=512,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=64,
        num_experts=16,
        moe_intermediate_size=512,
    )
    directory = tmp_path_factory.mktemp("agreement") / "dir"
    with OtlpSink() as sink:
        env = {
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VIME_OTEL_TIMING": "host",
            "OMP_NUM_THREADS": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OTEL_EXPORTER_OTLP_ENDPOINT": sink.endpoint,
        }
        found = run_script("torch_agreement.py", model, directory, env)
    calls = defaultdict(list)
    for _, span in sink.spans():
        if path := span_attributes(span).get("vime.module"):
            took = (span.end_time_unix_nano - span.start_time_unix_nano) / 1e3
            calls[path].append((span.start_time_unix_nano, took))
    return found, {path: [took for _, took in sorted(of_path)] for path, of_path in calls.items()}


def test_both_saw_the_same_calls(measured: tuple[dict[str, Any], dict[str, list[float]]]) -> None:
    found, recorder_us = measured
    assert (found["header"]["complete"], found["header"]["asked"]["timing"]) == (True, "host")
    theirs = {path: len(calls) for path, calls in found["profiler_us"].items() if path}
    assert {path: len(calls) for path, calls in recorder_us.items()} == theirs


def test_modules_of_more_than_200_us_agree_within_a_tenth(
    measured: tuple[dict[str, Any], dict[str, list[float]]],
) -> None:
    found, recorder_us = measured
    prefills = found["header"]["engines"][0]["steps"]["prefill"]
    differences = {}
    for path, ours in recorder_us.items():
        pairs = [(a, b) for a, b in zip(ours, found["profiler_us"][path], strict=True) if b > LONG_CALL_US]
        if len(pairs) >= prefills:  # fewer are a short module's calls that something came between
            differences[path] = statistics.median(abs(a - b) / b for a, b in pairs)
    layers = {f"model.layers.{n}{part}" for n in range(2) for part in ("", ".self_attn", ".mlp", ".mlp.experts")}
    assert differences.keys() >= layers
    assert {path: value for path, value in differences.items() if value > WITHIN} == {}
