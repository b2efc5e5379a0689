"""The life of one recording: find the engines, arm, follow, gather, write."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from vime_otel.data.errors import VimeOtelError
from vime_otel.data.summary import counted
from vime_otel.data.write_run import new_run_name

from ..faults import log_fault
from ..journal.intake import Intake
from ..router import Worker
from ..totals.span_check import Checked
from . import report
from .engine_part import EnginePart
from .engine_traffic import EngineTraffic
from .gathering import Gathering
from .lockstep import LockstepGroup, PartialGroup, groups_of
from .matching import no_recorder
from .messages import Poll, RecordingRequest
from .open_run import ArmedEngine, Marker, OpenRun
from .patience import Patience
from .recorders import Command, Recorders
from .refused import addresses_in, why_refused
from .run_folder import RunFolder
from .selection import Selection, Unmatched, select

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Surroundings:
    """What all recordings of a collector share."""

    runs_root: Path
    version: str
    patience: Patience
    recorders: Recorders
    intake: Intake
    collector_url: Callable[[], str]
    list_workers: Callable[[RecordingRequest], Awaitable[list[Worker]]]
    claimed: Callable[[str], Mapping[str, str]]
    """Which engines are taken by others than the recording of this id, and by which recording."""
    busy: Callable[[], Mapping[str, str]]
    """Which engines are still at work on recordings that do not run here, and on which, for people."""
    trace_link: str | None
    """Where steps can be seen as traces; `{trace_id}` stands for the step's."""
    opened: Callable[[Path], None]
    """Called with the folder of a recording that begins, before anything comes."""


class _NoRun(Exception):
    """The recording ends without a run; the text says why."""


