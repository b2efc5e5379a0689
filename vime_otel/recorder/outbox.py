"""Finished windows that nobody took yet: kept within bounds, in a folder or in memory, until somebody does.

Used by the exporter subprocess alone; see docs/formats.md for the files.
"""

from __future__ import annotations

import contextlib
import time
import zlib
from dataclasses import dataclass, replace

import msgspec

from .outbox_store import SUFFIX, Store
from .shrink import fold_oldest
from .window import Window

MAGIC = b"VOTW\x01"
_CRC_BYTES = 4
_EVERYTHING = 2**62


@dataclass(frozen=True)
class Parcel:
    """A window, who is to get it (`collector` or `otlp`), and how many requests of it were taken already."""

    destination: str
    window: Window
    taken: int = 0


@dataclass(frozen=True)
class Loss:
    """What keeping to the bound cost, in a sentence; the name and the recording where a whole window went.

    Either is empty else; so is the recording where it could not be read.
    """

    sentence: str
    name: str = ""
    recording: str = ""


class Unreadable(Exception):
    """A file that holds no whole parcel of this version."""


def pack(parcel: Parcel) -> bytes:
    """A parcel as bytes."""
    content = msgspec.msgpack.encode(parcel)
    return MAGIC + zlib.crc32(content).to_bytes(_CRC_BYTES, "little") + content


def unpack(packed: bytes) -> Parcel:
    """The parcel; raises Unreadable."""
    start = len(MAGIC) + _CRC_BYTES
    content = memoryview(packed)[start:]
    if packed[:start] != MAGIC + zlib.crc32(content).to_bytes(_CRC_BYTES, "little"):
        raise Unreadable
    try:
        return msgspec.msgpack.decode(content, type=Parcel)
    except msgspec.MsgspecError as error:
        raise Unreadable from error


class Outbox:
    """Parcels within a bound: beyond it the spans of the oldest steps are folded, and only then whole windows go."""

    def __init__(self, store: Store, most_bytes: int) -> None:
        self.store = store
        self._most_bytes = most_bytes
        self._number = 0

    def put(self, parcel: Parcel) -> str:
        """Keep a parcel; returns its name. `make_room` belongs after it."""
        if parcel.window.command.totals_only:  # of its spans nothing is ever sent
            parcel = replace(parcel, window=fold_oldest(parcel.window, _EVERYTHING)[0])
            parcel.window.shortened = 0
        self._number = max(time.time_ns(), self._number + 1)
        name = f"{self._number:020d}-{parcel.destination}{SUFFIX}"
        self.store.write(name, pack(parcel))
        return name

    def replace(self, name: str, parcel: Parcel) -> None:
        """Keep a parcel in place of an earlier state of it."""
        self.store.write(name, pack(parcel))

    def get(self, name: str) -> Parcel:
        """A parcel; raises Unreadable."""
        return unpack(self.store.read(name))

    def remove(self, name: str) -> None:
        """It was taken, or never will be."""
        self.store.remove(name)

    def names(self, destination: str = "") -> list[str]:
        """What waits, oldest first; all, or what is for one destination."""
        return [name for name in self.store.sizes() if name.endswith(f"{destination}{SUFFIX}")]

    def make_room(self) -> list[Loss]:
        """Keep to the bound; returns what that cost."""
        told: list[Loss] = []
        for name in self.names():
            if self._excess() <= 0:
                return told
            with contextlib.suppress(Unreadable):
                told += self._shorten(name)
        for name in self.names():
            if self._excess() <= 0:
                break
            told.append(self._drop(name))
        return told

    def _excess(self) -> int:
        return sum(self.store.sizes().values()) - self._most_bytes

    def _drop(self, name: str) -> Loss:
        recording, what = "", name
        with contextlib.suppress(Unreadable):
            recording = self.get(name).window.command.recording
            what = f"recording {recording}, which had waited,"
        self.remove(name)
        return Loss(f"{what} was dropped with all its totals for want of room", name, recording)

    def _shorten(self, name: str) -> list[Loss]:
        """Fold a parcel's oldest steps until there is room, or nothing left to fold."""
        parcel = self.get(name)
        before = parcel.window.shortened
        while (excess := self._excess()) > 0:
            window, steps = fold_oldest(parcel.window, excess)  # what was folded takes some room, too
            if not steps:
                break
            parcel = replace(parcel, window=window)
            self.replace(name, parcel)
        steps, recording = parcel.window.shortened - before, parcel.window.command.recording
        sentence = f"the spans of {steps} steps of recording {recording} were dropped for want of room"
        return [Loss(sentence)] if steps else []
