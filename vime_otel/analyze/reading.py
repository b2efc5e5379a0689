"""A trace file as blocks of events: inflated and decoded piece by piece, whatever state the file is in.

A file that is cut off, still growing or damaged gives the events that it holds; `problems` says what is wrong with it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import msgspec

from ..data.summary import counted
from .events import Event, decode_one, decode_value
from .splitting import array_begin, likely_end, scan

CHUNK = 2 * 1024 * 1024
"""Bytes that are decoded at a time."""

_LITTLE = 64 * 1024
_MOST_HEADER = 64 * 1024 * 1024
_MOST_BLOCK = 256 * 1024 * 1024
_GZIP = b"\x1f\x8b"

_Block = TypeVar("_Block")


class TraceReader:
    """Reads one file, once. After `blocks`, `header` and `problems` are whole; `ended`: the event list is, too.

    `advance` is called with the number of bytes of the file that were read since its last call.
    """

    def __init__(self, path: Path, advance: Callable[[int], None] = lambda _: None) -> None:
        self.path = path
        self.header: dict[str, Any] = {}
        self.problems: list[str] = []
        self.text_bytes = 0
        self._unreadable = 0
        self.ended = False
        self._damaged = False
        self._advance = advance

    def blocks(self, decode: Callable[[bytes], _Block]) -> Iterator[_Block | list[Event]]:
        """The events in the order of the file, some thousand at a time. Raises OSError where it can't be opened.

        `decode` makes a block of the text of a JSON array. Where it raises msgspec.DecodeError, and for the rest at the
        end, the events are decoded one by one.
        """
        with open(self.path, "rb") as file:
            pieces = self._text(file)
            buffer = bytearray()
            begin = self._find_array(pieces, buffer)
            if begin is None:
                self._no_array(buffer)
                return
            head = bytes(buffer[:begin])
            del buffer[:begin]
            yield from self._events(pieces, buffer, decode)
        if self._unreadable:
            self.problems.append(f"{counted(self._unreadable, 'event')} could not be read: left out")
        if not self.ended and not self._damaged:
            self.problems.append("the file ends before its list of events does: it is cut off, or still being written")
        self.header = _header(head, bytes(buffer) if self.ended else b"]")

    def _text(self, file: BinaryIO) -> Iterator[bytes]:
        """The file's content in pieces, inflated where it is gzip."""
        first = file.read(2)
        file.seek(0)
        pieces = self._inflated(file) if first == _GZIP else self._plain(file)
        for piece in pieces:
            self.text_bytes += len(piece)
            yield piece

    def _plain(self, file: BinaryIO) -> Iterator[bytes]:
        while piece := file.read(CHUNK):
            self._advance(len(piece))
            yield piece

    def _inflated(self, file: BinaryIO) -> Iterator[bytes]:
        inflater = zlib.decompressobj(wbits=31)
        packed = b""
        while packed or (packed := file.read(CHUNK // 8)):
            if inflater.eof:  # another member follows
                if packed[:2] not in (_GZIP, _GZIP[:1]):
                    self.problems.append(f"what follows the gzip data ({len(packed):,} bytes or more) was left out")
                    return
                inflater = zlib.decompressobj(wbits=31)
            before = len(packed)
            intact = inflater.copy()
            try:
                piece = inflater.decompress(packed, CHUNK)
            except zlib.error as error:
                self._broken(f"the gzip data is damaged ({error}): some of it may be wrong, what follows was left out")
                yield _salvaged(intact, packed)
                return
            packed = inflater.unconsumed_tail or inflater.unused_data
            self._advance(before - len(packed))
            if piece:
                yield piece
        while not inflater.eof and (piece := inflater.decompress(b"", CHUNK)):
            yield piece
        if not inflater.eof:
            self._broken("the gzip data ends in the middle: it is cut off, or still being written")

    def _broken(self, problem: str) -> None:
        self.problems.append(problem)
        self._damaged = True

    def _find_array(self, pieces: Iterator[bytes], buffer: bytearray) -> int | None:
        """Read until the event array begins; where, in the buffer."""
        tried = 0
        for piece in pieces:
            buffer += piece
            if len(buffer) < 2 * tried:
                continue
            begin = array_begin(buffer)
            if begin is not None:
                return begin
            tried = len(buffer)
            if tried > _MOST_HEADER:
                break
        return array_begin(buffer)

    def _no_array(self, buffer: bytearray) -> None:
        what = "is empty" if not buffer.strip() else "holds no list of trace events"
        why = "" if self._damaged else ": it is cut off, still being written, or no trace"
        self.problems.append(f"the file {what}{why}")

    def _events(
        self, pieces: Iterator[bytes], buffer: bytearray, decode: Callable[[bytes], _Block]
    ) -> Iterator[_Block | list[Event]]:
        """Decode the array's inside. At its end, `buffer` begins with the closing bracket."""
        wanted = CHUNK
        for piece in pieces:
            if self.ended and len(buffer) > _MOST_HEADER:
                continue
            buffer += piece
            if self.ended or len(buffer) < wanted:
                continue
            yield from self._take(buffer, decode)
            wanted = min(max(CHUNK, 2 * len(buffer)), _MOST_BLOCK)
        if not self.ended and len(buffer) > _LITTLE:
            yield from self._take(buffer, decode)
        while not self.ended and buffer:
            before = len(buffer)
            yield from self._take_exactly(buffer)
            if len(buffer) == before:
                return

    def _take(self, buffer: bytearray, decode: Callable[[bytes], _Block]) -> Iterator[_Block | list[Event]]:
        """Decode up to the last event that seems whole, and take it off the buffer."""
        end, following = likely_end(buffer)
        if end:
            try:
                with memoryview(buffer) as view, view[:end] as events:
                    text = b"".join((b"[", events, b"]"))
                block = decode(text)
            except (msgspec.DecodeError, UnicodeDecodeError):
                pass
            else:
                del buffer[:following]
                yield block
                return
        yield from self._take_exactly(buffer)

    def _take_exactly(self, buffer: bytearray) -> Iterator[list[Event]]:
        """Decode the objects one by one, leaving out what can't be read, and take them off the buffer."""
        found = scan(buffer)
        events = []
        for begin, end in found.objects:
            event = decode_one(bytes(buffer[begin:end]))
            if event is None:
                self._unreadable += 1
            else:
                events.append(event)
        self.ended = found.array_end is not None
        del buffer[: found.rest]
        if not self.ended:
            comma = bytes(buffer[:64]).lstrip()
            if comma.startswith(b","):
                del buffer[: buffer.index(b",") + 1]
        if events:
            yield events


def _salvaged(intact: zlib._Decompress, packed: bytes) -> bytes:
    """What can be inflated before the damage: zlib gives nothing of a piece that it fails in, so byte by byte."""
    found = bytearray()
    try:
        for position in range(len(packed)):
            found += intact.decompress(packed[position : position + 1])
    except zlib.error:
        pass
    return bytes(found)


def _header(head: bytes, tail: bytes) -> dict[str, Any]:
    """What stands beside the events in the trace's object; empty where that can't be read or there is none."""
    for text in (head + tail, head + b"]}"):
        try:
            content = decode_value(text)
        except msgspec.DecodeError:
            continue
        if isinstance(content, dict):
            return {key: value for key, value in content.items() if key != "traceEvents"}
    return {}
