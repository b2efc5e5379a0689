"""Sends a window to the collector: totals first, then spans, then the closing event."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import requests
from google.protobuf.message import Message
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from requests.adapters import HTTPAdapter
from urllib3.util.retry import Retry

from vime_otel.data import otlp
from vime_otel.data.errors import VimeOtelError
from vime_otel.data.recording import ENGINE_PART

from .assemble import AssembledStep, StepPart, assemble
from .calibrate import span_cost_ns
from .resource import resource_attributes
from .window import Window

TIMEOUT_SECONDS = 30.0
# Waits 0, 1, 2, 4, 5, 5, … seconds between tries, together about a minute. Never long: the engine takes
# no other order meanwhile, and a new collector at the same address says at once that it doesn't know the recording.
_RETRY = Retry(
    total=14,
    backoff_factor=0.5,
    backoff_max=5.0,
    status_forcelist=(429, 502, 503, 504),
    allowed_methods=None,
    raise_on_status=False,
)
_RESPONSES: dict[str, Any] = {"traces": ExportTraceServiceResponse, "logs": ExportLogsServiceResponse}
# Tag and length of a message within its list.
_FIELD_BYTES = 6


@dataclass
class _Sent:
    """What was sent for one rank or for the engine's own part."""

    rank: str
    stage: int
    totals: int = 0
    spans: int = 0
    dropped: int = 0


def send_to_collector(window: Window, url: str, token: str) -> None:
    """Send all of the window and wait for each answer. Raises VimeOtelError when that fails for good."""
    session = requests.Session()
    session.trust_env = False
    session.mount(url, HTTPAdapter(max_retries=_RETRY))
    if token:
        session.headers["Authorization"] = f"Bearer {token}"
    session.headers["Content-Type"] = "application/x-protobuf"

    def post(signal: str, request: Message) -> None:
        try:
            answer = session.post(f"{url}/v1/{signal}", request.SerializeToString(), timeout=TIMEOUT_SECONDS)
        except requests.RequestException as error:
            raise VimeOtelError(f"the collector at {url} can't be reached: {error}") from error
        if answer.status_code != 200:
            raise VimeOtelError(f"the collector at {url} refused {signal}: {answer.status_code} {answer.text[:200]}")
        rejected = _RESPONSES[signal].FromString(answer.content).partial_success
        if rejected.ByteSize():
            raise VimeOtelError(f"the collector at {url} did not take all {signal}: {rejected.error_message}")

    with session:
        steps = list(assemble(window))
        parts: dict[str, list[tuple[AssembledStep, StepPart]]] = {}
        for step in steps:
            for part in step.parts:
                parts.setdefault(part.totals.rank, []).append((step, part))
        sent = {name: _Sent(name, own[0][1].totals.stage) for name, own in parts.items()}
        for name, own in parts.items():
            for records in _batches([_totals_record(window, step, part)] for step, part in own):
                post("logs", otlp.logs_request(_resource(window, name), records))
                sent[name].totals += len(records)
        for name, own in parts.items():
            for spans in _batches(list(span_messages(window, step, part)) for step, part in own):
                post("traces", otlp.trace_request(_resource(window, name), spans))
                sent[name].spans += len(spans)
            sent[name].dropped = sum(part.totals.spans_dropped for _, part in own)
        closing = otlp.closing_record(_closing_body(window, steps, sent), time.time_ns())
        post("logs", otlp.logs_request(_resource(window, ENGINE_PART), [closing]))


def _totals_record(window: Window, step: AssembledStep, part: StepPart) -> Any:
    row = step.row if part is step.engine_part else None
    return otlp.totals_record(window.command.recording, part.totals, row, step.root.end_unix_nano)


def span_messages(window: Window, step: AssembledStep, part: StepPart) -> Iterator[Any]:
    """The wire form of a part's spans; the engine's own part begins with the root."""
    trace_id = bytes.fromhex(step.row.trace_id)
    kind = step.row.kind
    if part is step.engine_part:
        root = otlp.root_attributes(window.command.recording, step.row, window.command.timing)
        yield otlp.span_message(step.root, trace_id, kind, root)
    for span in part.spans:
        dropped = {otlp.SPANS_DROPPED: part.totals.spans_dropped} if span is part.dropped_on else {}
        yield otlp.span_message(span, trace_id, kind, dropped)


def _resource(window: Window, part: str) -> Any:
    return otlp.resource(resource_attributes(window, part))


def _batches(groups: Iterable[list[Any]]) -> Iterator[list[Any]]:
    """Whole groups of messages, as many together as a request holds."""
    batch: list[Any] = []
    size = 0
    for group in groups:
        group_size = sum(message.ByteSize() + _FIELD_BYTES for message in group)
        if batch and size + group_size > otlp.MAX_PAYLOAD_BYTES:
            yield batch
            batch, size = [], 0
        batch += group
        size += group_size
    if batch:
        yield batch


def _closing_body(window: Window, steps: list[AssembledStep], sent: dict[str, _Sent]) -> dict[str, Any]:
    kinds = dict.fromkeys(step.row.kind for step in steps)
    made = sum(part.totals.spans_made for step in steps for part in step.parts)
    engine = window.engine
    return {
        "steps": {kind: sum(step.row.kind == kind for step in steps) for kind in kinds},
        "parts": [vars(tally) for tally in sent.values()],
        "timing": window.command.timing,
        "execution": engine["execution"],
        "decode_tokens": engine["decode_tokens"],
        "pause_ns": window.pause_ns,
        "hooks": {"found": window.hooks_found, "missing": window.hooks_missing},
        "overhead": {"span_ns": span_cost_ns(), "spans_per_step": made / max(len(steps), 1)},
        "reasons": list(dict.fromkeys(window.reasons)),
        "label": engine["label"],
        "model": engine["model"],
        "vllm_version": engine["vllm_version"],
        "vime_otel_version": engine["vime_otel_version"],
        "host": engine["host"],
        "pid": engine["pid"],
    }
