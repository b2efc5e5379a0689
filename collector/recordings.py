"""All recordings of a collector: starting them, one on an engine at a time, and finding them again."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

from vime_otel.data import settings
from vime_otel.data.errors import VimeOtelError

from .http_client import new_session
from .intake import Intake
from .messages import Poll, RecordingRequest
from .patience import Patience
from .recorders import Command, Recorders
from .recording_task import RecordingTask, Surroundings
from .rolling import RollingRecordings
from .router import Worker, find_workers


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
        samples: bool = False,
    ) -> None:
        """`samples`: take what engines sample into rolling recordings."""
        self.recorders = Recorders(self._heard, patience.forget)
        self.rolling = RollingRecordings(runs_root, version, patience.rolling) if samples else None
        self.intake = Intake(self.rolling.find) if self.rolling else Intake()
        self._recordings: dict[str, RecordingTask] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._writer: asyncio.Task[None] | None = None
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
        self._recordings[recording.id] = recording
        task = asyncio.ensure_future(recording.run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return recording

    def start_rolling(self) -> None:
        """Keep the rolling recordings' files up to date from now on."""
        if self.rolling is not None:
            self._writer = asyncio.ensure_future(self.rolling.keep_writing())

    def get(self, recording_id: str) -> RecordingTask:
        """The recording with this id; raises Unknown."""
        try:
            return self._recordings[recording_id]
        except KeyError:
            raise Unknown(f"there is no recording {recording_id!r:.40} here") from None

    async def stop(self) -> None:
        """Disarm everywhere, write what there is, end every poll."""
        self._stopping = True
        for recording in self._recordings.values():
            recording.stop("the collector was stopped")
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self._writer is not None:
            self._writer.cancel()
            await asyncio.wait([self._writer])
        if self.rolling is not None:
            self.rolling.stop()
        self.recorders.close()

    def _heard(self, poll: Poll) -> None:
        for recording in self._recordings.values():
            if not recording.over:
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
        return {
            engine: other.id for other in self._recordings.values() if other.id != besides for engine in other.claims()
        }


async def _list_workers(request: RecordingRequest) -> list[Worker]:
    """The workers that a request means; none where it names neither router nor workers."""
    if not request.router and not request.workers:
        return []
    async with new_session() as session:
        key = settings.secret(settings.ROUTER_KEY) or None
        return await find_workers(session, request.router, request.workers, request.limit, key)
