"""Whole recordings on two real engines behind the real router."""

from __future__ import annotations

import json
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from running_collector import until
from running_stack import RunningStack
from streaming import arrivals, completion, slope

from vime_otel.cli.main import main
from vime_otel.data.journal import TRACES, JournalReader
from vime_otel.data.run_files import JOURNAL_FILE
from vime_otel.data.rundir import RunDirectory

pytestmark = pytest.mark.engine

MODEL = "step;execute_model;Qwen3MoeForCausalLM;model:Qwen3MoeModel"
LAYER = f"{MODEL};Qwen3MoeDecoderLayer"
MOE = f"{LAYER};mlp:Qwen3MoeSparseMoeBlock;experts:MoERunner"


@pytest.fixture
def collector(engine_stack: RunningStack, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`vime-otel serve` where the engines look for it, with their recorders attached; killed at the end."""
    command = [sys.executable, "-m", "vime_otel", "serve", "--out", str(tmp_path / "runs")]
    command += ["--http", f"127.0.0.1:{engine_stack.collector_port}", "--grpc", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            until(lambda: len(idle_recorders(engine_stack)) == 2, seconds=60)
            yield process
        finally:
            process.kill()


def idle_recorders(stack: RunningStack) -> list[dict[str, Any]]:
    """The engines that have found the collector and have nothing to do."""
    try:
        answer = requests.get(f"{stack.collector_url}/control/v1/recorders", timeout=5)
    except requests.ConnectionError:
        return []
    busy = ("armed", "recording", "exporting")
    return [recorder for recorder in answer.json()["recorders"] if recorder["phase"] not in busy]


def start(stack: RunningStack, **body: Any) -> str:
    """Begin a recording on the running collector."""
    url = f"{stack.collector_url}/control/v1/recordings"
    answer = requests.post(url, json={"router": stack.router_url, **body}, timeout=10)
    assert answer.status_code == 201, answer.text
    return f"{url}/{answer.json()['id']}"


def show(recording: str) -> dict[str, Any]:
    """How it stands."""
    return dict(requests.get(recording, timeout=10).json())


def phases(recording: str) -> list[str]:
    return [engine["phase"] for engine in show(recording)["engines"]]


def traces(run: RunDirectory) -> list[Any]:
    """The resource spans in a run's journal."""
    frames = JournalReader(run.path / JOURNAL_FILE)
    requests = [ExportTraceServiceRequest.FromString(frame.payload) for frame in frames if frame.signal == TRACES]
    return [group for request in requests for group in request.resource_spans]


def test_one_command_records_both_engines(
    engine_stack: RunningStack, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = ["--http", f"127.0.0.1:{engine_stack.collector_port}", "--grpc", "127.0.0.1:0"]
    command = ["collect", "--router", engine_stack.router_url, "--requests", "2", "--out", str(tmp_path), "--json"]
    command += ["--torch-profile", "--iterations", "3", "--trace-dir", str(engine_stack.directory)]
    status = main([*command, *place])
    result = json.loads(capsys.readouterr().out)
    assert (status, result["complete"], result["reasons"]) == (0, True, [])

    run = RunDirectory(Path(result["run"]))
    traces_of = {entry["worker"]: entry["status"] for entry in result["torch"]["traces"]}
    assert traces_of == dict.fromkeys(engine_stack.worker_urls, "whole")
    assert len(run.torch_traces()) == 2
    assert len(run.ranks()) == 2
    assert {engine["label"].split("/")[0] for engine in run.header["engines"]} == {
        url.removeprefix("http://") for url in engine_stack.worker_urls
    }
    assert sum(run.steps.values()) == 40
    assert {
        "step;schedule",
        "step;wait",
        "step;update_from_output",
        f"{LAYER};self_attn:Qwen3MoeAttention;attn:Attention",
        f"{LAYER};post_attention_layernorm:RMSNorm",
        f"{MOE};moe.route",
        *(f"{MOE};quant_method:UnquantizedFusedMoEMethod;moe.{p}" for p in ("dispatch", "experts", "combine")),
    } <= set(run.self_us("decode"))
    assert run.header["mismatched_steps"] == []
    assert run.header["overlap_ns"] == 0
    pids = {engine["pid"] for engine in run.header["engines"]}
    assert len(pids) == 2

    spans = [span for group in traces(run) for scope in group.scope_spans for span in scope.spans]
    by_id = {span.span_id: span for span in spans}
    assert len(by_id) == len(spans) == run.header["spans"]["expected"], "ids are unique over engines and ranks"
    assert {span.trace_id.hex() for span in spans} == {row.trace_id for row in run.rows}
    for span in spans:
        if span.parent_span_id:
            parent = by_id[span.parent_span_id]
            assert parent.trace_id == span.trace_id
            assert parent.start_time_unix_nano <= span.start_time_unix_nano
            assert span.end_time_unix_nano <= parent.end_time_unix_nano


def test_the_folded_time_is_the_time_on_the_clients_clock(
    engine_stack: RunningStack, collector: subprocess.Popen[bytes]
) -> None:
    url, tokens = engine_stack.worker_urls[0], 361
    arrivals(url, "warm up", 8)
    recording = start(engine_stack, router=None, workers=[url], steps=tokens - 1, kind="decode")
    until(lambda: phases(recording) == ["armed"])
    times = arrivals(url, "one request that is streamed", tokens)
    result = until(lambda: found if (found := show(recording))["state"] in ("done", "failed") else None, seconds=90)
    assert result["complete"], result["reasons"]

    run = RunDirectory(Path(result["run"]))
    intervals = [row.interval_ns for row in run.rows if row.kind == "decode"]
    assert len(times) == len(intervals) + 1, "the first token is the prefill's"
    ratio = slope([round(when * 1e9) for when in times[1:]], intervals)
    mean_ns = statistics.mean(intervals)
    print(f"mean interval {mean_ns / 1e6:.3f} ms; a client's time between two tokens is {ratio:.3f} of a step's")
    assert ratio == pytest.approx(1, rel=0.05)
    folded = run.self_us("decode")
    assert sum(folded.values()) * 1000 / len(intervals) == pytest.approx(mean_ns, rel=0.01)
    unnamed = folded["step"] + folded["step;execute_model"]
    print(f"self time of step and execute_model: {unnamed / sum(folded.values()):.1%} of a decode step")
    assert unnamed < 0.1 * sum(folded.values())


def test_an_idle_engine_is_armed_and_cancelled_without_traffic(
    engine_stack: RunningStack, collector: subprocess.Popen[bytes]
) -> None:
    recording = start(engine_stack)
    until(lambda: phases(recording) == ["armed", "armed"])
    requests.delete(recording, timeout=10)
    result = until(lambda: found if (found := show(recording))["state"] in ("done", "failed") else None, seconds=90)
    assert phases(recording) == ["cancelled", "cancelled"]
    assert not result["complete"]
    assert len(until(lambda: idle_recorders(engine_stack))) == 2


def test_the_collector_may_die_in_the_middle_of_a_window(
    engine_stack: RunningStack, collector: subprocess.Popen[bytes]
) -> None:
    url = engine_stack.worker_urls[0]
    plain = completion(url, "what happens next", 60)
    recording = start(engine_stack, router=None, workers=[url], steps=10_000)
    until(lambda: phases(recording) == ["armed"])
    collector.send_signal(signal.SIGKILL)
    collector.wait()
    assert completion(url, "what happens next", 60) == plain
    assert completion(url, "what happens next", 60) == plain


@pytest.mark.long
def test_both_engines_obey_one_start_file_and_the_last_merges(engine_stack: RunningStack) -> None:
    directory = engine_stack.trigger
    # The engine whose collector was killed has to give its window up first.
    (directory / "start").write_text("6")

    def finished() -> bool:
        for url in engine_stack.worker_urls:
            completion(url, "some work", 8)
        return not (directory / "start").exists()

    until(finished, seconds=120)
    run = RunDirectory(directory)
    engines = [engine["id"] for engine in run.header["engines"]]
    assert len(set(engines)) == 2
    assert sum(run.steps.values()) == 12
    assert run.ranks() == sorted(f"{engine}-0" for engine in engines)
    parts = [RunDirectory(directory / engine) for engine in engines]
    assert [sum(part.steps.values()) for part in parts] == [6, 6]
    merged = sum(sum(part.self_us(kind).values()) for part in parts for kind in part.steps)
    assert sum(sum(run.self_us(kind).values()) for kind in run.steps) == pytest.approx(merged, abs=200)
