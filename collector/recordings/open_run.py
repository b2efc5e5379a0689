"""What a run directory says of a recording that is not over, so that a crash of the collector does not end it.

`open.json` is there from the arming to the end, and the collector that records holds a lock on it. One that starts
and finds it unlocked goes on where the other was cut off.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import msgspec

from vime_otel.data.run_files import HEADER_FILE, OPEN_FILE

from ..journal.commits import sync_directory
from .messages import Introduction, RecordingRequest

_log = logging.getLogger(__name__)

_FORMAT = 1


@dataclass(frozen=True)
class ArmedEngine:
    """An engine that was told to record: with which command, and where it takes completions."""

    introduction: Introduction
    url: str
    arm_id: str


@dataclass(frozen=True)
class OpenRun:
    """What was asked, and of whom. `until_unix` is when the engines' time is over, in seconds.

    `unmatched` are the workers (URL, reason) that can't be recorded; `reasons` are why the recording can't be
    complete, as far as that is known when it begins.
    """

    id: str
    created: datetime
    until_unix: float
    request: RecordingRequest
    engines: tuple[ArmedEngine, ...]
    unmatched: tuple[tuple[str, str], ...]
    reasons: tuple[str, ...]
    notes: tuple[str, ...]
    format: int = _FORMAT


class Marker:
    """The file, locked by this process until it is removed or let go."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor

    @classmethod
    def make(cls, directory: Path, content: OpenRun) -> Marker:
        """Write it into a run directory, made if need be. Raises OSError."""
        directory.mkdir(parents=True, exist_ok=True)
        path, temporary = directory / OPEN_FILE, directory / f".{OPEN_FILE}"
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            encoded = msgspec.json.encode(content)
            if os.write(descriptor, encoded) < len(encoded):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(temporary))
            os.fsync(descriptor)
            os.replace(temporary, path)  # the lock goes with the file
            for folder in (directory, directory.parent):
                sync_directory(folder)
        except BaseException:
            temporary.unlink(missing_ok=True)
            os.close(descriptor)
            raise
        return cls(path, descriptor)

    @classmethod
    def take_over(cls, path: Path) -> Marker | None:
        """The one that is there; None where another process has it, or has just removed it. Raises OSError."""
        descriptor = os.open(path, os.O_RDWR)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                return cls(path, descriptor)
        except (BlockingIOError, FileNotFoundError):
            pass
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
        return None

    def read(self) -> OpenRun:
        """What it says. Raises OSError or ValueError."""
        content = msgspec.json.decode(os.pread(self._descriptor, os.fstat(self._descriptor).st_size, 0), type=OpenRun)
        if content.format != _FORMAT:
            raise ValueError(f"it has format {content.format}, this version reads {_FORMAT}")
        return content

    def remove(self) -> None:
        """Take it away: the recording is over. Raises OSError."""
        self.path.unlink(missing_ok=True)
        self.let_go()

    def let_go(self) -> None:
        """Leave it to whoever comes next."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def left_behind(runs_root: Path) -> Iterator[tuple[Marker, OpenRun]]:
    """The recordings that a collector left open and no other has; what can't be read is told in the log."""
    for path in sorted(runs_root.glob(f"*/{OPEN_FILE}")):
        try:
            marker = Marker.take_over(path)
            if marker is None:
                continue
            if (path.parent / HEADER_FILE).is_file():  # it was written, and only this was left
                marker.remove()
                continue
        except OSError as error:
            _log.warning("%s can't be read, so its recording is not ended: %s", path, error.strerror or error)
            continue
        try:
            yield marker, marker.read()
        except (OSError, ValueError) as error:
            _log.warning("%s can't be read, so its recording is not ended: %s", path, error)
            marker.let_go()
