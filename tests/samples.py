"""A recording as real engines make it, in small: two engines of two ranks, a MoE model, both kinds."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from vime_otel.data.folded import inclusive
from vime_otel.data.recording import ENGINE_PART, Recording, StepRow, StepTotals
from vime_otel.data.write_run import new_run_name, write_run

RECORDING_ID = "5eed0123456789ab"
ENGINES = ("0a1b2c3d4e5f6071", "f1e2d3c4b5a69788")
RANKS = ("0", "1")
LAYERS = 24
STEPS = 20
PREFILL_STEPS = frozenset({0, 9})
START_UNIX_NANO = 1_764_460_800_000_000_000

_MODEL = "step;execute_model;Qwen3MoeForCausalLM;model:Qwen3MoeModel"
_LAYER = f"{_MODEL};Qwen3MoeDecoderLayer"
_ATTENTION = f"{_LAYER};self_attn:Qwen3MoeAttention"
_MLP = f"{_LAYER};mlp:Qwen3MoeSparseMoeBlock"
_EXPERTS = f"{_MLP};experts:FusedMoE"

# Stack: (self time in µs of one decode step, calls a step).
WORKER_STACKS: Mapping[str, tuple[int, int]] = {
    "step;execute_model": (86, 1),
    "step;execute_model;preprocess": (310, 1),
    "step;execute_model;postprocess": (41, 1),
    "step;execute_model;Qwen3MoeForCausalLM": (9, 1),
    _MODEL: (31, 1),
    f"{_MODEL};embed_tokens:VocabParallelEmbedding": (58, 1),
    f"{_MODEL};norm:RMSNorm": (17, 1),
    _LAYER: (205, LAYERS),
    f"{_LAYER};input_layernorm:RMSNorm": (246, LAYERS),
    f"{_LAYER};post_attention_layernorm:RMSNorm": (251, LAYERS),
    _ATTENTION: (148, LAYERS),
    f"{_ATTENTION};qkv_proj:QKVParallelLinear": (702, LAYERS),
    f"{_ATTENTION};q_norm:RMSNorm": (138, LAYERS),
    f"{_ATTENTION};k_norm:RMSNorm": (131, LAYERS),
    f"{_ATTENTION};rotary_emb:RotaryEmbedding": (171, LAYERS),
    f"{_ATTENTION};attn:Attention": (1340, LAYERS),
    f"{_ATTENTION};o_proj:RowParallelLinear": (588, LAYERS),
    _MLP: (72, LAYERS),
    f"{_MLP};gate:ReplicatedLinear": (190, LAYERS),
    _EXPERTS: (96, LAYERS),
    f"{_EXPERTS};moe.route": (355, LAYERS),
    f"{_EXPERTS};moe.dispatch": (412, LAYERS),
    f"{_EXPERTS};moe.experts": (3870, LAYERS),
    f"{_EXPERTS};moe.combine": (467, LAYERS),
    "step;execute_model;postprocess;logits_processor:LogitsProcessor": (26, 1),
    "step;execute_model;postprocess;logits_processor:LogitsProcessor;lm_head:ParallelLMHead": (533, 1),
    "step;sample_tokens": (19, 1),
    "step;sample_tokens;sample": (287, 1),
    "step;sample_tokens;bookkeep": (73, 1),
}
ENGINE_STACKS: Mapping[str, tuple[int, int]] = {
    "step": (184, 1),
    "step;schedule": (152, 1),
    "step;wait": (96, 1),
    "step;update_from_output": (131, 1),
}


def sample_recording(extra: Mapping[str, tuple[int, int]] | None = None, **header: Any) -> Recording:
    """The sample; `extra` worker stacks (self µs, calls) and header keys come on top."""
    worker = {**WORKER_STACKS, **(extra or {})}
    rows: list[StepRow] = []
    totals: list[StepTotals] = []
    for engine in ENGINES:
        start = START_UNIX_NANO
        for index in range(STEPS):
            row, parts = _step(engine, index, start, worker)
            rows.append(row)
            totals.extend(parts)
            start += row.interval_ns
    recording = Recording({}, rows, totals)
    spans = sum(part.spans_made for part in totals)
    recording.header = {**_header(recording, spans), **header}
    return recording


def by_layer(recording: Recording) -> Recording:
    """The same recording with its layers told apart; what they share is split evenly, odd nanoseconds to the first."""
    return replace(recording, totals=[_split(part) for part in recording.totals])


def _split(part: StepTotals) -> StepTotals:
    columns = zip(part.stacks, part.inclusive_ns, part.calls, strict=True)
    stacks, inclusive_ns, calls = zip(*(entry for each in columns for entry in _layers(*each)), strict=True)
    return replace(part, stacks=stacks, inclusive_ns=inclusive_ns, calls=calls)


def _layers(stack: str, inclusive_ns: int, calls: int) -> Iterator[tuple[str, int, int]]:
    if _LAYER not in stack:
        yield stack, inclusive_ns, calls
        return
    for number in range(LAYERS):
        own = inclusive_ns // LAYERS + (inclusive_ns % LAYERS if number == 0 else 0)
        yield stack.replace(_LAYER, f"{_MODEL};layers.{number}:Qwen3MoeDecoderLayer"), own, calls // LAYERS


def idle_row(engine: str, index: int) -> StepRow:
    """A step in which the engine kept its lockstep group company."""
    first = sample_recording().rows[0]
    return replace(first, engine=engine, index=index, kind="idle", context_tokens=0, generation_tokens=0, requests=0)


def write_sample(root: Path, recording: Recording | None = None, torch: bool = False) -> Path:
    """The recording as a run directory below `root`, with a torch trace of each rank if asked for."""
    recording = recording or sample_recording()
    header = recording.header
    created = datetime.fromisoformat(header["created"].replace("Z", "+00:00"))
    directory = root / new_run_name(header["id"], header.get("label"), created)
    write_run(directory, recording)
    if torch:
        for rank in RANKS:
            path = directory / "torch" / ENGINES[0] / f"rank{rank}.pt.trace.json.gz"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(torch_trace(rank))
        (directory / "torch" / "manifest.json").write_text("{}")
    return directory


def torch_trace(rank: str) -> bytes:
    """A small Chrome trace of the shape that torch writes, gzipped."""
    events = [
        {"ph": "X", "name": f"aten::mm.{i}", "pid": int(rank), "tid": 1, "ts": i * 12, "dur": 10} for i in range(5000)
    ]
    return gzip.compress(json.dumps({"traceEvents": events}).encode(), mtime=0)


def _step(
    engine: str, index: int, start: int, worker: Mapping[str, tuple[int, int]]
) -> tuple[StepRow, list[StepTotals]]:
    kind = "prefill" if index in PREFILL_STEPS else "decode"
    pace = (7.5 if kind == "prefill" else 1.0) * (1 + 0.004 * (index * 7 % 11)) * (1.03 if engine == ENGINES[1] else 1)
    if index == 13:
        pace *= 1.6  # one straggler among the decode steps
    parts = [_part(engine, rank, 0, index, kind, worker, pace * (0.97 if rank == "0" else 1.0)) for rank in RANKS]
    busiest = max(_outermost_ns(part) for part in parts)
    engine_part = _part(engine, ENGINE_PART, -1, index, kind, ENGINE_STACKS, 1.0, under_step_ns=busiest)
    interval = engine_part.inclusive_ns[engine_part.stacks.index("step")]
    row = StepRow(
        engine=engine,
        index=index,
        kind=kind,
        mixed=index == 9,
        execution="eager",
        start_unix_nano=start,
        duration_ns=interval + 210_000,
        interval_ns=interval,
        context_tokens=1536 if kind == "prefill" else 0,
        generation_tokens=0 if index == 0 else 64,
        requests=64,
        trace_id=hashlib.sha256(f"{RECORDING_ID}/{engine}/{index}".encode()).hexdigest()[:32],
    )
    return row, [*parts, engine_part]


def _part(
    engine: str,
    rank: str,
    stage: int,
    index: int,
    kind: str,
    stacks: Mapping[str, tuple[int, int]],
    pace: float,
    under_step_ns: int = 0,
) -> StepTotals:
    totals = inclusive({stack: int(us * 1000 * pace) for stack, (us, _) in stacks.items()})
    if "step" in stacks:
        totals["step"] += under_step_ns
    else:
        del totals["step"]  # the engine's own frame
    calls = tuple(stacks[stack][1] if stack in stacks else 1 for stack in totals)
    return StepTotals(engine, rank, stage, index, kind, tuple(totals), tuple(totals.values()), calls, sum(calls), 0)


def _outermost_ns(part: StepTotals) -> int:
    return sum(ns for stack, ns in zip(part.stacks, part.inclusive_ns, strict=True) if stack.count(";") == 1)


def _header(recording: Recording, spans: int) -> dict[str, Any]:
    return {
        "id": RECORDING_ID,
        "label": "qwen3-moe rollout",
        "complete": True,
        "reasons": [],
        "created": "2025-11-30T00:00:00Z",
        "asked": {"steps": STEPS, "kind": None},
        "timing": "sync",
        "pause_ms": 0.9,
        "overlap_ns": 0,
        "engines": [
            {
                "id": engine,
                "label": f"10.0.0.{number}:8001/0",
                "model": "Qwen/Qwen3-30B-A3B",
                "vllm_version": "0.32.0",
                "host": f"node-{number}",
                "pid": 4100 + number,
                "execution": "eager",
                "ranks": [{"rank": rank, "stage": 0, "spans": spans // 4, "dropped": 0} for rank in RANKS],
                "steps": {"decode": STEPS - len(PREFILL_STEPS), "prefill": len(PREFILL_STEPS)},
                "pause_ms": 0.9,
                "errors": [],
                "complete": True,
                "hooks": {"found": ["execute_model", "moe.route"], "missing": ["moe.shared_experts"]},
            }
            for number, engine in enumerate(ENGINES, 1)
        ],
        "spans": {"expected": spans, "received": spans, "duplicate": 0, "dropped": 0},
        "totals": {"expected": len(recording.totals), "received": len(recording.totals), "duplicate": 0},
        "versions": {"vime_otel": "0.1.0", "vllm": ["0.32.0"]},
    }
