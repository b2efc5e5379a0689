"""Sends windows, keeps those that nobody takes now, and tries these again: the work of the exporter subprocess."""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from vime_otel.data.errors import Unavailable, VimeOtelError

from .outbox import Outbox, Parcel, Unreadable
from .outbox_store import FOLDER, FolderStore, MemoryStore

Send = Callable[[Parcel, Callable[[int], None]], None]
"""Sends a parcel's requests but for the first `taken`; calls back with how many were taken by then.

Raises Unavailable where another try may succeed, VimeOtelError where none will.
"""

_LONGEST_WAIT_SECONDS = 5.0


class Backoff:
    """Seconds between tries: 1, 2, 4, 5, 5, …, each between half and all of it."""

    def __init__(self) -> None:
        self._seconds = 1.0

    def next(self) -> float:
        """How long to wait now."""
        seconds, self._seconds = self._seconds, min(2 * self._seconds, _LONGEST_WAIT_SECONDS)
        return seconds * random.uniform(0.5, 1.0)

    def reset(self) -> None:
        """The last try succeeded."""
        self._seconds = 1.0


@dataclass(frozen=True)
class Outcome:
    """What became of a parcel that waits no more: None or an error, and a sentence about it.

    `recording` is the window's, empty where it could not be read.
    """

    name: str
    error: str | None
    sentence: str
    recording: str = ""


def try_parcel(parcel: Parcel, send: Send) -> tuple[Parcel, str | None]:
    """Send a parcel; returns it with how much of it was taken, and what was in the way. Raises VimeOtelError."""
    taken = parcel.taken

    def note(count: int) -> None:
        nonlocal taken
        taken = count

    try:
        send(parcel, note)
    except Unavailable as error:
        return replace(parcel, taken=taken), str(error)
    return replace(parcel, taken=taken), None


@dataclass
class _Held:
    """An outbox that this process has in hand."""

    box: Outbox
    release: contextlib.ExitStack


