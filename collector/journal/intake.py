"""The one consumer behind every OTLP door: route by recording, journal, sum, and only then acknowledge."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from google.protobuf.message import DecodeError

from vime_otel.data.otlp import INSTANCE_ID

from ..counts import Counts
from ..faults import log_fault
from ..otlp.signals import METRICS, TRACES, Signal, data_points, recording_of, text_attribute
from ..totals.sums import Sums
from ..totals.tally import MALFORMED, NO_RECORDING, NOT_KEPT, TOO_MANY_SERVICES, Tally
from .commits import GroupCommit
from .request_journal import RequestJournal

_log = logging.getLogger(__name__)

_NAMES_SHOWN = 3
_LARGE_BYTES = 4 * 1024 * 1024
"""Beyond, a request is taken in pieces, so that the others' turn comes between them."""

_PIECE_BYTES = 1024 * 1024


class Malformed(ValueError):
    """The bytes are no OTLP request."""


class Stopping(Exception):
    """The collector takes no more; another one may, soon."""


@dataclass(frozen=True)
class Part:
    """What a request has for one taker: protobuf, as a message and as bytes."""

    signal: Signal
    request: Any
    payload: bytes

    @property
    def items(self) -> int:
        """How many spans or log records it has."""
        return sum(map(self.signal.count, self.signal.resources(self.request)))


