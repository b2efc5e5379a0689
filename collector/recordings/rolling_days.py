"""The rolling recordings of a serving collector: one a UTC day, opened by the first request, kept up to date."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from vime_otel.data.days import utc_today
from vime_otel.data.rolling import rolling_id

from ..faults import log_fault
from ..journal.intake import Part
from ..otlp.signals import LOGS
from ..totals.tally import NOT_KEPT, Tally
from .messages import is_id
from .rolling import RollingRecording, unfinished_days

_log = logging.getLogger(__name__)


class RollingDay:
    """One day's run, made by the first request; written and synced on the one thread that all days share."""

    def __init__(self, day: date, runs_root: Path, version: str, thread: ThreadPoolExecutor) -> None:
        self.day = day
        self._runs_root = runs_root
        self._version = version
        self._thread = thread
        self._recording: RollingRecording | None = None  # only that thread uses it

    def admits(self, engine: str) -> bool:
        """Every engine may send its samples; its id becomes the name of a folder."""
        return is_id(engine)

    async def take(self, part: Part) -> Tally:
        """Write its totals before it is acknowledged; there is no journal. Raises OSError."""
        if part.signal is not LOGS:
            return Tally(dropped=Counter({NOT_KEPT: part.items}))
        return await asyncio.get_running_loop().run_in_executor(self._thread, self.add, part.request)

    def add(self, request: Any) -> Tally:
        """Write the totals of a request of log records; on the thread. Raises OSError."""
        if self._recording is not None and self._recording.broken:
            self._recording.close()
            self._recording = None
        if self._recording is None:
            self._recording = RollingRecording(self.day, self._runs_root, self._version)
        return self._recording.add(request)

    def write(self) -> None:
        """Bring the run's other files up to date, or say why not; on the thread."""
        if self._recording is None:
            return
        try:
            self._recording.write(over=self.day < utc_today())
        except OSError as error:
            _log.warning("the run %s can't be brought up to date: %s", self._recording.directory, error)
        except Exception as error:  # noqa: BLE001 - one run must not end the writing of the others
            log_fault(_log, f"the run {self._recording.directory}", error)

    def finish(self) -> None:
        """Have the run of a day that is over say so, or say why not; on the thread."""
        try:
            self._recording = RollingRecording(self.day, self._runs_root, self._version)
        except OSError as error:
            _log.warning("the run of %s can't be finished: %s", self.day, error)
        self.close()

    def close(self) -> None:
        """Write, and let go of the file; on the thread."""
        self.write()
        if self._recording is not None:
            self._recording.close()


class RollingRecordings:
    """All of a collector."""

    def __init__(self, runs_root: Path, version: str, write_seconds: float) -> None:
        self._runs_root = runs_root
        self._version = version
        self._write_seconds = write_seconds
        self._days: dict[str, RollingDay] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="vime-otel rolling")

    def find(self, recording_id: str) -> RollingDay | None:
        """The rolling recording with this id, if it is one of these days; clocks differ."""
        today = utc_today()
        for day in (today, today - timedelta(days=1), today + timedelta(days=1)):
            if rolling_id(day) == recording_id:
                if recording_id not in self._days:
                    self._days[recording_id] = RollingDay(day, self._runs_root, self._version, self._thread)
                return self._days[recording_id]
        return None

    async def keep_writing(self) -> None:
        """Finish the runs of days that passed meanwhile; bring the others up to date now and then, until cancelled."""
        loop = asyncio.get_running_loop()
        await self._finish_passed(loop)
        while True:
            await asyncio.sleep(self._write_seconds)
            before = utc_today() - timedelta(days=1)
            for identity, day in list(self._days.items()):
                if day.day < before:
                    del self._days[identity]
                await loop.run_in_executor(self._thread, day.close if day.day < before else day.write)

    async def _finish_passed(self, loop: asyncio.AbstractEventLoop) -> None:
        """Day by day, so that what comes meanwhile waits for one at most."""
        try:
            for day in await loop.run_in_executor(self._thread, unfinished_days, self._runs_root, utc_today()):
                passed = RollingDay(day, self._runs_root, self._version, self._thread)
                await loop.run_in_executor(self._thread, passed.finish)
        except OSError as error:
            _log.warning("the runs of days that passed can't be looked for: %s", error)

    def stop(self) -> None:
        """Write what there is and close."""
        for day in self._days.values():
            self._thread.submit(day.close)
        self._days.clear()
        self._thread.shutdown()
