"""The journal of accepted OTLP requests (`spans.otlp`); see docs/formats.md.

A file is the header `VOTJ\\x01` and then frames: length of the payload (u32), CRC-32 of signal and
payload (u32), signal (u8: 1 traces, 2 logs), payload; little endian. A torn or damaged tail ends
the reading and is told, never raised.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .errors import VimeOtelError

MAGIC = b"VOTJ\x01"
TRACES = 1
LOGS = 2
_FRAME = struct.Struct("<IIB")


class JournalWriter:
    """Appends frames to a journal, making the file if need be. `append` returns once the kernel has the bytes."""

    def __init__(self, path: Path):
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        if os.fstat(self._file).st_size == 0:
            self._write(MAGIC)

    def append(self, signal: int, payload: bytes) -> None:
        """Add one accepted request. Raises OSError when the disk refuses it."""
        checksum = zlib.crc32(payload, zlib.crc32(bytes([signal])))
        self._write(_FRAME.pack(len(payload), checksum, signal) + payload)

    def close(self) -> None:
        """Bring everything to the disk and close."""
        os.fsync(self._file)
        os.close(self._file)

    def _write(self, content: bytes) -> None:
        start = os.lseek(self._file, 0, os.SEEK_END)
        view = memoryview(content)
        try:
            while view:
                view = view[os.write(self._file, view) :]
        except OSError:
            # Half a frame would hide every later one from readers.
            os.ftruncate(self._file, start)
            raise


@dataclass(frozen=True)
class Frame:
    """One accepted request: its signal (TRACES or LOGS) and its protobuf bytes."""

    signal: int
    payload: bytes


class JournalReader:
    """Reads a journal's frames; afterwards `torn_bytes` tells how much of the tail was unreadable."""

    def __init__(self, path: Path):
        self._path = path
        self.torn_bytes = 0

    def __iter__(self) -> Iterator[Frame]:
        with open(self._path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if file.read(len(MAGIC)) != MAGIC:
                raise VimeOtelError(f"{self._path} is not a journal of this version of vime-otel")
            good = file.tell()
            while header := file.read(_FRAME.size):
                if len(header) < _FRAME.size:
                    break
                length, checksum, signal = _FRAME.unpack(header)
                payload = file.read(length)
                if len(payload) < length or zlib.crc32(payload, zlib.crc32(bytes([signal]))) != checksum:
                    break
                good = file.tell()
                yield Frame(signal, payload)
            self.torn_bytes = size - good
