"""All recordings of a collector: starting them, one on an engine at a time, and finding them again."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from vime_otel.data import settings
from vime_otel.data.errors import VimeOtelError

from ..counts import Counts
from ..foreign.foreign_runs import ForeignRuns
from ..http_client import new_session
from ..journal.commits import GroupCommit
from ..journal.intake import Intake
from ..router import Worker, find_workers
from .messages import Poll, RecordingRequest
from .open_run import left_behind
from .patience import Patience
from .recorders import Command, Recorders
from .recording_task import RecordingTask, Surroundings
from .rolling_days import RollingRecordings

_log = logging.getLogger(__name__)


class Conflict(VimeOtelError):
    """Another recording runs on the same engine."""


class Unknown(VimeOtelError):
    """There is no recording with this id."""


class Recordings:
    """All recordings of this collector's life, by id."""

    def __init__(
        self,
        runs_root: Path,
        version: str,
        patience: Patience,
        collector_url: Callable[[], str],
        asks_for_token: bool = False,
        serves: bool = False,
        trace_link: str | None = None,
        opened: Callable[[Path], None] = lambda run: None,
    ) -> None:
        """`serves`: take what engines sample, and spans of other services, into runs of the day.

        `trace_link` goes into every run. `opened` is called with the folder of each one before anything comes.
        """
        self.counts = Counts()
        self.recorders = Recorders(self._heard, patience.forget)
        self.rolling = RollingRecordings(runs_root, version, patience.rolling) if serves else None
        self._commits = GroupCommit(self.counts)
        self._foreign = ForeignRuns(runs_root, version, self._commits, self.counts, opened) if serves else None
        self.intake = Intake(
            self.counts,
            self._commits,
            self.rolling.find if self.rolling else lambda _: None,
            self._foreign.find if self._foreign else None,
        )
        self._recordings: dict[str, RecordingTask] = {}
        self._running: dict[RecordingTask, asyncio.Task[None]] = {}
        self._writers: list[asyncio.Task[None]] = []
        self._stopping = False
        self._asks_for_token = asks_for_token
        self._told_to_stop: dict[str, str] = {}
        """Engine → recording that the engine was told to end, since it does not run here."""
        self._surroundings = Surroundings(
            runs_root,
            version,
            patience,
            self.recorders,
            self.intake,
            collector_url,
            _list_workers,
            self._claimed,
            self._busy,
            trace_link,
            opened,
        )

    async def start(self, request: RecordingRequest) -> RecordingTask:
        """Begin a recording. Raises VimeOtelError where the router has no workers, Conflict for a busy engine."""
        recording = RecordingTask(self._surroundings, request, await _list_workers(request))
        recording.selection = await recording.look({})
        recording.message = recording.selection.message
        if self._stopping:
            raise VimeOtelError("the collector is being stopped")
        claimed = self._claimed(recording.id)
        for each in recording.selection.chosen:
            other = claimed.get(each.introduction.engine)
            if other:
                raise Conflict(
                    f"recording {other} runs on {each.introduction.label}; wait for its end, or end it:"
                    f" {self._end_command(other)}"
                )
        self._run(recording)
        return recording

    def begin(self) -> None:
        """Begin: go on with the recordings that a collector left open when it ended abruptly, and the day's runs."""
        self._commits.start()
        for marker, opened in left_behind(self._surroundings.runs_root):
            try:
                self._run(RecordingTask.resume(self._surroundings, marker, opened))
            except (VimeOtelError, OSError) as error:
                _log.warning("recording %s can't be gone on with: %s", opened.id, error)
                marker.let_go()
        if self._foreign is not None:
            self._foreign.resume()
            self._writers.append(asyncio.ensure_future(self._foreign.keep_writing(self._surroundings.patience.rolling)))
        if self.rolling is not None:
            self._writers.append(asyncio.ensure_future(self.rolling.keep_writing()))

    def get(self, recording_id: str) -> RecordingTask:
        """The recording with this id; raises Unknown."""
        try:
            return self._recordings[recording_id]
        except KeyError:
            raise Unknown(f"there is no recording {recording_id!r:.40} here") from None

    async def stop(self) -> None:
        """Disarm everywhere, write what there is, end every poll."""
        self._stopping = True
        for recording in self._running:
            recording.stop("the collector was stopped")
        if self._running:
            await asyncio.wait(self._running.values())
        self.intake.stop()
        for writer in self._writers:
            writer.cancel()
        await asyncio.gather(*self._writers, return_exceptions=True)
        self._writers.clear()
        if self._foreign is not None:
            await self._foreign.stop()
        if self.rolling is not None:
            self.rolling.stop()
        await self._commits.close()
        self.recorders.close()

    def _run(self, recording: RecordingTask) -> None:
        self._recordings[recording.id] = recording
        task = asyncio.ensure_future(recording.run())
        self._running[recording] = task
        task.add_done_callback(lambda _: self._running.pop(recording))

    def refresh_counts(self) -> None:
        """Bring those counts up to date that are only looked at."""
        self.counts.recordings = Counter(recording.state for recording in self._recordings.values())
        alive = self.recorders.alive()
        self.counts.recorders_connected = len(alive)
        self.counts.polls_waiting = sum(recorder.open_polls for recorder in alive)
        if self._foreign is not None:
            self._foreign.refresh_counts()

    def _heard(self, poll: Poll) -> None:
        for recording in list(self._running):
            recording.heard(poll)
        self._end_stray(poll)

    def _end_stray(self, poll: Poll) -> None:
        """Tell an engine to end what it records for nobody here, once for each recording."""
        engine, stray = poll.recorder.engine, poll.status.busy_with
        if stray and not self._runs(stray) and self._told_to_stop.get(engine) != stray:
            self._told_to_stop[engine] = stray
            command_id = os.urandom(8).hex()
            body = {"id": command_id, "type": "cancel", "recording": stray}
            self.recorders.send(engine, Command(command_id, body))

    def _busy(self) -> dict[str, str]:
        """Engines that are at work on recordings that do not run here, and on which, for people."""
        busy = {each.introduction.engine: each.status.busy_with for each in self.recorders.alive()}
        return {
            engine: f"recording {stray}"
            + (", which is over" if stray in self._recordings else " of a collector that is gone")
            for engine, stray in busy.items()
            if stray and not self._runs(stray)
        }

    def _runs(self, recording_id: str) -> bool:
        recording = self._recordings.get(recording_id)
        return recording is not None and not recording.over

    def _end_command(self, recording_id: str) -> str:
        """What a user can type to end a recording of ours."""
        token = f' -H "Authorization: Bearer ${settings.TOKEN.name}"' if self._asks_for_token else ""
        url = self._surroundings.collector_url()
        return f"curl -X DELETE{token} {url}/control/v1/recordings/{recording_id}"

    def _claimed(self, besides: str) -> dict[str, str]:
        return {engine: other.id for other in self._running if other.id != besides for engine in other.claims()}


async def _list_workers(request: RecordingRequest) -> list[Worker]:
    """The workers that a request means; none where it names neither router nor workers."""
    if not request.router and not request.workers:
        return []
    async with new_session() as session:
        key = settings.secret(settings.ROUTER_KEY) or None
        return await find_workers(session, request.router, request.workers, request.limit, key)
