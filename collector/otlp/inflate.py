"""Inflating gzip and deflate piece by piece, no further than a bound."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

GZIP = "gzip"
DEFLATE = "deflate"
_WINDOWS = {GZIP: 16 + zlib.MAX_WBITS, DEFLATE: zlib.MAX_WBITS}
_MOST_MEMBERS = 1000
"""A stream of more costs more than it can hold."""

PIECE_BYTES = 1024 * 1024


class Unreadable(Exception):
    """The bytes are not what their encoding says, or cut off."""


class Inflation:
    """Inflates a stream of one or more members, as GZIP or DEFLATE."""

    def __init__(self, encoding: str) -> None:
        self._encoding = encoding
        self._window = _WINDOWS[encoding]
        self._member = zlib.decompressobj(self._window)
        self._members = 1
        self._started = False

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """What `chunk` inflates to, in pieces of at most PIECE_BYTES; whoever has enough stops asking.

        Raises Unreadable.
        """
        while chunk:
            self._started = True
            if self._member.eof:
                self._members += 1
                if self._members > _MOST_MEMBERS:
                    raise Unreadable(f"a {self._encoding} stream of more than {_MOST_MEMBERS} members")
                self._member = zlib.decompressobj(self._window)
            yield from self._inflate(chunk)
            chunk = self._member.unused_data

    def finish(self) -> None:
        """Raise Unreadable where the stream does not end here."""
        if self._started and not self._member.eof:
            raise Unreadable(f"a {self._encoding} stream that is cut off")

    def _inflate(self, chunk: bytes) -> Iterator[bytes]:
        """The pieces of one member."""
        full = True
        while full:
            try:
                piece = self._member.decompress(chunk, PIECE_BYTES)
            except zlib.error as error:
                raise Unreadable(f"not {self._encoding}: {error}") from error
            chunk = self._member.unconsumed_tail
            full = len(piece) == PIECE_BYTES
            yield piece
