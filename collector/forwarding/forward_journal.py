"""One run's journal on its way to one endpoint: read from a cursor on, chosen, batched, sent."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import msgspec
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans

from vime_otel.data.journal import TRACES, JournalReader
from vime_otel.data.otlp import MAX_PAYLOAD_BYTES
from vime_otel.data.run_files import JOURNAL_FILE
from vime_otel.data.write_run import write_atomically

from .endpoint import Refused, Sender
from .selection import Choice, Selection, count_spans

FORMAT = 1
_FIELD_BYTES = 6


@dataclass(frozen=True)
class Cursor:
    """How far a journal has come on its way to the endpoint `to`; see docs/formats.md."""

    to: str
    offset: int = 0
    sent: int = 0
    refused: int = 0
    over_limit: int = 0
    format: int = FORMAT


def cursor_name(url: str) -> str:
    """The name of an endpoint's cursor in a run; one of `run_files.CURSOR_FILES`."""
    return f"forward-{hashlib.sha256(url.encode()).hexdigest()[:8]}.json"


def read_cursor(run: Path, url: str) -> Cursor | None:
    """The run's cursor for an endpoint; None where there is none that can be read."""
    try:
        cursor = msgspec.json.decode((run / cursor_name(url)).read_bytes(), type=Cursor)
    except (OSError, msgspec.MsgspecError):
        return None
    return cursor if cursor.format == FORMAT else None


def write_cursor(run: Path, cursor: Cursor) -> None:
    """Write it whole. Raises OSError."""
    write_atomically(run / cursor_name(cursor.to), msgspec.json.encode(asdict(cursor)))


@dataclass(frozen=True)
class Batch:
    """What one request takes; afterwards the journal is through up to `offset`, if all its batches were sent."""

    groups: list[ResourceSpans]
    offset: int
    over_limit: int

    @property
    def spans(self) -> int:
        """How many."""
        return count_spans(self.groups)


@dataclass(frozen=True)
class Sent:
    """What became of a request: spans that were taken, those that never will be, and what the endpoint says."""

    spans: int = 0
    refused: int = 0
    message: str = ""


class ForwardedJournal:
    """A run's journal and how far it has come; to be used by one thread."""

    def __init__(self, run: Path, choice: Choice, cursor: Cursor) -> None:
        self.run = run
        self.cursor = cursor
        self.trouble = ""
        """Why the disk refused the last try, for whoever sends; empty while it does not."""
        self._journal = run / JOURNAL_FILE
        self._choice = choice
        self._selection: Selection | None = None
        self._coming: Iterator[Batch] = iter(())
        self._pending: Batch | None = None
        self._torn: tuple[int, int] | None = None
        self._unreadable_size = -1
        self._size = 0
        self._settled = 0

    def look(self, settled: bool = False) -> None:
        """Take note of how large the journal is. Raises OSError.

        Sent is what stood there at the look before: what a full disk refuses is cut off again at once.
        A journal that nobody writes any more is `settled`.
        """
        size = self._journal.stat().st_size
        self._settled, self._size = size if settled else self._size, size

    def waiting_bytes(self) -> int:
        """How much of the journal is still to be read. Raises OSError."""
        size = self._journal.stat().st_size
        return 0 if size == self._unreadable_size else max(size - self.cursor.offset, 0)

    def rest(self) -> None:
        """Let go of what is remembered of traces; it is read again when the journal grows."""
        if self._pending is None:
            self._selection, self._coming = None, iter(())

    def give_up(self) -> None:
        """Send nothing of the file as it is now. Raises OSError."""
        self._unreadable_size = self._journal.stat().st_size

    def send_next(self, sender: Sender) -> Sent | None:
        """Send one request of what the journal has beyond the cursor, and move the cursor; None at its end.

        Raises Unavailable, and then sends the same next time; OSError where the journal can't be read.
        """
        batch = self._pending or self._next_batch()
        if batch is None:
            return None
        self._pending = batch
        sent = _send(sender, batch)
        self._pending = None
        before = self.cursor
        self.cursor = replace(
            before,
            offset=batch.offset,
            sent=before.sent + sent.spans,
            refused=before.refused + sent.refused,
            over_limit=before.over_limit + batch.over_limit,
        )
        return sent

    def _next_batch(self) -> Batch | None:
        try:
            batch = next(self._coming, None)
            if batch is None:  # at the end as it was then
                self._coming = self._batches()
                batch = next(self._coming, None)
        except OSError:
            self.rest()  # what was read ahead is read again
            raise
        return batch

    def _batches(self) -> Iterator[Batch]:
        """Requests as full as they may be; the last one ends where the journal does now."""
        selection, begin = self._resumed(), self.cursor.offset
        reader = JournalReader(self._journal, begin)
        groups: list[ResourceSpans] = []
        size, offset, over_limit = 0, begin, selection.over_limit
        for frame in reader:
            if reader.offset > self._settled:
                break
            found = selection.of(ExportTraceServiceRequest.FromString(frame.payload)) if frame.signal == TRACES else []
            for group in found:
                group_size = group.ByteSize() + _FIELD_BYTES
                if groups and size + group_size > MAX_PAYLOAD_BYTES:
                    # A frame that takes several requests counts as sent with the last of them.
                    yield Batch(groups, offset, selection.over_limit - over_limit)
                    groups, size, over_limit = [], 0, selection.over_limit
                groups.append(group)
                size += group_size
            offset = reader.offset
        if offset > begin:
            yield Batch(groups, offset, selection.over_limit - over_limit)
        elif reader.torn_bytes:
            self._look_at_torn_end(offset + reader.torn_bytes)

    def _resumed(self) -> Selection:
        """The selection as it stood at the cursor: it knows how large each trace has become."""
        if self._selection is None:
            self._selection = Selection(self._choice)
            reader = JournalReader(self._journal)
            for frame in reader if self.cursor.offset else ():
                if reader.offset > self.cursor.offset:
                    break
                if frame.signal == TRACES:
                    self._selection.of(ExportTraceServiceRequest.FromString(frame.payload))
        return self._selection

    def _look_at_torn_end(self, size: int) -> None:
        """A frame that is being written is whole soon; one that stays torn may be none. Go back to where one begins.

        So it is where an end was cut off after it had been sent, and other frames followed.
        """
        state = (self.cursor.offset, size)
        if self._torn == state:
            boundary = 0
            reader = JournalReader(self._journal)
            for _ in reader:
                if reader.offset > self.cursor.offset:
                    break
                boundary = reader.offset
            if boundary == self.cursor.offset:
                self._unreadable_size = size
            else:
                self.cursor = replace(self.cursor, offset=boundary)
                self._selection = None
        self._torn = state


def _send(sender: Sender, batch: Batch) -> Sent:
    if not batch.groups:
        return Sent()
    try:
        accepted = sender.send(ExportTraceServiceRequest(resource_spans=batch.groups))
    except Refused as error:
        return Sent(0, batch.spans, str(error))
    rejected = min(accepted.rejected, batch.spans)
    return Sent(batch.spans - rejected, rejected, accepted.message)