class Delivery:
    """One engine's outgoing windows. `directory` is VIME_OTEL_DIR, or None: then what waits does so in memory."""

    def __init__(self, engine: str, directory: Path | None, most_bytes: int, tell: Callable[[str, str], None]) -> None:
        """`tell` is called with a sentence when something had to be dropped for want of room.

        Then with the id of the recording, where that was a whole window; empty else.
        """
        self._tell = tell
        self._engine = engine
        self._directory = directory
        self._most_bytes = most_bytes
        self._own: _Held | None = None
        self._adopted: list[_Held] = []
        self._recordings: dict[str, str] = {}  # by name, of what waits and was seen here
        self._backoff = Backoff()
        self._failed_last = ""
        self.next_try = 0.0
        """When to call `send_waiting`, in seconds of the monotonic clock."""
        self.trouble = ""
        """Why the last try failed."""

    @property
    def place(self) -> str:
        """Where this engine's windows wait, for people."""
        return self._own.box.store.place if self._own else ""

    @property
    def in_memory(self) -> bool:
        """Whether what waits ends with this process."""
        return self._own is not None and isinstance(self._own.box.store, MemoryStore)

    def waiting(self, destination: str) -> int:
        """How many windows wait for a destination."""
        return len(list(self._parcels(destination)))

    def has(self, name: str) -> bool:
        """Whether what `keep` gave this name still waits."""
        return any(name in held.box.names() for held in self._held())

    def take_up(self) -> None:
        """Take in hand what an earlier exporter of this engine left."""
        if self._own is None and self._directory is not None:
            folder = self._directory / self._engine / FOLDER
            if os.path.isdir(folder):  # never raises
                self._own = self._take(FolderStore(folder))

    def adopt(self) -> None:
        """Take in hand what engines left that are gone, and earlier exporters of this one."""
        self.take_up()
        known = {each.box.store.place for each in self._held()}
        for folder in sorted(self._directory.glob(f"*/{FOLDER}")) if self._directory else ():
            if str(folder) in known:
                continue
            held = self._take(FolderStore(folder))
            if held is not None:
                self._adopted.append(held)

    def keep(self, parcel: Parcel) -> str:
        """Let a parcel wait; returns its name."""
        if self._own is None:
            self._own = self._open_own()
        try:
            name = self._own.box.put(parcel)
        except OSError:  # the disk is full, perhaps: memory is better than nothing
            self._adopted.append(self._own)  # what waits there goes on waiting
            self._own = _Held(Outbox(MemoryStore(), self._most_bytes), contextlib.ExitStack())
            name = self._own.box.put(parcel)
        self._recordings[name] = parcel.window.command.recording
        with contextlib.suppress(OSError):
            for loss in self._own.box.make_room():
                self._recordings.pop(loss.name, None)
                self._tell(loss.sentence, loss.recording)
        return name

    def send_waiting(self, send: Send, destination: str) -> list[Outcome]:
        """Try all that waits for a destination, until a try fails; returns what was sent, dropped or removed."""
        outcomes = self._removed()
        self.trouble = ""
        queue = list(self._parcels(destination))
        # One that can't be sent must not keep those behind it waiting for ever.
        after = next((number for number, (_, name) in enumerate(queue, 1) if name == self._failed_last), 0)
        for held, name in queue[after:] + queue[:after]:
            outcome = self._try_one(held.box, name, send)
            if outcome is None:
                self._failed_last = name
                self.next_try = time.monotonic() + self._backoff.next()
                break
            outcomes.append(outcome)
        else:
            self._failed_last = ""
            self._backoff.reset()
        for outcome in outcomes:
            self._recordings.pop(outcome.name, None)
        self._release_empty()
        return outcomes

    def close(self) -> None:
        """Let go of every outbox; what is in folders stays there."""
        for held in self._held():
            held.release.close()
        self._own, self._adopted = None, []

    def _try_one(self, box: Outbox, name: str, send: Send) -> Outcome | None:
        """None where the parcel goes on waiting."""
        try:
            return self._send_one(box, name, send)
        except OSError as error:  # it may be sent again then: whoever has it knows it
            self.trouble = f"{box.store.place}: {error.strerror or error}"
        except Exception as error:  # noqa: BLE001 - what else waits here must not be lost with it
            self.trouble = f"the exporter failed: {error!r}"
        return None

    def _send_one(self, box: Outbox, name: str, send: Send) -> Outcome | None:
        """Raises OSError where the outbox can't be read or written."""
        try:
            before = box.get(name)
        except Unreadable:
            box.remove(name)
            what = f"{name} in {box.store.place} was no whole window"
            return Outcome(name, what, f"{what} and is removed")
        recording = self._recordings[name] = before.window.command.recording
        what = f"recording {recording} ({len(before.window.steps)} steps), which had waited,"
        try:
            after, trouble = try_parcel(before, send)
        except VimeOtelError as error:
            box.remove(name)
            return Outcome(name, str(error), f"{what} is dropped: {error}", recording)
        if trouble is not None:
            self.trouble = trouble
            if after.taken != before.taken:
                box.replace(name, after)
            return None
        box.remove(name)
        return Outcome(name, None, f"{what} was sent", recording)

    def _removed(self) -> list[Outcome]:
        """What somebody else removed since it was seen here."""
        left = {name for held in self._held() for name in held.box.names()}
        lost = "what was recorded is lost: it had to wait, and was removed"
        return [
            Outcome(name, lost, f"recording {recording}: {lost}", recording)
            for name, recording in self._recordings.items()
            if name not in left
        ]

    def _parcels(self, destination: str) -> Iterator[tuple[_Held, str]]:
        for held in self._held():
            for name in held.box.names(destination):
                yield held, name

    def _held(self) -> list[_Held]:
        return [*([self._own] if self._own else []), *self._adopted]

    def _open_own(self) -> _Held:
        if self._directory is not None:
            held = self._take(FolderStore(self._directory / self._engine / FOLDER))
            if held is not None:
                return held
        return _Held(Outbox(MemoryStore(), self._most_bytes), contextlib.ExitStack())

    def _take(self, store: FolderStore) -> _Held | None:
        """None where another process has it, or this one may not write there."""
        release = contextlib.ExitStack()
        with contextlib.suppress(OSError):
            if release.enter_context(store.locked()):
                return _Held(Outbox(store, self._most_bytes), release)
        release.close()
        return None

    def _release_empty(self) -> None:
        for held in [each for each in self._held() if not each.box.names()]:
            with contextlib.suppress(OSError):  # the folder stays then
                held.release.close()
            if held is self._own:
                self._own = None
            else:
                self._adopted.remove(held)
