"""Sends a window to the collector: totals first, then spans, then the closing event."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

import requests
from google.protobuf.message import DecodeError, Message
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from requests.adapters import HTTPAdapter
from urllib3.util.retry import Retry

from vime_otel.data import otlp, tls
from vime_otel.data.errors import Unavailable, UsageError, VimeOtelError
from vime_otel.data.recording import ENGINE_PART
from vime_otel.data.spans import ENTRY

from .assemble import AssembledStep, StepPart, assemble
from .overhead import overhead
from .resource import resource_attributes
from .window import Window

TIMEOUT_SECONDS = 30.0
# Waits 0, 0.5, 1 seconds between tries: what takes longer is the outbox's, as is who accepts and does not answer.
_RETRY = Retry(
    total=3,
    read=False,
    backoff_factor=0.25,
    status_forcelist=(429, 502, 503, 504),
    allowed_methods=None,
    raise_on_status=False,
    respect_retry_after_header=False,
)
_FOR_GOOD = (400, 413, 415)
"""Statuses that judge what was sent. Others are about the server, the network or the token, and may change."""
_KNOCK_SECONDS = 5.0
_RESPONSES: dict[str, Any] = {"traces": ExportTraceServiceResponse, "logs": ExportLogsServiceResponse}
# Tag and length of a message within its list.
_FIELD_BYTES = 6
_SPANS_KEPT = 300_000
_TOLD = ("label", "model", "vllm_version", "vime_otel_version", "host", "pid", "dp_rank", "dp_group")


@dataclass
class _Sent:
    """What was sent for one rank or for the engine's own part."""

    rank: str
    stage: int
    totals: int = 0
    spans: int = 0
    dropped: int = 0


def send_to_collector(window: Window, url: str, token: str) -> None:
    """Send all of the window and wait for each answer.

    Raises Unavailable where another try may succeed, VimeOtelError where the collector refuses for good.
    """
    session = requests.Session()
    session.trust_env = False
    try:
        session.verify = tls.trusted_bundle()
    except UsageError as error:  # the file may be there again soon
        raise Unavailable(str(error)) from error
    session.mount(url, HTTPAdapter(max_retries=_RETRY))
    if token:
        session.headers["Authorization"] = f"Bearer {token}"
    session.headers["Content-Type"] = "application/x-protobuf"

    def post(signal: str, request: Message) -> None:
        try:
            answer = session.post(f"{url}/v1/{signal}", request.SerializeToString(), timeout=TIMEOUT_SECONDS)
        except requests.RequestException as error:
            raise Unavailable(_why_not(url, error)) from error
        if answer.status_code != 200:
            refusal = f"the collector at {url} refused {signal}: {answer.status_code} {answer.text[:200]}"
            raise VimeOtelError(refusal) if answer.status_code in _FOR_GOOD else Unavailable(refusal)
        try:
            rejected = _RESPONSES[signal].FromString(answer.content).partial_success
        except DecodeError as error:
            raise Unavailable(f"what answers at {url} is no vime-otel collector: {answer.text[:200]}") from error
        if rejected.ByteSize():
            raise VimeOtelError(f"the collector at {url} did not take all {signal}: {rejected.error_message}")

    with session:
        steps = _Steps(window)
        closing = _Closing(window)
        logs = _Batches(lambda rank, records: post("logs", otlp.logs_request(_resource(window, rank), records)))
        for step in steps:
            closing.add_step(step, spans=not window.command.totals_only)
            for part in step.parts:
                logs.add(part.totals.rank, [_totals_record(window, step, part)])
        logs.flush()
        if not window.command.totals_only:
            _send_spans(window, steps, closing, post)
        record = otlp.closing_record(closing.body(), time.time_ns())
        post("logs", otlp.logs_request(_resource(window, ENGINE_PART), [record]))


def knock(url: str) -> None:
    """Raise Unavailable where nobody listens: assembling a window for that would take seconds each time."""
    parts = urlsplit(url)
    place = (parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80))
    try:
        socket.create_connection(place, _KNOCK_SECONDS).close()
    except OSError as error:
        raise Unavailable(_why_not(url, error)) from error


