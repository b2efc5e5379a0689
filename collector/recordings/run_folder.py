"""The folder of a recording that is under way: open.json, the journal, progress.json; and what becomes of them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson

from vime_otel.data.journal import JournalReader
from vime_otel.data.live import PROGRESS_FILE
from vime_otel.data.recording import Recording
from vime_otel.data.run_files import CURSOR_FILES, JOURNAL_FILE
from vime_otel.data.write_run import write_atomically, write_run

from ..journal.intake import Intake, OpenRecording
from ..journal.replay import restore, totals_of
from ..journal.request_journal import KnownRequests, RequestJournal
from ..totals.span_check import NOTHING_CHECKED, Checked, check_spans
from ..totals.sums import Sums
from .open_run import Marker, OpenRun

_log = logging.getLogger(__name__)

_PROGRESS_SECONDS = 1.0


class RunFolder:
    """Belongs to the event loop. `sums` are of all that the journal holds."""

    def __init__(self, directory: Path, recording_id: str, intake: Intake, on_news: Callable[[], None]) -> None:
        """`on_news` is called after every request that was summed."""
        self.directory = directory
        self.sums = Sums(recording_id)
        self._id = recording_id
        self._intake = intake
        self._on_news = on_news
        self._marker: Marker | None = None
        self._open: OpenRecording | None = None

    @property
    def journal(self) -> Path:
        """Where the journal is, or will be."""
        return self.directory / JOURNAL_FILE

    def begin(self, content: OpenRun) -> None:
        """Make it, and take data from the engines in `content` from now on. Raises OSError."""
        self._marker = Marker.make(self.directory, content)
        self._open_for(RequestJournal(self.journal, self._intake.commits), content)

    def go_on(self, marker: Marker, content: OpenRun) -> list[str]:
        """Sum what another collector left in it, and take data from now on; returns what to know of that.

        Raises VimeOtelError where the journal is none, OSError where it can't be read.
        """
        self._marker = marker
        notes = ["the collector ended abruptly while this was recorded, and was started again"]
        if not self.journal.exists():
            self._open_for(RequestJournal(self.journal, self._intake.commits), content)
            return notes
        reader, known = JournalReader(self.journal), KnownRequests()
        restore(reader, self.sums, known)
        if reader.torn_bytes:
            self._intake.counts.torn_bytes += reader.torn_bytes
            torn = (
                f"{reader.torn_bytes} bytes at the end of the journal were torn; nothing in them had been acknowledged"
            )
            _log.warning("%s: %s", self.journal, torn)
            notes.append(torn)
        self._open_for(RequestJournal(self.journal, self._intake.commits, reader.offset, known), content)
        return notes

    async def keep_telling(self, progress: Callable[[], dict[str, Any]]) -> None:
        """Write progress.json every second until cancelled; a disk that refuses is no reason to stop."""
        while True:
            with contextlib.suppress(OSError):
                content = orjson.dumps(progress())
                await asyncio.to_thread(write_atomically, self.directory / PROGRESS_FILE, content)
            await asyncio.sleep(_PROGRESS_SECONDS)

    async def close(self) -> Checked:
        """Take no more data; compare spans with totals. Raises OSError."""
        self._intake.close(self._id)
        if self._open:
            await self._open.journal.close()
        return NOTHING_CHECKED if self.sums.empty else await asyncio.to_thread(check_spans, self.journal)

    def write(self, recording: Recording) -> None:
        """Write the run; the recording is over then. On any thread. Raises OSError."""
        write_run(self.directory, recording, totals_of(self.journal))
        (self.directory / PROGRESS_FILE).unlink(missing_ok=True)
        if self._marker:
            self._marker.remove()

    def discard(self) -> None:
        """Take it away again, unless something else is in it."""
        with contextlib.suppress(OSError):
            if self._marker:
                self._marker.remove()
            for path in (self.journal, self.directory / PROGRESS_FILE, *self.directory.glob(CURSOR_FILES)):
                path.unlink(missing_ok=True)
            self.directory.rmdir()

    async def let_go(self) -> None:
        """Leave what is still there to whoever comes next."""
        self._intake.close(self._id)
        if self._open:
            with contextlib.suppress(OSError):
                await self._open.journal.close()
        if self._marker:
            self._marker.let_go()
        self.sums = Sums(self._id)  # a serving collector lives long; what was summed is on the disk

    def _open_for(self, journal: RequestJournal, content: OpenRun) -> None:
        engines = [each.introduction.engine for each in content.engines]
        self._open = OpenRecording(self.sums, journal, engines, self._on_news)
        self._intake.open(self._open)
