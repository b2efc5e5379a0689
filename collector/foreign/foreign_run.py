"""The run of one service and day, made of spans that no recorder of ours sent; see docs/formats.md."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import logging
import os
from collections.abc import Awaitable
from datetime import date, datetime, timezone
from pathlib import Path
from typing import Any

import orjson

from vime_otel.data import folded
from vime_otel.data.journal import TRACES, JournalReader
from vime_otel.data.run_files import FORMAT, HEADER_FILE, JOURNAL_FILE, STEPS_FILE
from vime_otel.data.summary import counted
from vime_otel.data.write_run import new_run_name, write_atomically

from ..journal.commits import GroupCommit
from ..journal.intake import JournaledTaker, Part
from ..journal.request_journal import KnownRequests, RequestJournal
from ..otlp.signals import BY_NUMBER
from ..totals.tally import MALFORMED, Tally
from .foreign_sums import ForeignState, ForeignSums, SavedState, decode, encode
from .trace_fold import MOST_STACKS, OTHER, UNKNOWN_PARENT, TraceSums

_log = logging.getLogger(__name__)

KIND = "all"
"""The only kind of such a run: its `steps` are traces."""

STATE_FILE = "sums.msgpack"

_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ESTALE)


def foreign_id(service: str, day: date) -> str:
    """The run's id, 16 hex digits."""
    return hashlib.sha256(f"foreign/{day.isoformat()}/{service}".encode()).hexdigest()[:16]


