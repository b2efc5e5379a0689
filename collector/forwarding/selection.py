"""Which spans of a request go on to another endpoint: whole steps, one rank, and no trace beyond what Tempo takes."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans

from vime_otel.data.otlp import MAX_PAYLOAD_BYTES, RANK, RECORDING_ID

TRACE_BYTES = 4_500_000
"""What of one trace is sent at the most: Tempo drops what goes beyond 5 MB, of our encoding or its own."""

_TRACES_REMEMBERED = 100_000
_FIELD_BYTES = 6
_RANK = 0


@dataclass(frozen=True)
class Choice:
    """A share of the steps (of other services: of the traces), and of each one rank or all."""

    sample: float = 1.0
    all_ranks: bool = False

    def takes_trace(self, trace_id: bytes) -> bool:
        """Whether this trace is in the sample: the same answer for all its spans, here and elsewhere."""
        if self.sample >= 1:
            return True
        return int.from_bytes(hashlib.sha256(trace_id).digest()[:8], "big") < self.sample * 2**64

    def takes_rank(self, rank: int | None) -> bool:
        """Whether this rank is wanted; None stands for what belongs to none, the engine's own part say."""
        return self.all_ranks or rank in (None, _RANK)


class Selection:
    """Applies a choice to the requests of one run, in their order; it remembers how large each trace has become."""

    def __init__(self, choice: Choice) -> None:
        self._choice = choice
        self._trace_bytes: OrderedDict[bytes, int] = OrderedDict()
        self.over_limit = 0
        """Spans that were left out because their trace had become too large."""

    def of(self, request: ExportTraceServiceRequest) -> list[ResourceSpans]:
        """What goes on of a request, in messages that each fit into one of ours."""
        found: list[ResourceSpans] = []
        for group in request.resource_spans:
            attributes = {pair.key: pair.value for pair in group.resource.attributes}
            rank = attributes[RANK].int_value if RANK in attributes else None
            if self._choice.takes_rank(rank):
                has_roots = rank is None and RECORDING_ID in attributes
                found += _split(group, self._spans_of(group, has_roots))
        return found

    def _spans_of(self, group: ResourceSpans, has_roots: bool) -> list[tuple[ScopeSpans, list[Any]]]:
        """The spans that are taken by scope; of each trace all that this request has, or none.

        An engine's own part `has_roots` and is small: a trace without its root would be of no use.
        """
        sizes: dict[bytes, int] = {}
        counts: dict[bytes, int] = {}
        for scope in group.scope_spans:
            for span in scope.spans:
                sizes[span.trace_id] = sizes.get(span.trace_id, 0) + span.ByteSize() + _FIELD_BYTES
                counts[span.trace_id] = counts.get(span.trace_id, 0) + 1
        taken = {
            trace_id for trace_id, size in sizes.items() if self._fits(trace_id, size, counts[trace_id], has_roots)
        }
        return [(scope, [span for span in scope.spans if span.trace_id in taken]) for scope in group.scope_spans]

    def _fits(self, trace_id: bytes, size: int, count: int, always: bool) -> bool:
        if not self._choice.takes_trace(trace_id):
            return False
        before = self._trace_bytes.pop(trace_id, 0)
        fits = always or before + size <= TRACE_BYTES
        self._trace_bytes[trace_id] = before + size if fits else before
        if len(self._trace_bytes) > _TRACES_REMEMBERED:
            self._trace_bytes.popitem(last=False)
        if not fits:
            self.over_limit += count
        return fits


def _split(group: ResourceSpans, scopes: list[tuple[ScopeSpans, list[Any]]]) -> Iterator[ResourceSpans]:
    """The chosen spans of a group in messages of at most MAX_PAYLOAD_BYTES."""
    base = ResourceSpans(resource=group.resource, schema_url=group.schema_url)
    message, size = base, base.ByteSize()
    empty = True
    for scope, spans in scopes:
        target: ScopeSpans | None = None
        for span in spans:
            span_size = span.ByteSize() + _FIELD_BYTES
            if not empty and size + span_size > MAX_PAYLOAD_BYTES:
                yield message
                message, empty, target = ResourceSpans(resource=group.resource, schema_url=group.schema_url), True, None
                size = message.ByteSize()
            if target is None:
                target = message.scope_spans.add()
                target.scope.CopyFrom(scope.scope)
                target.schema_url = scope.schema_url
                size += target.ByteSize() + _FIELD_BYTES
            target.spans.append(span)
            size, empty = size + span_size, False
    if not empty:
        yield message


def count_spans(groups: list[ResourceSpans]) -> int:
    """How many spans these messages hold."""
    return sum(len(scope.spans) for group in groups for scope in group.scope_spans)