def _pieces(part: Part) -> Iterator[Part]:
    """The part, or, where it is large, what it has in pieces, the same ones each time that it comes."""
    if len(part.payload) <= _LARGE_BYTES:
        yield part
        return
    signal = part.signal
    most = max(part.items * _PIECE_BYTES // len(part.payload), 1)
    for resource in signal.resources(part.request):
        for scope in getattr(resource, signal.scopes_field):
            items = getattr(scope, signal.items_field)
            for first in range(0, len(items), most):
                request = signal.request_type()
                of_resource = signal.resources(request).add(resource=resource.resource, schema_url=resource.schema_url)
                of_scope = getattr(of_resource, signal.scopes_field).add(scope=scope.scope, schema_url=scope.schema_url)
                getattr(of_scope, signal.items_field).extend(items[first : first + most])
                yield Part(signal, request, request.SerializeToString())


class Taker(Protocol):
    """Takes data. What `take` gives is done when the data is on the disk and summed; OSError where the disk refuses."""

    def admits(self, engine: str) -> bool: ...
    def take(self, part: Part) -> Awaitable[Tally]: ...


class JournaledTaker:
    """Journals each part and then sums it, even when whoever sent it is gone meanwhile."""

    def __init__(self, journal: RequestJournal) -> None:
        self.journal = journal

    def take(self, part: Part) -> Awaitable[Tally]:
        """Journal, sum, tell what became of the items."""
        done: asyncio.Future[Tally] = asyncio.get_running_loop().create_future()

        def told(error: OSError | None, again: bool) -> None:
            result: Tally | Exception
            try:
                result = error or (self.sum_again(part) if again else self.sum(part))
            except Exception as fault:  # noqa: BLE001 - one request must not end the commits of all
                log_fault(_log, f"summing a request of {self.journal.path.parent.name}", fault)
                result = fault
            if done.done():  # nobody waits for it any more
                return
            if isinstance(result, Exception):
                done.set_exception(result)
            else:
                done.set_result(result)

        self.journal.put(part.signal.number, part.payload, told)
        return done

    def sum(self, part: Part) -> Tally:
        """Sum a part that is in the journal now."""
        raise NotImplementedError

    def sum_again(self, part: Part) -> Tally:
        """Note a part that was there before."""
        raise NotImplementedError


class OpenRecording(JournaledTaker):
    """A recording that takes data: its sums, and its journal, made with the first request."""

    def __init__(
        self, sums: Sums, journal: RequestJournal, engines: Collection[str], on_news: Callable[[], None]
    ) -> None:
        """`on_news` is called after every request that was summed."""
        super().__init__(journal)
        self.sums = sums
        self.on_news = on_news
        self.engines = frozenset(engines)

    def admits(self, engine: str) -> bool:
        """Whether the engine is one of those that were told to record."""
        return engine in self.engines

    def sum(self, part: Part) -> Tally:
        """Add it to the sums."""
        tally = self.sums.add(part.signal, part.request, part.payload)
        self.on_news()
        return tally

    def sum_again(self, part: Part) -> Tally:
        """Count its items as duplicates."""
        return self.sums.add_duplicate(part.signal, part.items)


@dataclass(frozen=True)
class Outcome:
    """How many spans or log records were not taken, and why."""

    rejected: int = 0
    message: str = ""


class Intake:
    """Takes requests for the recordings that are open, and for what `find` and `foreign` know.

    `find` gives the taker of a recording's id that none of the open ones has; `foreign` that of spans that name no
    recording, by their resource. Both give None where there is none, and may raise OSError.
    """

    def __init__(
        self,
        counts: Counts,
        commits: GroupCommit,
        find: Callable[[str], Taker | None] = lambda recording_id: None,
        foreign: Callable[[Any], Taker | None] | None = None,
    ) -> None:
        self.counts = counts
        self.commits = commits
        self._open: dict[str, OpenRecording] = {}
        self._find = find
        self._foreign = foreign
        self._stopping = False

    def open(self, recording: OpenRecording) -> None:
        """Begin to take data of a recording."""
        self._open[recording.sums.recording_id] = recording

    def close(self, recording_id: str) -> None:
        """Take no more data of a recording; its journal is left to the caller."""
        self._open.pop(recording_id, None)

    def stop(self) -> None:
        """Refuse from now on, so that clients come again when there is a collector again."""
        self._stopping = True

    async def take(self, signal: Signal, payload: bytes, transport: str) -> Outcome:
        """Journal and sum a request, `payload` its protobuf form, that came over a transport of `counts`.

        Raises Malformed for what is no request; Stopping or OSError where the client may retry.
        """
        if self._stopping:
            raise Stopping("the collector is being stopped")
        try:
            request = signal.request_type.FromString(payload)
        except DecodeError as error:
            raise Malformed(f"the message is not an OTLP request: {error}") from error
        if signal is METRICS:
            return Outcome(data_points(request), "this collector takes spans and log records, no metrics")
        parts, strays = self._route(signal, request, payload)
        total = Tally()
        # One after the other: a request with parts for several takers is rare.
        for taker, part in parts:
            for piece in _pieces(part):
                total.add(await self._counted(taker, piece, transport))
        if strays:
            total.add(self._count_strays(signal, strays, transport))
        self.counts.requests[signal.key, transport] += 1
        self.counts.received_bytes[signal.key, transport] += len(payload)
        return _outcome(signal, strays, total)

    async def _counted(self, taker: Taker, part: Part, transport: str) -> Tally:
        taking = asyncio.ensure_future(taker.take(part))

        def count(done: asyncio.Future[Tally]) -> None:
            if not done.cancelled() and done.exception() is None:
                self._count(part.signal, transport, done.result())

        taking.add_done_callback(count)
        # A client that goes away meanwhile changes nothing: what is in the journal counts.
        return await asyncio.shield(taking)

    def _count(self, signal: Signal, transport: str, tally: Tally) -> None:
        counts = self.counts
        counts.accepted[signal.key, transport] += tally.accepted
        counts.kept[signal.key] += tally.kept
        counts.duplicate[signal.key] += tally.duplicate
        for reason, number in tally.dropped.items():
            counts.dropped[signal.key, reason] += number

    def _count_strays(self, signal: Signal, strays: list[Any], transport: str) -> Tally:
        dropped: Counter[str] = Counter()
        for resource in strays:
            foreign = signal is TRACES and self._foreign is not None and not recording_of(resource)
            dropped[TOO_MANY_SERVICES if foreign else NO_RECORDING] += signal.count(resource)
        tally = Tally(dropped=dropped)
        self._count(signal, transport, tally)
        return tally

    def _route(self, signal: Signal, request: Any, payload: bytes) -> tuple[list[tuple[Taker, Part]], list[Any]]:
        """The parts of a request with their takers, and the resources that nobody takes."""
        resources = signal.resources(request)
        takers = [self._taker(signal, resource) for resource in resources]
        parts = []
        for taker in dict.fromkeys(each for each in takers if each is not None):
            if all(each is taker for each in takers):
                parts.append((taker, Part(signal, request, payload)))
                continue
            own = signal.request_type()
            signal.resources(own).extend(
                resource for resource, each in zip(resources, takers, strict=True) if each is taker
            )
            parts.append((taker, Part(signal, own, own.SerializeToString())))
        strays = [resource for resource, taker in zip(resources, takers, strict=True) if taker is None]
        return parts, strays

    def _taker(self, signal: Signal, resource: Any) -> Taker | None:
        recording_id = recording_of(resource)
        if not recording_id:
            return self._foreign(resource) if self._foreign is not None and signal is TRACES else None
        taker = self._open.get(recording_id) or self._find(recording_id)
        return taker if taker is not None and taker.admits(_engine_of(resource)) else None


def _engine_of(resource: Any) -> str:
    return text_attribute(resource.resource.attributes, INSTANCE_ID)


def _outcome(signal: Signal, strays: list[Any], total: Tally) -> Outcome:
    texts = []
    dropped = total.dropped
    if dropped[NO_RECORDING]:
        names = sorted({_stray_name(resource) for resource in strays})
        shown = ", ".join(names[:_NAMES_SHOWN]) + (", …" if len(names) > _NAMES_SHOWN else "")
        texts.append(f"{dropped[NO_RECORDING]} {signal.name} belong to no recording that is open here ({shown})")
    if dropped[TOO_MANY_SERVICES]:
        texts.append(f"{dropped[TOO_MANY_SERVICES]} {signal.name} are of one service too many for a day")
    if dropped[MALFORMED]:
        texts.append(f"{dropped[MALFORMED]} {signal.name} are malformed")
    if dropped[NOT_KEPT]:
        texts.append(f"{dropped[NOT_KEPT]} {signal.name} are of no kind that is kept there")
    return Outcome(dropped.total(), "; ".join(texts))


def _stray_name(resource: Any) -> str:
    recording = recording_of(resource)[:40]
    return f"recording {recording}, engine {_engine_of(resource)[:40]}" if recording else "no recording named"