def _why_not(url: str, error: Exception) -> str:
    return tls.untrusted(url) if tls.is_untrusted(error) else f"the collector at {url} can't be reached: {error}"


def _send_spans(window: Window, steps: _Steps, closing: _Closing, post: Callable[[str, Message], None]) -> None:
    traces = _Batches(lambda rank, spans: post("traces", otlp.trace_request(_resource(window, rank), spans)))
    for step in steps:
        for part in step.parts:
            messages = list(span_messages(window, step, part))
            closing.sent(part, len(messages))
            traces.add(part.totals.rank, messages)
    traces.flush()


class _Steps:
    """The assembled steps, to be gone through more than once; anew each time where memory would not hold them."""

    def __init__(self, window: Window) -> None:
        self._window = window
        spans = sum(len(log.entries) for log in window.ranks) // (ENTRY * 8)
        self._kept = list(assemble(window)) if spans <= _SPANS_KEPT else None

    def __iter__(self) -> Iterator[AssembledStep]:
        return iter(self._kept) if self._kept is not None else assemble(self._window)


def _totals_record(window: Window, step: AssembledStep, part: StepPart) -> Any:
    totals = part.totals
    if window.command.totals_only:
        totals = replace(totals, spans_dropped=totals.spans_made)
    return otlp.totals_record(
        totals,
        step.row if part is step.engine_part else None,
        bytes.fromhex(step.row.trace_id),
        step.root.span_id,
        step.root.end_unix_nano,
    )


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


class _Batches:
    """Messages by rank, given to `send` in requests as full as they may be; a group is never split."""

    def __init__(self, send: Callable[[str, list[Any]], None]) -> None:
        self._send = send
        self._waiting: dict[str, list[Any]] = {}
        self._sizes: dict[str, int] = {}

    def add(self, rank: str, group: list[Any]) -> None:
        """Add messages that belong together."""
        size = sum(message.ByteSize() + _FIELD_BYTES for message in group)
        if self._sizes.get(rank, 0) + size > otlp.MAX_PAYLOAD_BYTES:
            self._flush(rank)
        self._waiting.setdefault(rank, []).extend(group)
        self._sizes[rank] = self._sizes.get(rank, 0) + size

    def flush(self) -> None:
        """Send what is left."""
        for rank in list(self._waiting):
            self._flush(rank)

    def _flush(self, rank: str) -> None:
        messages = self._waiting.pop(rank, [])
        self._sizes.pop(rank, None)
        if messages:
            self._send(rank, messages)


class _Closing:
    """Counts what is sent, for the closing event."""

    def __init__(self, window: Window) -> None:
        self._window = window
        self._steps: dict[str, int] = {}
        self._parts: dict[str, _Sent] = {}
        self._made = 0

    def add_step(self, step: AssembledStep, spans: bool = True) -> None:
        """A step's totals are sent; its `spans` will be, too."""
        self._steps[step.row.kind] = self._steps.get(step.row.kind, 0) + 1
        for part in step.parts:
            totals = part.totals
            tally = self._parts.setdefault(totals.rank, _Sent(totals.rank, totals.stage))
            tally.totals += 1
            tally.dropped += totals.spans_dropped if spans else totals.spans_made
            self._made += totals.spans_made

    def sent(self, part: StepPart, spans: int) -> None:
        """So many spans of it are sent."""
        self._parts[part.totals.rank].spans += spans

    def body(self) -> dict[str, Any]:
        """The event's body."""
        window, engine = self._window, self._window.engine
        return {
            "steps": self._steps,
            "parts": [vars(tally) for tally in self._parts.values()],
            "timing": window.command.timing,
            "every": window.command.every,
            "execution": engine["execution"],
            "decode_tokens": engine["decode_tokens"],
            "pause_ns": window.pause_ns,
            "hooks": {"found": window.hooks_found, "missing": window.hooks_missing},
            "overhead": overhead(window, self._made, sum(self._steps.values())),
            "unrecorded": window.unrecorded,
            "notes": window.notes,
            "reasons": list(dict.fromkeys(window.reasons)),
            **{key: engine[key] for key in _TOLD},
        }
