"""The journal of accepted OTLP requests (`spans.otlp`); see docs/formats.md.

A file is the header `VOTJ\\x01` and then frames: length of the payload (u32), CRC-32 of signal and
payload (u32), signal (u8: 1 traces, 2 logs), payload; little endian. A torn or damaged tail ends
the reading and is told, never raised.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from .errors import VimeOtelError

MAGIC = b"VOTJ\x01"
TRACES = 1
LOGS = 2
_FRAME = struct.Struct("<IIB")
HEADER_BYTES = _FRAME.size
"""What a frame has besides its payload."""

_MOST_BUFFERS = 512
"""For one system call; the least that systems allow is 16, Linux has 1024."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One accepted request: its signal (TRACES or LOGS) and its protobuf bytes."""

    signal: int
    payload: bytes

    @property
    def size(self) -> int:
        """The bytes that it takes in a journal."""
        return HEADER_BYTES + len(self.payload)


def checksum(signal: int, payload: bytes) -> int:
    """The CRC-32 that stands in the frame of a request."""
    return zlib.crc32(payload, zlib.crc32(bytes((signal,))))


class JournalWriter:
    """Appends frames to a journal, making the file if need be.

    What fails is taken back, so that no half frame ever hides the later ones from readers.
    """

    def __init__(self, path: Path, end: int | None = None):
        """`end`: where the last whole frame ends, of a file that is there; what follows is cut off."""
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            self.size = os.fstat(self._file).st_size
            """Bytes of the header and of all whole frames."""
            if end is not None and end < self.size:
                os.ftruncate(self._file, end)
                self.size = end
            if self.size < len(MAGIC):
                os.ftruncate(self._file, 0)
                self.size = 0
                self._write([MAGIC])
        except BaseException:
            os.close(self._file)
            raise

    def append(self, signal: int, payload: bytes) -> None:
        """Add one accepted request; the kernel has it then. Raises OSError when the disk refuses it."""
        self.extend([(signal, checksum(signal, payload), payload)])

    def extend(self, requests: Sequence[tuple[int, int, bytes]]) -> None:
        """Add requests, each as (signal, `checksum`, payload): all of them, or none and OSError."""
        buffers: list[bytes] = []
        for signal, crc, payload in requests:
            buffers += (_FRAME.pack(len(payload), crc, signal), payload)
        self._write(buffers)

    def sync(self) -> None:
        """Bring everything to the disk. Raises OSError, and then nobody knows what is there."""
        os.fdatasync(self._file)

    def cut(self, end: int) -> None:
        """Take back what follows `end`, an earlier `size`. Raises OSError."""
        os.ftruncate(self._file, end)
        self.size = end

    def close(self) -> None:
        """Bring everything to the disk and close. Raises OSError."""
        try:
            os.fsync(self._file)
        finally:
            os.close(self._file)

    def _write(self, buffers: Sequence[bytes]) -> None:
        start = self.size
        try:
            for first in range(0, len(buffers), _MOST_BUFFERS):
                self._write_some(buffers[first : first + _MOST_BUFFERS])
        except OSError:
            self.cut(start)
            raise

    def _write_some(self, buffers: Sequence[bytes]) -> None:
        wanted = sum(map(len, buffers))
        written = os.writev(self._file, buffers)
        if written < wanted:
            rest = memoryview(b"".join(buffers))[written:]
            while rest:
                rest = rest[os.write(self._file, rest) :]
        self.size += wanted


class JournalReader:
    """Reads a journal's frames. `offset` is where the last one that was read ends.

    Iterating again goes on from there, so that a growing file can be followed: what is torn at its
    end may be whole by then. `torn_bytes` tells how much of the tail could not be read.
    """

    def __init__(self, path: Path, offset: int = 0):
        """`offset`: where to begin, one that an earlier reader had; 0 is the beginning."""
        self._path = path
        self.offset = offset
        self.torn_bytes = 0

    def __iter__(self) -> Iterator[Frame]:
        """The frames from `offset` on. Raises VimeOtelError for what is no journal, OSError for what can't be read."""
        with open(self._path, "rb") as file:
            begin = file.read(len(MAGIC))
            if not MAGIC.startswith(begin):
                raise VimeOtelError(f"{self._path} is not a journal of this version of vime-otel")
            if begin != MAGIC:  # whoever made it was cut off, or is at it
                self.torn_bytes = len(begin)
                return
            self.offset = max(self.offset, len(MAGIC))
            file.seek(self.offset)
            while frame := _read_frame(file.read):
                self.offset += frame.size
                yield frame
            self.torn_bytes = max(os.fstat(file.fileno()).st_size - self.offset, 0)


def _read_frame(read: Callable[[int], bytes]) -> Frame | None:
    """The next frame; None where there is none that is whole."""
    header = read(HEADER_BYTES)
    if len(header) < HEADER_BYTES:
        return None
    length, crc, signal = _FRAME.unpack(header)
    payload = read(length)
    return Frame(signal, payload) if len(payload) == length and checksum(signal, payload) == crc else None
