"""Group commit: requests that come while the disk is busy are written and synced together.

One thread writes, so that the event loop never waits for a disk; what it has done is told on the loop, in the order
in which requests were handed in.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from vime_otel.data.journal import HEADER_BYTES, JournalWriter

from ..counts import Counts
from ..faults import log_fault

_log = logging.getLogger(__name__)

_GATHER_SECONDS = 0.002
"""So long a batch waits for company: a sync for each request would cost more than this."""

_REFUSAL_SECONDS = 15.0


class JournalFile:
    """A journal that is opened when the first request comes, and again after a failure that left it in doubt.

    All but the constructor belongs to the committing thread.
    """

    def __init__(self, path: Path, end: int | None = None) -> None:
        """`end`: where the last whole frame ends, of a journal that is there."""
        self.path = path
        self._end = end
        self._writer: JournalWriter | None = None
        self._identity: os.stat_result

    def write(self, requests: Sequence[tuple[int, int, bytes]]) -> int:
        """Bring requests to the disk, all or none; returns where the first one's frame begins. Raises OSError.

        So it does where somebody removed the file: nobody would ever read what goes into it.
        """
        writer = self._opened()
        if not os.path.samestat(self._identity, os.stat(self.path)):
            raise FileNotFoundError(errno.ENOENT, "it was replaced", str(self.path))
        start = writer.size
        try:
            writer.extend(requests)
            writer.sync()
        except Exception:
            self._take_back(writer, start)
            raise
        self._end = writer.size
        return start

    def close(self) -> None:
        """Let go of the file. Raises OSError where it can't be brought to the disk."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def _opened(self) -> JournalWriter:
        if self._writer is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            writer = JournalWriter(self.path, self._end)
            try:
                self._identity = os.stat(self.path)
                for directory in (self.path.parent, self.path.parent.parent):
                    sync_directory(directory)
            except Exception:
                _close_quietly(writer)
                raise
            self._writer = writer
        return self._writer

    def _take_back(self, writer: JournalWriter, start: int) -> None:
        try:
            writer.cut(start)
        except OSError:
            # What is in the file now nobody knows: it is cut where it was whole when it is opened anew.
            self._writer, self._end = None, start
            _close_quietly(writer)


@dataclass(frozen=True, slots=True)
class Entry:
    """A request on its way into a journal. `told` gets where its frame begins, or why it is not there."""

    journal: JournalFile
    signal: int
    crc: int
    payload: bytes
    told: Callable[[int | OSError], None]


@dataclass(frozen=True, slots=True)
class _Closing:
    """A journal to be closed when all before is written."""

    journal: JournalFile
    done: asyncio.Future[OSError | None]


class GroupCommit:
    """Takes requests on the event loop, commits them in batches on a thread. To be started and closed."""

    def __init__(self, counts: Counts) -> None:
        self._counts = counts
        self._queue: SimpleQueue[Entry | _Closing | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._refused_at = -math.inf

    @property
    def refuses(self) -> bool:
        """Whether the disk refused what came last, and that lately: who asks may be what keeps clients away."""
        return time.monotonic() - self._refused_at < _REFUSAL_SECONDS

    def start(self) -> None:
        """Begin; from now on it belongs to the running loop."""
        self._thread = threading.Thread(target=self._run, args=(asyncio.get_running_loop(),), name="journal")
        self._thread.start()

    def hand_in(self, entry: Entry) -> None:
        """Commit a request with the next batch."""
        self._queue.put(entry)

    async def close_journal(self, journal: JournalFile) -> None:
        """Close a journal into which nothing more is handed. Raises OSError."""
        closing = _Closing(journal, asyncio.get_running_loop().create_future())
        self._queue.put(closing)
        error = await closing.done
        if error is not None:
            raise error

    async def close(self) -> None:
        """Commit what waits, then end the thread."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._queue.put(None)
            await asyncio.to_thread(thread.join)

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        """On the thread: take all there is, write it, tell."""
        open_ = True
        while open_:
            items = [self._queue.get()]
            if isinstance(items[0], Entry):
                time.sleep(_GATHER_SECONDS)
            while not self._queue.empty():
                items.append(self._queue.get())
            batch = [item for item in items if isinstance(item, Entry)]
            if batch:
                loop.call_soon_threadsafe(self._told, *_commit(batch))
            for item in items:  # nothing is handed in for a journal that is being closed
                if isinstance(item, _Closing):
                    loop.call_soon_threadsafe(item.done.set_result, _close(item.journal))
            open_ = None not in items

    def _told(self, results: list[tuple[list[Entry], int | OSError]], took_ns: int) -> None:
        self._counts.journal_commits += 1
        self._counts.journal_sync_ns += took_ns
        for entries, result in results:
            self._tell(entries, result)

    def _tell(self, entries: Sequence[Entry], result: int | OSError) -> None:
        if isinstance(result, OSError):
            self._counts.journal_failures += 1
            self._refused_at = time.monotonic()
            path, why = entries[0].journal.path, result.strerror or result
            _log.error("%s can't be written (%s): clients are asked to try again until it can", path, why)
            for entry in entries:
                entry.told(result)
            return
        self._refused_at = -math.inf
        position = result
        for entry in entries:
            entry.told(position)
            position += HEADER_BYTES + len(entry.payload)
        self._counts.journal_bytes += position - result


def _commit(batch: Sequence[Entry]) -> tuple[list[tuple[list[Entry], int | OSError]], int]:
    """Write a batch, each journal's part by itself; returns what became of them, and the nanoseconds it took."""
    began = time.perf_counter_ns()
    by_journal: dict[JournalFile, list[Entry]] = {}
    for entry in batch:
        by_journal.setdefault(entry.journal, []).append(entry)
    results: list[tuple[list[Entry], int | OSError]] = []
    for journal, entries in by_journal.items():
        try:
            start = journal.write([(entry.signal, entry.crc, entry.payload) for entry in entries])
            results.append((entries, start))
        except Exception as error:  # noqa: BLE001 - the thread has to go on, and who waits has to be told
            results.append((entries, _as_os_error(journal, error)))
    return results, time.perf_counter_ns() - began


def sync_directory(path: Path) -> None:
    """Bring a folder's list of names to the disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _close(journal: JournalFile) -> OSError | None:
    try:
        journal.close()
    except Exception as error:  # noqa: BLE001 - the thread has to go on, and who waits has to be told
        return _as_os_error(journal, error)
    return None


def _as_os_error(journal: JournalFile, error: Exception) -> OSError:
    """What the disk said; an error that should not have been possible is logged, and another stands for it."""
    if isinstance(error, OSError):
        return error
    log_fault(_log, f"the journal {journal.path}", error)
    return OSError(errno.EIO, "a fault of the collector", str(journal.path))


def _close_quietly(writer: JournalWriter) -> None:
    try:
        writer.close()
    except OSError as error:
        _log.debug("a journal in doubt was closed: %s", error)