class ForeignRun(JournaledTaker):
    """Takes a service's spans; one process at a time. Making one raises OSError where another process has it."""

    def __init__(self, service: str, day: date, runs_root: Path, version: str, commits: GroupCommit) -> None:
        self.service = service
        self.day = day
        self.id = foreign_id(service, day)
        midnight = datetime(day.year, day.month, day.day, tzinfo=timezone.utc)
        self.directory = runs_root / new_run_name(self.id, service, midnight)
        self.directory.mkdir(parents=True, exist_ok=True)
        self.changed = True
        self.torn_bytes = 0
        self.earlier: ForeignRun | None = None
        """The service's run of the day before: what comes again at midnight was counted there."""
        self._version = version
        self._lock = _locked(self.directory / JOURNAL_FILE)
        try:
            journal, self.sums = self._restored(commits)
            if not (self.directory / STATE_FILE).exists():  # it tells whose the journal is
                write_atomically(self.directory / STATE_FILE, encode(SavedState(service, day)))
        except BaseException:
            os.close(self._lock)
            raise
        super().__init__(journal)

    def admits(self, engine: str) -> bool:
        """Every instance of the service may send."""
        return True

    def take(self, part: Part) -> Awaitable[Tally]:
        """Journal, sum, tell what became of the spans."""
        if self.earlier is not None and self.earlier.journal.knows(part.signal.number, part.payload):
            return self.earlier.take(part)
        return super().take(part)

    def sum(self, part: Part) -> Tally:
        """Add it to the sums."""
        self.changed = True
        return self.sums.add(part.request)

    def sum_again(self, part: Part) -> Tally:
        """Count its spans as duplicates."""
        self.changed = True
        return self.sums.add_again(part.items)

    def removed(self) -> bool:
        """Whether somebody removed its journal: what comes can't be kept in it any more."""
        try:
            return not os.path.samestat(os.fstat(self._lock), os.stat(self.directory / JOURNAL_FILE))
        except OSError as error:  # what else is wrong `write` tells
            return error.errno in _GONE

    def saved(self) -> bytes:
        """All that `write` needs, as things stand; what comes meanwhile changes nothing of it."""
        self.changed = False
        journal = self.journal
        return encode(SavedState(self.service, self.day, journal.size, self.sums.state, journal.known.as_dict()))

    def write(self, saved: bytes) -> None:
        """Write the run's files from a saved state; on any thread. Raises OSError."""
        state = decode(saved).state
        sums = state.folded()
        if sums.calls:
            values = {"folded": {stack: (ns + 500) // 1000 for stack, ns in sums.self_ns.items()}, "calls": sums.calls}
            for suffix, column in values.items():
                write_atomically(self.directory / f"{KIND}.{suffix}", folded.dumps(column).encode())
            steps: dict[str, Any] = {"steps": {KIND: sums.traces}, "decode_tokens": None, "rows": []}
            write_atomically(self.directory / STEPS_FILE, orjson.dumps(steps))
            header = orjson.dumps(self._header(state, sums), option=orjson.OPT_INDENT_2)
            write_atomically(self.directory / HEADER_FILE, header)
        write_atomically(self.directory / STATE_FILE, saved)

    async def close(self) -> None:
        """Wait for what is on its way, and let go of the files. Raises OSError."""
        try:
            await self.journal.close()
        finally:
            os.close(self._lock)

    def _restored(self, commits: GroupCommit) -> tuple[RequestJournal, ForeignSums]:
        path = self.directory / JOURNAL_FILE
        saved = self._read_state(path.stat().st_size)
        sums, known = ForeignSums(saved.state), KnownRequests(saved.known)
        reader = JournalReader(path, saved.offset)
        for frame in reader:
            known.note(frame, reader.offset - frame.size)
            if frame.signal == TRACES:
                sums.add(BY_NUMBER[TRACES].request_type.FromString(frame.payload))
        self.torn_bytes = reader.torn_bytes
        if reader.torn_bytes:
            os.ftruncate(self._lock, reader.offset)
        return RequestJournal(path, commits, reader.offset, known), sums

    def _read_state(self, journal_bytes: int) -> SavedState:
        """The saved state; an empty one, so that all is summed anew, where there is none for this journal."""
        nothing = SavedState(self.service, self.day)
        try:
            saved = decode((self.directory / STATE_FILE).read_bytes())
        except FileNotFoundError:
            return nothing
        except (OSError, ValueError) as error:
            _log.warning("%s can't be read (%s), so the journal is summed anew", self.directory / STATE_FILE, error)
            return nothing
        return saved if saved.offset <= journal_bytes else nothing

    def _header(self, state: ForeignState, sums: TraceSums) -> dict[str, Any]:
        tally = Tally(state.kept, state.duplicate)
        if state.malformed:
            tally.dropped[MALFORMED] = state.malformed
        return {
            "format": FORMAT,
            "id": self.id,
            "label": self.service,
            "complete": None,
            "reasons": [],
            "notes": _notes(sums),
            "created": f"{self.day.isoformat()}T00:00:00+00:00",
            "service": self.service,
            "unit": "microseconds",
            "overlap_ns": sums.overlap_ns,
            "traces": {"folded": sums.traces, "orphans": sums.orphans, "overlapping": sums.overlapping},
            "engines": [],
            "intake": {"spans": tally.as_dict()},
            "versions": {"vime_otel": self._version},
        }


def _notes(sums: TraceSums) -> list[str]:
    texts = []
    if sums.orphans:
        texts.append(
            f"{counted(sums.orphans, 'span')} came without the span that they name as their parent: they stand below"
            f" {UNKNOWN_PARENT}"
        )
    if sums.overlapping:
        texts.append(
            f"children of {counted(sums.overlapping, 'span')} ran at the same time or longer than their parent: widths"
            f" are work, which exceeds the time on the clock by {sums.overlap_ns / 1e6:.1f} ms"
        )
    if sums.merged:
        texts.append(
            f"{counted(sums.merged, 'span')} of more than {MOST_STACKS:,} different stacks are summed as {OTHER}:"
            " span names should not hold ids"
        )
    return texts


def _locked(path: Path) -> int:
    """The file, made if need be, locked by this process. Raises OSError."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise OSError(error.errno, "another collector has it", str(path)) from error
    return descriptor


def whose(directory: Path) -> tuple[str, date] | None:
    """The service and the day of a run that `ForeignRun` made; None for another, or one that can't be read."""
    try:
        saved = decode((directory / STATE_FILE).read_bytes())
    except (OSError, ValueError):
        return None
    return saved.service, saved.day
