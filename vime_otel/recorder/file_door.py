"""The file trigger: N written into `DIR/start` arms every engine under DIR; see docs/formats.md."""

from __future__ import annotations

import logging
import time
from pathlib import Path

from vime_otel.data import settings
from vime_otel.data.lockstep import start_position
from vime_otel.data.summary import counted

from .doors import Door
from .engine import EngineRecorder
from .exporter import Destination
from .shared_directory import SharedDirectory, Start
from .status import Status
from .window import Command, Window

logger = logging.getLogger("vllm.vime_otel")

LOOK_EVERY_SECONDS = 0.25

GROUP_SECONDS = 30.0
"""So long an engine waits for the others of its lockstep group: they may still export what they recorded before."""


class FileDoor(Door):
    """Watches `directory/start`. Acts once on each new file; one that is removed cancels."""

    def __init__(self, recorder: EngineRecorder, directory: Path):
        super().__init__(recorder, "file door")
        self._directory = directory
        self._acted_on: str | None = None
        self._recording: str | None = None
        self._exported: str | None = None
        self._timing = settings.timing()
        self._seen: Start | None = None
        self._agreed: str | None = None
        self._waits_for: str | None = None
        self._waits_until = 0.0
        self._told = ""
        self._told_of: dict[str, str] = {}

    def run(self) -> None:
        """Look until closed."""
        if not settings.get(settings.COLLECTOR):
            self.send_what_waits(self._destination())
        shared = SharedDirectory(self._directory, self.recorder.id)
        while not self.closed.wait(LOOK_EVERY_SECONDS):
            try:
                self.recorder.check_deadline()
                if not shared.entered():
                    shared.enter()
                    if self._exported is not None:  # the others count this engine from now on
                        shared.mark_done(self._exported)
                self._look(shared)
                self._told = ""
            except Exception as error:  # noqa: BLE001 - while it lives the others wait for what this engine does
                self._tell_once(error)
        shared.leave()

    def _tell_once(self, error: Exception) -> None:
        text = str(error) if isinstance(error, OSError) else repr(error)
        if text != self._told:
            self._told = text
            logger.warning(
                "vime-otel can't use VIME_OTEL_DIR=%s (%s); it tries on, mend the folder", self._directory, text
            )

    def export(self, window: Window, patience: float = 0.0) -> str | None:
        """Write the window into the directory, and the merged files if this engine is the last."""
        error = self.exporter.export(window, self._destination(self._acted_on or ""))
        if error is None:
            self._exported = self._acted_on
        return error

    def _destination(self, start: str = "") -> Destination:
        directory = str(self._directory)
        return Destination(self.recorder.id, directory, directory=directory, start=start)

    def _look(self, shared: SharedDirectory) -> None:
        start = shared.start()
        seen, self._seen = self._seen, start
        if start is None:
            if self._recording is not None:
                self.recorder.cancel(self._recording, "the start file was removed")
                self._recording = None
            return
        if start != seen:
            return  # still being written, perhaps: at the next look it counts
        if start.key != self._acted_on:
            # Here and not on the engine's thread: it takes milliseconds.
            self.recorder.port.describe()
            # The key is the recording's id: every engine under the directory derives the same one.
            command = Command(
                start.key,
                start.steps,
                timing=self._timing,
                force_eager=start.force_eager,
                per_layer=start.per_layer,
                together=self.recorder.port.lockstep() is not None,
            )
            refusal = self.recorder.submit(command, self.deliver)
            if refusal is None:
                if start.note:
                    logger.warning("vime-otel: %s", start.note)
                logger.info(
                    "vime-otel: recording %s begins: %s, into %s",
                    start.key,
                    counted(start.steps, "step"),
                    self._directory,
                )
                self._acted_on = self._recording = start.key
                shared.mark_begun(start.key, str(self.recorder.port.describe()["label"]))
            elif self._first_time("waits", start.key):
                self._tell_of_waiting(refusal)
        elif (ended := self._gave_up(start.key)) is not None:
            if self._first_time("gave up", start.key):
                logger.warning("vime-otel: there are no files of this engine: %s", ended.reason)
            with shared.locked():
                shared.mark_done(start.key)
            self._exported = start.key
        elif self.recorder.status.position is not None and self._agreed != start.key:
            self._agree(shared, start.key)
        elif self._exported == start.key:
            self._look_for_others(shared, start.key)

    def _look_for_others(self, shared: SharedDirectory, key: str) -> None:
        """This engine's part is written: the last engine merges all, or this one where those that were to are gone."""
        others = sum(done != key for done in shared.living().values())
        if others and self._first_time("others", key):
            what = counted(others, "other engine")
            logger.info("vime-otel: the files in %s follow when %s made steps, too", self._directory, what)
        if others:
            return
        error = self.exporter.export(None, self._destination(key))
        if error is not None:
            logger.warning("vime-otel could not merge what the engines wrote: %s", error)
            with shared.locked():
                shared.remove_start(key)

    def _first_time(self, what: str, key: str) -> bool:
        """Whether that was not told of the start file yet; it is looked at four times a second."""
        before, self._told_of[what] = self._told_of.get(what), key
        return before != key

    def _tell_of_waiting(self, refusal: str) -> None:
        """A new start file does not end the recording that an earlier one asked for."""
        status, path = self.recorder.status, self._directory / "start"
        ours = status.recording == self._recording and status.phase in ("armed", "recording")
        way_out = "; remove the file to call that off, then write it again" if ours else ""
        level = logging.WARNING if ours else logging.INFO
        logger.log(level, "vime-otel: what %s says now waits: %s%s", path, refusal, way_out)

    def _gave_up(self, key: str) -> Status | None:
        """How this engine refused or failed, where it will write nothing."""
        ended = self.recorder.ended(key)
        return ended if ended is not None and key != self._exported and ended.phase in ("refused", "failed") else None

    def _agree(self, shared: SharedDirectory, key: str) -> None:
        """Have this engine begin with the others of its lockstep group, once they wait for it, too."""
        status, engine = self.recorder.status, self.recorder.port.describe()
        if status.position is None:
            return
        if self._waits_for != key:
            self._waits_for, self._waits_until = key, time.monotonic() + GROUP_SECONDS
        # The others may be on hosts that have a directory of their own.
        members = min(engine["dp_size"], len(shared.living())) if time.monotonic() < self._waits_until else 0
        proposal = start_position([(status.position, status.steps_per_second)])
        position = shared.agree(key, engine["dp_group"], proposal, members)
        if position is not None:
            self.recorder.start_at(key, position)
            self._agreed = key
