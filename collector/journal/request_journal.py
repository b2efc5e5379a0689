"""The journal of one recording as the intake sees it: requests go in once, and are known when they come again.

A client that got no answer sends the same bytes again. They are told by their checksum and length, and then by the
bytes themselves, which the journal has; so nothing is ever taken for a repetition that is none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

from vime_otel.data.journal import HEADER_BYTES, Frame, checksum

from .commits import Entry, GroupCommit, JournalFile

MOST_KNOWN = 50_000
"""The latest requests that are known again; clients try for minutes, not for days."""

Told = Callable[[OSError | None, bool], None]
"""Gets why the request is not on the disk, and whether it was there before."""


class KnownRequests:
    """Where in a journal each of the latest requests is, by checksum, length and signal."""

    def __init__(self, known: Mapping[int, int] | None = None) -> None:
        """`known`: what `as_dict` gave."""
        self._positions: dict[int, int] = dict(known or {})
        """The oldest first."""

    def as_dict(self) -> dict[int, int]:
        """Key → where the frame begins, the oldest first."""
        return dict(self._positions)

    def note(self, frame: Frame, position: int) -> None:
        """Note a frame of the journal that begins at `position`."""
        self.remember(request_key(frame.signal, checksum(frame.signal, frame.payload), frame.payload), position)

    def remember(self, key: int, position: int) -> None:
        """Note the latest request; beyond MOST_KNOWN the oldest is forgotten."""
        self._positions.pop(key, None)
        self._positions[key] = position
        if len(self._positions) > MOST_KNOWN:
            del self._positions[next(iter(self._positions))]

    def has(self, journal: Path, key: int, payload: bytes) -> bool:
        """Whether the journal has the request, byte by byte."""
        position = self._positions.get(key)
        if position is None:
            return False
        try:
            with open(journal, "rb") as file:
                file.seek(position + HEADER_BYTES)
                return file.read(len(payload)) == payload
        except OSError:
            return False


class RequestJournal:
    """Belongs to the event loop. `put` may be called while earlier requests are still on their way to the disk."""

    def __init__(
        self, path: Path, commits: GroupCommit, end: int | None = None, known: KnownRequests | None = None
    ) -> None:
        """Of a journal that is there: `end` is where its last whole frame ends, `known` what it holds."""
        self.path = path
        self._commits = commits
        self._file = JournalFile(path, end)
        self.known = known or KnownRequests()
        self.size = end or 0
        """Where the last frame ends that was told of."""
        self._pending: dict[int, tuple[bytes, list[Told]]] = {}
        self._unsettled = 0
        self._settled = asyncio.Event()
        self._settled.set()

    def put(self, signal: int, payload: bytes, told: Told) -> None:
        """Bring a request to the disk, unless it is there. `told` is called on the loop, never before `put` returns."""
        crc = checksum(signal, payload)
        key = request_key(signal, crc, payload)
        self._unsettled += 1
        self._settled.clear()
        pending = self._pending.get(key)
        if pending is not None and pending[0] == payload:
            pending[1].append(told)
        elif self.known.has(self.path, key, payload):
            asyncio.get_running_loop().call_soon(self._finish, told, None, True)
        else:
            waiting = [told]
            if pending is None:
                self._pending[key] = (payload, waiting)
            self._commits.hand_in(
                Entry(
                    self._file, signal, crc, payload, lambda result: self._committed(key, len(payload), waiting, result)
                )
            )

    def knows(self, signal: int, payload: bytes) -> bool:
        """Whether a request is in it, or on its way there."""
        key = request_key(signal, checksum(signal, payload), payload)
        pending = self._pending.get(key)
        return (pending is not None and pending[0] == payload) or self.known.has(self.path, key, payload)

    async def settled(self) -> None:
        """Wait for what is on its way."""
        await self._settled.wait()

    async def close(self) -> None:
        """Wait for what is on its way, and let go of the file. Raises OSError."""
        await self.settled()
        await self._commits.close_journal(self._file)

    def _committed(self, key: int, length: int, waiting: list[Told], result: int | OSError) -> None:
        pending = self._pending.get(key)
        if pending is not None and pending[1] is waiting:
            del self._pending[key]
        if isinstance(result, OSError):
            for told in waiting:
                self._finish(told, result, False)
            return
        self.known.remember(key, result)
        self.size = result + HEADER_BYTES + length
        for number, told in enumerate(waiting):
            self._finish(told, None, number > 0)

    def _finish(self, told: Told, error: OSError | None, again: bool) -> None:
        try:
            told(error, again)
        finally:
            self._unsettled -= 1
            if not self._unsettled:
                self._settled.set()


def request_key(signal: int, crc: int, payload: bytes) -> int:
    """Equal for equal requests, and hardly ever for others."""
    return signal << 60 | len(payload) << 32 | crc
