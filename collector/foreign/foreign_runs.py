"""The runs of spans that name no recording: one a service and day, opened by the first span, kept up to date."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from vime_otel.data.days import utc_today
from vime_otel.data.errors import VimeOtelError
from vime_otel.data.run_files import JOURNAL_FILE

from ..counts import Counts
from ..faults import log_fault
from ..journal.commits import GroupCommit
from ..otlp.signals import text_attribute
from .foreign_run import STATE_FILE, ForeignRun, whose

_log = logging.getLogger(__name__)

MOST_SERVICES = 50
"""Of one day: each takes memory, and a folder."""

_SERVICE = "service.name"
_UNKNOWN = "unknown_service"
_MOST_NAME = 200


class ForeignRuns:
    """Belongs to the event loop."""

    def __init__(
        self,
        runs_root: Path,
        version: str,
        commits: GroupCommit,
        counts: Counts,
        opened: Callable[[Path], None] = lambda run: None,
    ) -> None:
        """`opened` is called with the folder of each run before anything comes."""
        self._opened = opened
        self._runs_root = runs_root
        self._version = version
        self._commits = commits
        self._counts = counts
        self._open: dict[tuple[str, date], ForeignRun] = {}

    def find(self, resource: Any) -> ForeignRun | None:
        """The run of the resource's service; None where there are too many. Raises OSError."""
        service = text_attribute(resource.resource.attributes, _SERVICE)[:_MOST_NAME] or _UNKNOWN
        try:
            return self._run(service, utc_today())
        except OSError as error:
            why = error.strerror or error
            _log.error("no run of %s can be opened (%s): clients are asked to try again until it can", service, why)
            raise

    def resume(self) -> None:
        """Bring those up to date that a collector left when it ended abruptly; others' are left alone."""
        days = (utc_today(), utc_today() - timedelta(days=1))
        for path in sorted(self._runs_root.glob(f"*/{STATE_FILE}")):
            known = whose(path.parent)
            if known is None or known[1] not in days or not (path.parent / JOURNAL_FILE).exists():
                continue
            try:
                self._run(*known)
            except (OSError, VimeOtelError) as error:
                _log.warning("the run %s is not gone on with: %s", path.parent, error)

    def refresh_counts(self) -> None:
        """Bring those counts up to date that are only looked at."""
        self._counts.foreign_services = sum(run.day == utc_today() for run in self._open.values())
        self._counts.foreign_open_spans = sum(run.sums.open_spans for run in self._open.values())

    async def keep_writing(self, seconds: float) -> None:
        """Bring the runs up to date every now and then, until cancelled."""
        while True:
            await asyncio.sleep(seconds)
            await self._write_all()

    async def stop(self) -> None:
        """Write what there is and close. Nothing may come any more."""
        for run in self._open.values():
            await run.journal.settled()
            await self._write(run)
            await self._close(run)
        self._open.clear()

    def _run(self, service: str, day: date) -> ForeignRun | None:
        run = self._open.get((service, day))
        if run is None:
            if sum(each.day == day for each in self._open.values()) >= MOST_SERVICES:
                return None
            try:
                run = ForeignRun(service, day, self._runs_root, self._version, self._commits)
            except VimeOtelError as error:
                raise OSError(str(error)) from error
            self._open[service, day] = run
            self._opened(run.directory)
            run.earlier = self._open.get((service, day - timedelta(days=1)))
            self._counts.torn_bytes += run.torn_bytes
            if run.torn_bytes:
                _log.warning("%s: %d bytes at the end of the journal were torn", run.directory, run.torn_bytes)
        return run

    async def _write_all(self) -> None:
        before = utc_today() - timedelta(days=1)
        for key, run in list(self._open.items()):
            removed = await asyncio.to_thread(run.removed)
            if removed:
                _log.warning("the run %s was removed: what comes from now on goes into a new one", run.directory)
            else:
                await self._write(run)
            if removed or (run.day < before and not run.changed):
                del self._open[key]
                for later in self._open.values():
                    later.earlier = None if later.earlier is run else later.earlier
                await self._close(run)

    @staticmethod
    async def _close(run: ForeignRun) -> None:
        try:
            await run.close()
        except OSError as error:
            _log.warning("the journal in %s can't be closed: %s", run.directory, error)

    async def _write(self, run: ForeignRun) -> None:
        if not run.changed:
            return
        try:
            writing = asyncio.ensure_future(asyncio.to_thread(run.write, run.saved()))
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            run.changed = True
            # The thread goes on: what is written next must not be overtaken by it.
            await asyncio.gather(writing, return_exceptions=True)
            raise
        except OSError as error:
            run.changed = True
            _log.warning("the run %s can't be brought up to date: %s", run.directory, error)
        except Exception as error:  # noqa: BLE001 - one run must not end the writing of the others
            log_fault(_log, f"the run {run.directory}", error)
