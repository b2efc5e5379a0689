"""The doors through which orders reach a recorder: which are open is a matter of settings."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from vime_otel.data import settings
from vime_otel.data.summary import counted
from vime_otel.version import __version__

from .checks import without_effect
from .engine import EngineRecorder
from .exporter import Destination, Exporter, Kept
from .outbox_store import FOLDER
from .pace import AFTER_SECONDS, AFTER_STEPS
from .window import Window

logger = logging.getLogger("vllm.vime_otel")

_PACE_LOOK_SECONDS = 0.02


class Door(threading.Thread):
    """A daemon thread that brings orders to a recorder. `close` ends it soon; it may be repeated."""

    def __init__(self, recorder: EngineRecorder, name: str):
        super().__init__(name=f"vime-otel {name}", daemon=True)
        self.recorder = recorder
        self.exporter = Exporter(recorder.gone)
        self.closed = threading.Event()

    def close(self) -> None:
        """Ask the thread to end."""
        self.closed.set()
        self.exporter.close()

    def send_what_waits(self, destination: Destination) -> None:
        """Have the exporter look for what engines of this directory left that are gone."""
        if destination.outbox:
            threading.Thread(
                target=self._send_what_waits, args=(destination,), name="vime-otel export", daemon=True
            ).start()

    def _send_what_waits(self, destination: Destination) -> None:
        try:
            if any(Path(destination.outbox).glob(f"*/{FOLDER}")):
                self.exporter.export(None, destination)
        except Exception as error:  # noqa: BLE001 - it goes on waiting
            logger.warning("vime-otel could not look for what waits in %s: %s", destination.outbox, error)

    def deliver(self, window: Window) -> None:
        """Export a window beside the engine's thread, which this is called on."""
        self.beside_engine(self._export, window)

    @staticmethod
    def beside_engine(work: Callable[[Window], None], window: Window) -> None:
        """Do something with a window on a thread of its own."""
        threading.Thread(target=work, args=(window,), name="vime-otel export", daemon=True).start()

    def export(self, window: Window, patience: float = 0.0) -> str | None:
        """Run the exporter; the answer is None or what it could not do. `patience`: see `Destination`."""
        raise NotImplementedError

    def try_export(self, window: Window, **options: Any) -> str | None:
        """As `export`, but never raises."""
        try:
            return self.export(window, **options)
        except Exception as failure:  # noqa: BLE001 - told to the user instead
            return f"the exporter failed: {failure!r}"

    def _export(self, window: Window) -> None:
        window.unrecorded = self._unrecorded(window)
        error = self.try_export(window)
        if error is not None:
            logger.warning("vime-otel: recording %s was not exported whole: %s", window.command.recording, error)
        else:
            ended = f" ({'; '.join(dict.fromkeys(window.reasons))})" if window.reasons else ""
            made = counted(len(window.steps), "step")
            logger.info("vime-otel: recording %s ended with %s%s", window.command.recording, made, ended)
        self.recorder.exported(error, waits=isinstance(error, Kept))

    def _unrecorded(self, window: Window) -> dict[str, Any]:
        """How long decode steps take without a recording, at the batch of the recorded ones."""
        batches = [step.counts.requests for step in window.steps if step.counts.kind == "decode"]
        if not batches:
            return {}
        pace = self.recorder.pace
        deadline = time.monotonic() + AFTER_SECONDS
        while pace.steps_after() <= AFTER_STEPS and time.monotonic() < deadline:
            self.closed.wait(_PACE_LOOK_SECONDS)
        return {"decode": pace.beside(int(median(batches)))}


def open_doors(recorder: EngineRecorder) -> list[Door]:
    """Open and start the doors that the settings name."""
    # Late: each door brings a transport of its own.
    doors: list[Door] = []
    waits_for = []
    if url := settings.collector_url():
        from .collector_door import CollectorDoor

        doors.append(CollectorDoor(recorder, url, settings.secret(settings.TOKEN)))
        waits_for.append(f"for what the collector at {url} asks")
    if directory := settings.get(settings.DIR):
        from .file_door import FileDoor

        folder = Path(directory).absolute()
        doors.append(FileDoor(recorder, folder))
        waits_for.append(f"for {folder / 'start'}")
    for door in doors:
        door.start()
    for sentence in without_effect():
        logger.warning("vime-otel: %s", sentence)
    if waits_for:
        logger.info("vime-otel %s is attached and waits %s", __version__, " and ".join(waits_for))
    return doors