class RecordingTask:
    """One recording; `run()` lives it to its end and never raises."""

    def __init__(
        self,
        surroundings: Surroundings,
        request: RecordingRequest,
        workers: list[Worker],
        recording_id: str | None = None,
        created: datetime | None = None,
        left_in: Path | None = None,
    ) -> None:
        """`left_in`: the folder of one that another collector began."""
        self.id = recording_id or os.urandom(8).hex()
        self.request = request
        self.state = "waiting"
        self.message = ""
        self.run_path: Path | None = None
        self.complete: bool | None = None
        self.reasons: list[str] = []
        self.steps: dict[str, int] | None = None
        self.selection = Selection()
        self.parts: dict[str, EnginePart] = {}
        self.workers = workers
        self._groups: list[LockstepGroup] = []
        self._around = surroundings
        self._traffic = EngineTraffic(request)
        self._until = math.inf
        """When the engines' time is over, on the monotonic clock."""
        self._reasons: list[str] = []
        self._notes: list[str] = []
        self._stopped: str | None = None
        self._created = created or datetime.now(timezone.utc)
        self._resumed = left_in is not None
        directory = left_in or surroundings.runs_root / new_run_name(self.id, request.label, self._created)
        self._folder = RunFolder(directory, self.id, surroundings.intake, lambda: self._gathering.data_came())
        self._gathering = Gathering(
            self.id, surroundings.recorders, surroundings.patience, self._folder.sums, self._resumed
        )

    @classmethod
    def resume(cls, surroundings: Surroundings, marker: Marker, opened: OpenRun) -> RecordingTask:
        """One that another collector began and did not end. Raises VimeOtelError, OSError for an unreadable journal."""
        task = cls(surroundings, opened.request, [], opened.id, opened.created, marker.path.parent)
        # Whoever does not call within `silent` is gone, and was not slow.
        task._until = time.monotonic() + max(opened.until_unix - time.time(), surroundings.patience.silent + 1.0)
        task._reasons = list(opened.reasons)
        task.selection = Selection(unmatched=tuple(Unmatched(url, why, False) for url, why in opened.unmatched))
        task.parts = {
            each.introduction.engine: EnginePart(
                each.introduction, each.url, opened.request.steps, each.arm_id, phase="recording"
            )
            for each in opened.engines
        }
        task._groups = groups_of(list(task.parts.values()))
        task._notes = [*opened.notes, *task._folder.go_on(marker, opened)]
        task.state, task.message = "recording", "the collector was started again"
        return task

    @property
    def over(self) -> bool:
        """Whether it is done or has failed."""
        return self.state in ("done", "failed")

    def claims(self) -> list[str]:
        """The engines that no other recording may take."""
        if self.over:
            return []
        if not self.parts:
            return [each.introduction.engine for each in self.selection.chosen]
        return [part.engine for part in self.parts.values() if not part.over and part.phase != "waiting"]

    def as_dict(self) -> dict[str, Any]:
        """For JSON, as docs/formats.md has it."""
        return {
            "id": self.id,
            "state": self.state,
            "message": self.message,
            "run": str(self.run_path) if self.run_path else None,
            "complete": self.complete,
            "reasons": self.reasons,
            "steps": self.steps,
            "engines": [part.as_dict() for part in self.parts.values()],
            "unmatched_workers": [each.as_dict() for each in self.selection.unmatched],
        }

    def stop(self, why: str) -> None:
        """Disarm everywhere and keep what came."""
        if self._stopped is None:
            self._stopped = why
            self._gathering.stopped = True

    def heard(self, poll: Poll) -> None:
        """Take what a recorder tells of itself."""
        part = self.parts.get(poll.recorder.engine)
        if part is not None:
            self._gathering.take(part, poll)

    async def run(self) -> None:
        """Live it to the end."""
        try:
            if not self._resumed:
                await self._wait_for_recorders()
                if self.request.force_eager:
                    self._refuse_partial_groups()
                self._arm()
            telling = asyncio.ensure_future(self._folder.keep_telling(self.as_dict))
            try:
                await self._follow()
                self.state, self.message = "finishing", "waiting for the engines' data"
                await self._gathering.wait(list(self.parts.values()))
            finally:
                telling.cancel()
                await asyncio.wait([telling])
            await self._write()
        except (_NoRun, VimeOtelError) as error:
            self._fail(str(error))
        except OSError as error:
            self._fail(f"the run can't be written to {self._folder.directory}: {error.strerror or error}")
        except Exception as error:  # noqa: BLE001 - a recording that fails must not end the others
            log_fault(_log, f"recording {self.id}", error)
            self._fail(f"a fault of the collector: {type(error).__name__}: {error}")
        finally:
            await self._traffic.stop()
            self._cancel_engines()
            await self._folder.let_go()
            self._log_end()

    async def look(self, claimed: Mapping[str, str] | None = None) -> Selection:
        """Match workers and recorders as things stand; `claimed` are the engines that others have."""
        around = self._around
        return await asyncio.to_thread(  # it may resolve host names
            select,
            self.request,
            self.workers,
            around.recorders.introductions(around.patience.silent),
            around.claimed(self.id) if claimed is None else claimed,
            around.collector_url(),
            around.busy(),
            addresses_in(around.recorders.refused.lately()),
        )

    async def _wait_for_recorders(self) -> None:
        started = time.monotonic()
        next_list = started + self._around.patience.relist
        while True:
            found = await self.look()
            taken = self._around.claimed(self.id)
            if any(each.introduction.engine in taken for each in found.chosen):
                continue  # another recording took it while we looked
            self.selection, self.message = found, found.message
            now = time.monotonic()
            if self._stopped:
                raise _NoRun(f"{self._stopped} before any engine was armed")
            if self.selection.whole and (self.workers or self._settled()):
                break
            if now - started >= self.request.wait_seconds:
                break
            if now >= next_list:
                next_list = now + self._around.patience.relist
                with contextlib.suppress(VimeOtelError):
                    self.workers = await self._around.list_workers(self.request)
            await asyncio.sleep(self._around.patience.look)
        if not self.selection.chosen:
            raise _NoRun(self._nobody())

    def _refuse_partial_groups(self) -> None:
        """Leave those engines out whose lockstep group would run eagerly in part only."""
        refused = list(self.selection.partial)
        self._reasons += map(_refusal, refused)
        engines = {engine for group in refused for engine in group.engines}
        chosen = tuple(each for each in self.selection.chosen if each.introduction not in engines)
        self.selection = replace(self.selection, chosen=chosen, partial=())
        if not chosen:
            raise _NoRun("; ".join(self._reasons))

    def _settled(self) -> bool:
        """Whether no new recorder came lately."""
        newest = max((each.first_seen for each in self._around.recorders.alive()), default=0.0)
        return time.monotonic() - newest >= self._around.patience.settle

    def _nobody(self) -> str:
        waited = f"no engine to record within {self.request.wait_seconds:g} s"
        reasons: dict[str, list[str]] = {}
        for each in self.selection.unmatched:
            reasons.setdefault(each.reason, []).append(each.url)
        if reasons:
            return "; ".join([waited, *(f"{', '.join(urls)}: {reason}" for reason, urls in reasons.items())])
        refused = why_refused(addresses_in(self._around.recorders.refused.lately()))
        return f"{waited}: {refused or no_recorder(self._around.collector_url())}"

    def _arm(self) -> None:
        self.parts = {
            each.introduction.engine: EnginePart(
                each.introduction, each.url, self.request.steps, arm_id=os.urandom(8).hex()
            )
            for each in self.selection.chosen
        }
        self._groups = groups_of(list(self.parts.values()))
        for group in self.selection.partial:
            (self._reasons if group.silent else self._notes).append(f"{group.labels}: {group.explanation}")
        self._until = time.monotonic() + self.request.timeout_seconds
        self._folder.begin(self._as_open_run())
        self._around.opened(self._folder.directory)
        for part in self.parts.values():
            body = {
                "id": part.arm_id,
                "type": "arm",
                "recording": self.id,
                "steps": self.request.steps,
                "kind": self.request.kind,
                "timing": self.request.timing,
                "deadline_seconds": self.request.timeout_seconds,
                "force_eager": self.request.force_eager,
                "per_layer": self.request.per_layer,
                "together": part.introduction.dp_group is not None,
            }
            self._around.recorders.send(part.engine, Command(part.arm_id, body))
        self.state, self.message = "recording", f"{counted(len(self.parts), 'engine')} told to record"
        _log.info("recording %s: %s", self.id, self.message)

    async def _follow(self) -> None:
        """Until no engine has steps to make, or those that have are disarmed."""
        gathering, parts = self._gathering, list(self.parts.values())
        while waiting := [part for part in parts if gathering.at_work(part)]:
            gathering.settle(waiting)
            self._lead_groups()
            if (
                gathering.all_heard(waiting)
                and all(part.phase != "idle" for part in waiting)
                and all(group.ready for group in self._groups)
            ):
                self._traffic.start(part.url for part in waiting)
            if self._stopped:
                break
            if time.monotonic() > self._until:
                for part in waiting:
                    if not part.cancelled:
                        part.problems.append(self._timed_out(part))
                break
            if self._traffic.failures:
                self.message = self._traffic.failures[-1]
            await asyncio.sleep(self._around.patience.tick)
        self._cancel_engines()

    def _lead_groups(self) -> None:
        """Tell lockstep groups that are armed where to start, and those of which an engine failed to end."""
        for group in self._groups:
            failed = next((part for part in group.parts if part.failed or self._gathering.gone(part)), None)
            if failed is not None:
                for part in group.parts:
                    if self._gathering.at_work(part) and not part.cancelled:
                        how = failed.phase if failed.failed else "vanished"
                        part.problems.append(f"disarmed with its lockstep group, since {failed.label} {how}")
                        self._cancel(part)
                continue
            start = group.find_start()
            for part in group.parts if start is not None else ():
                part.start_id = os.urandom(8).hex()
                body = {"id": part.start_id, "type": "start", "recording": self.id, "position": start}
                self._around.recorders.send(part.engine, Command(part.start_id, body))

    async def _write(self) -> None:
        checked, sums, parts = await self._folder.close(), self._folder.sums, list(self.parts.values())
        general = [*([self._stopped] if self._stopped else []), *self._reasons]
        reasons = report.reasons(sums, checked, parts, self.selection.unmatched, general)
        if reasons:
            reasons += self._traffic.failures
        if sums.empty:
            self._folder.discard()
            raise _NoRun("; ".join(reasons) or "no engine sent anything")
        self.steps = await asyncio.to_thread(self._write_files, checked, reasons)
        self.run_path, self.complete, self.reasons = self._folder.directory, not reasons, reasons
        self.state, self.message = "done", "the run is written"

    def _write_files(self, checked: Checked, reasons: list[str]) -> dict[str, int]:
        """Write the run; returns its steps by kind."""
        recording = report.make_recording(
            self.id,
            self.request,
            self._created,
            self._around.version,
            self._folder.sums,
            checked,
            list(self.parts.values()),
            self.selection.unmatched,
            reasons,
            self._notes,
        )
        if self._around.trace_link:
            recording.header["trace_link"] = self._around.trace_link
        self._folder.write(recording)
        return recording.steps()

    def _as_open_run(self) -> OpenRun:
        return OpenRun(
            self.id,
            self._created,
            time.time() + self.request.timeout_seconds,
            self.request,
            tuple(ArmedEngine(part.introduction, part.url, part.arm_id) for part in self.parts.values()),
            tuple((each.url, each.reason) for each in self.selection.unmatched),
            tuple(self._reasons),
            tuple(self._notes),
        )

    def _log_end(self) -> None:
        if self.run_path is None:
            _log.info("recording %s failed: %s", self.id, self.message)
        elif self.complete:
            _log.info("recording %s is complete: %s", self.id, self.run_path)
        else:
            _log.info("recording %s is not complete: %s: %s", self.id, self.run_path, "; ".join(self.reasons))

    def _fail(self, message: str) -> None:
        self.state, self.message, self.complete = "failed", message, False

    def _timed_out(self, part: EnginePart) -> str:
        within = f"within {self.request.timeout_seconds:g} s"
        if part.phase == "idle":
            return f"it did not take the command {within}: is the engine's main loop stuck?"
        if part.phase == "armed" and part.introduction.dp_group and part.start_id is None:
            return f"its lockstep group was not armed as a whole {within}"
        asked = self.request
        noun = f"{asked.kind} step" if asked.kind else "step"
        made = f"it made {part.steps_done} of {counted(part.steps_asked, noun)} {within}"
        if asked.requests and not self._traffic.began:
            return f"{made}; no requests were sent, since not every engine got ready for them"
        if not asked.requests:
            return f"{made}; does it have requests? `--requests 4` sends some"
        sent = f"{counted(asked.requests, 'request')} of {counted(asked.max_tokens, 'token')}"
        return f"{made}, with {sent}: more --requests, more --max-tokens, fewer --steps or a longer --timeout help"

    def _cancel_engines(self) -> None:
        """Disarm whoever may still be recording, or would take the old command later."""
        for part in self.parts.values():
            if part.in_window and not part.cancelled:
                self._cancel(part)

    def _cancel(self, part: EnginePart) -> None:
        part.cancelled = True
        command_id = os.urandom(8).hex()
        body = {"id": command_id, "type": "cancel", "recording": self.id}
        self._around.recorders.send(part.engine, Command(command_id, body))


def _refusal(group: PartialGroup) -> str:
    return (
        f"{group.labels}: not recorded: {group.explanation}, and a group can't be forced to run eagerly in part;"
        " record without --force-eager, or bring the whole group in"
    )
