"""Where an outbox keeps its parcels: in a folder that one process at a time has in hand, or in memory."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

FOLDER = "outbox"
SUFFIX = ".window"
_LOCK = ".lock"
_UNFINISHED = ".part"


class Store(Protocol):
    """Where packed parcels lie, by name; names in order are the order of their coming. May raise OSError."""

    place: str
    """For people."""

    def sizes(self) -> dict[str, int]: ...
    def read(self, name: str) -> bytes: ...
    def write(self, name: str, packed: bytes) -> None: ...
    def remove(self, name: str) -> None: ...


class MemoryStore:
    """In the exporter's memory, for as long as it lives."""

    place = "the exporter's memory"

    def __init__(self) -> None:
        self._packed: dict[str, bytes] = {}

    def sizes(self) -> dict[str, int]:
        """Bytes by name, oldest first."""
        return {name: len(self._packed[name]) for name in sorted(self._packed)}

    def read(self, name: str) -> bytes:
        """What was written."""
        return self._packed[name]

    def write(self, name: str, packed: bytes) -> None:
        """Add or replace."""
        self._packed[name] = packed

    def remove(self, name: str) -> None:
        """Forget."""
        del self._packed[name]


class FolderStore:
    """In a folder, which goes when nothing is left in it. Its lock must be held (`locked`)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.place = str(folder)

    def sizes(self) -> dict[str, int]:
        """Bytes by name, oldest first."""
        sizes = {}
        for path in sorted(self.folder.glob(f"*{SUFFIX}")):
            with contextlib.suppress(FileNotFoundError):  # somebody removes what lies there
                sizes[path.name] = path.stat().st_size
        return sizes

    def read(self, name: str) -> bytes:
        """What was written."""
        return (self.folder / name).read_bytes()

    def write(self, name: str, packed: bytes) -> None:
        """Add or replace, whole or not at all, and on the disk."""
        temporary = self.folder / f"{name}{_UNFINISHED}"
        try:
            with open(temporary, "wb") as file:
                file.write(packed)
                file.flush()
                os.fsync(file.fileno())
            temporary.rename(self.folder / name)
        except OSError:
            temporary.unlink(missing_ok=True)  # what it holds of a full disk would be missed
            raise

    def remove(self, name: str) -> None:
        """Remove."""
        (self.folder / name).unlink(missing_ok=True)

    @contextlib.contextmanager
    def locked(self) -> Iterator[bool]:
        """Whether nobody else has the folder in hand; inside, nobody else takes it. It is made, and goes when empty."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as opened:
            try:
                file = opened.enter_context(open(self.folder / _LOCK, "w"))
            except FileNotFoundError:  # its holder has just removed the folder
                yield False
                return
            if not _lock(file.fileno(), self.folder / _LOCK):
                yield False
                return
            for left in self.folder.glob(f"*{_UNFINISHED}"):  # by a process that was killed while it wrote
                left.unlink(missing_ok=True)
            yield True
            if not self.sizes():
                (self.folder / _LOCK).unlink(missing_ok=True)
                for folder in (self.folder, self.folder.parent):
                    with contextlib.suppress(OSError):  # files of a run lie there, perhaps
                        folder.rmdir()


def _lock(file: int, path: Path) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(file), path.stat())  # else its holder has just removed it
    except (BlockingIOError, FileNotFoundError):
        return False
