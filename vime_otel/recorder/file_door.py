"""The file trigger: N written into `DIR/start` arms every engine under DIR; see docs/formats.md."""

from __future__ import annotations

import logging
from pathlib import Path

from vime_otel.data import settings

from .doors import Door
from .engine import EngineRecorder, start_position
from .exporter import run_exporter
from .shared_directory import SharedDirectory, Start
from .window import Command, Window

logger = logging.getLogger("vllm.vime_otel")

LOOK_EVERY_SECONDS = 0.25


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
        self._told = ""

    def run(self) -> None:
        """Look until closed."""
        shared = SharedDirectory(self._directory, self.recorder.id)
        while not self.closed.wait(LOOK_EVERY_SECONDS):
            self.recorder.check_deadline()
            try:
                if not shared.entered():
                    shared.enter()
                self._look(shared)
                self._told = ""
            except OSError as error:
                if str(error) != self._told:
                    self._told = str(error)
                    logger.warning(
                        "vime-otel can't use VIME_OTEL_DIR=%s (%s); it tries on, mend the folder",
                        self._directory,
                        error,
                    )
        shared.leave()

    def export(self, window: Window) -> str | None:
        """Write the window into the directory, and the merged files if this engine is the last."""
        error = run_exporter(window, {"directory": str(self._directory), "start": self._acted_on})
        self._exported = self._acted_on
        return error

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
                self._acted_on = self._recording = start.key
        elif self.recorder.status.position is not None and self._agreed != start.key:
            self._agree(shared, start.key)
        elif self._exported == start.key and shared.all_done(start.key):
            # Others that were waited for are gone: what there is gets merged.
            run_exporter(None, {"directory": str(self._directory), "start": start.key})

    def _agree(self, shared: SharedDirectory, key: str) -> None:
        """Have this engine begin with the others of its lockstep group."""
        status, group = self.recorder.status, self.recorder.port.describe()["dp_group"]
        if status.position is None:
            return
        self.recorder.start_at(key, shared.agree(key, group, start_position(status.position, status.steps_per_second)))
        self._agreed = key
