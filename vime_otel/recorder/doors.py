"""The doors through which orders reach a recorder: which are open is a matter of settings."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

from vime_otel.data import settings

from .engine import EngineRecorder
from .window import Window

logger = logging.getLogger("vllm.vime_otel")


class Door(threading.Thread):
    """A daemon thread that brings orders to a recorder. `close` ends it soon; it may be repeated."""

    def __init__(self, recorder: EngineRecorder, name: str):
        super().__init__(name=f"vime-otel {name}", daemon=True)
        self.recorder = recorder
        self.closed = threading.Event()

    def close(self) -> None:
        """Ask the thread to end."""
        self.closed.set()

    def deliver(self, window: Window) -> None:
        """Export a window beside the engine's thread, which this is called on."""
        threading.Thread(target=self._export, args=(window,), name="vime-otel export", daemon=True).start()

    def export(self, window: Window) -> str | None:
        """Run the exporter; the answer is None or what it could not do."""
        raise NotImplementedError

    def _export(self, window: Window) -> None:
        try:
            error = self.export(window)
        except Exception as failure:  # noqa: BLE001 - told to the user instead
            error = f"the exporter failed: {failure!r}"
        if error is not None:
            logger.warning("vime-otel: recording %s was not exported whole: %s", window.command.recording, error)
        self.recorder.exported(error)


def open_doors(recorder: EngineRecorder) -> list[Door]:
    """Open and start the doors that the settings name."""
    # Late: each door brings a transport of its own.
    doors: list[Door] = []
    if url := settings.get(settings.COLLECTOR):
        from .collector_door import CollectorDoor

        doors.append(CollectorDoor(recorder, url.rstrip("/"), settings.secret(settings.TOKEN)))
    if directory := settings.get(settings.DIR):
        from .file_door import FileDoor

        doors.append(FileDoor(recorder, Path(directory)))
    for door in doors:
        door.start()
    return doors
