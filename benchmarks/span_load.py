"""Requests as a recorder's exporter and as other services send them, made fast: a template, filled in with numbers.

Every request has 1,000 spans, with ids and times of their own. A recorder's are one rank's part of one step: 300
stacks, module paths, kinds, about 350 bytes a span, and totals to match. Another service's are 100 traces of 10 spans.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence

from opentelemetry.proto.trace.v1.trace_pb2 import Span as SpanMessage

from vime_otel.data import otlp
from vime_otel.data.folded import Folded
from vime_otel.data.recording import ENGINE_PART, StepRow, StepTotals
from vime_otel.data.spans import Span

SPANS = 1000
STACKS = 300
ENGINE = "00000000000000a1"
BASE_NS = 1_764_460_800_000_000_000
STEP_NS = 10_000_000
_MODEL = "step;execute_model;forward_context;Qwen3MoeForCausalLM;model:Qwen3MoeModel;layers:Qwen3MoeDecoderLayer"
_PARTS = ("self_attn:Qwen3MoeAttention", "mlp:Qwen3MoeSparseMoeBlock", "experts:FusedMoE", "qkv_proj:QKVParallelLinear")
_SERVICE_NAMES = ("GET /v1/orders", "authorize", "select orders", "render", "publish")


def _stacks() -> list[str]:
    """Stacks of 100 to 150 characters."""
    return [f"{_MODEL};{_PARTS[n % 4]};{_PARTS[n // 4 % 4].partition(':')[2]}_{n}" for n in range(STACKS)]


def _durations() -> list[int]:
    rnd = random.Random(7)
    return [rnd.randrange(1_000, 900_000) for _ in range(SPANS)]


class _Template:
    """A request, and where in it the numbers of each span stand."""

    def __init__(self, messages: Sequence[SpanMessage], resource: dict[str, object]) -> None:
        self._content = otlp.trace_request(otlp.resource(resource), messages).SerializeToString()
        self._places = []
        at = 0
        for message in messages:
            at = self._content.index(b"\n\x10" + message.trace_id, at)
            start = b"\x39" + struct.pack("<Q", message.start_time_unix_nano)
            self._places.append((at, self._content.index(start, at + 28), bool(message.parent_span_id)))
            at += 28

    def fill(self, number: int, traces: int, parents: Sequence[int], durations: Sequence[int]) -> bytes:
        """The request of this number: `parents` are places of spans in the request."""
        content = bytearray(self._content)
        spans = len(self._places)
        first = number * spans + 1
        for place, (at, times, has_parent) in enumerate(self._places):
            trace = number * traces + place * traces // spans + 1
            content[at + 2 : at + 18] = trace.to_bytes(16, "big")
            content[at + 20 : at + 28] = (first + place).to_bytes(8, "big")
            if has_parent:
                content[at + 30 : at + 38] = (first + parents[place]).to_bytes(8, "big")
            start = BASE_NS + number * STEP_NS + place * 1000
            struct.pack_into("<QBQ", content, times + 1, start, 0x41, start + durations[place])
        return bytes(content)


class RecorderLoad:
    """What a recorder sends of one rank: `spans(n)` and `totals(n)` of the step n."""

    def __init__(self, recording: str) -> None:
        self._recording = recording
        self._stacks = _stacks()
        self._durations = _durations()
        self._resource = {
            "service.name": "vllm", otlp.INSTANCE_ID: ENGINE, otlp.RECORDING_ID: recording, otlp.RANK: 0,
        }  # fmt: skip
        messages = [otlp.span_message(self._span(place), b"\xfe" * 16, "decode", {}) for place in range(SPANS)]
        self._template = _Template(messages, self._resource)
        self._parents = [0] * SPANS
        folded = Folded()
        for place, duration in enumerate(self._durations):
            folded.add(self._stacks[place % STACKS], duration)
        self._of_spans = folded
        self.folded = Folded(dict(folded.inclusive_ns), dict(folded.calls))
        """What one step comes to."""
        self.folded.add("step", STEP_NS)

    def spans(self, number: int) -> bytes:
        """1,000 spans."""
        return self._template.fill(number, 1, self._parents, self._durations)

    def totals(self, number: int) -> bytes:
        """The events that say what they come to, and what the engine itself spent."""
        totals = StepTotals(
            ENGINE, "0", 0, number, "decode", tuple(self._of_spans.inclusive_ns),
            tuple(self._of_spans.inclusive_ns.values()), tuple(self._of_spans.calls.values()), SPANS, 0,
        )  # fmt: skip
        own = StepTotals(ENGINE, ENGINE_PART, -1, number, "decode", ("step",), (STEP_NS,), (1,), 0, 0)
        start, trace_id = BASE_NS + number * STEP_NS, (number + 1).to_bytes(16, "big")
        row = StepRow(ENGINE, number, "decode", False, "eager", start, STEP_NS, STEP_NS, 0, 64, 64, trace_id.hex())
        parts = ((totals, None), (own, row))
        records = [otlp.totals_record(part, of, trace_id, b"\1" * 8, BASE_NS) for part, of in parts]
        return otlp.logs_request(otlp.resource(self._resource), records).SerializeToString()

    def _span(self, place: int) -> Span:
        stack = self._stacks[place % STACKS]
        start = BASE_NS + place * 1000
        module = f"model.layers.{place % 48}.{stack.rpartition(';')[2].lower()}"
        return Span(stack.rpartition(";")[2], module, stack, start, start + 1, b"\xfd" * 8, b"\xfc" * 8)


class ServiceLoad:
    """What another service sends: `spans(n)`, traces of a root and nine spans below it, one after the other."""

    TRACES = 100

    def __init__(self, service: str = "shop") -> None:
        size = SPANS // self.TRACES
        self._parents = [place - place % size for place in range(SPANS)]
        self._durations = [(size * 1000) if place % size == 0 else 900 for place in range(SPANS)]
        messages = []
        for place in range(SPANS):
            start = BASE_NS + place * 1000
            messages.append(
                SpanMessage(
                    trace_id=b"\xfe" * 16,
                    span_id=b"\xfd" * 8,
                    parent_span_id=b"\xfc" * 8 if place % size else b"",
                    name=_SERVICE_NAMES[0] if place % size == 0 else _SERVICE_NAMES[1 + place % 4],
                    kind=SpanMessage.SPAN_KIND_INTERNAL,
                    start_time_unix_nano=start,
                    end_time_unix_nano=start + 1,
                    attributes=otlp.attributes({"http.route": "/v1/orders", "customer.tier": "gold", "retries": 0}),
                )
            )
        self._template = _Template(messages, {"service.name": service, "host.name": "node-7"})
        root = _SERVICE_NAMES[0]
        self.calls = {root: self.TRACES}
        self.self_ns = {root: self.TRACES * (size * 1000 - 900 * (size - 1))}
        for place in range(SPANS):
            if place % size:
                stack = f"{root};{_SERVICE_NAMES[1 + place % 4]}"
                self.calls[stack] = self.calls.get(stack, 0) + 1
                self.self_ns[stack] = self.self_ns.get(stack, 0) + 900

    def spans(self, number: int) -> bytes:
        """1,000 spans."""
        return self._template.fill(number, self.TRACES, self._parents, self._durations)
