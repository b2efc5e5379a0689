"""Reading a request's body: bounded, and inflated no further than the bound."""

from __future__ import annotations

import zlib

from aiohttp import web

_GZIP_WINDOW = 16 + zlib.MAX_WBITS


class BodyTooLarge(Exception):
    """The body, or what it inflates to, exceeds the bound."""


class BodyUnreadable(Exception):
    """The body is not what its Content-Encoding says."""


class UnknownEncoding(Exception):
    """A Content-Encoding other than identity and gzip."""


class _Identity:
    def feed(self, chunk: bytes, room: int) -> bytes:
        return chunk

    def finish(self) -> None:
        pass


class _Gunzip:
    """Inflates a gzip stream of one or more members piece by piece."""

    def __init__(self) -> None:
        self._member = zlib.decompressobj(_GZIP_WINDOW)
        self._started = False

    def feed(self, chunk: bytes, room: int) -> bytes:
        """What `chunk` inflates to, cut off one byte beyond `room`."""
        pieces = []
        while chunk and room >= 0:
            if self._member.eof:
                self._member = zlib.decompressobj(_GZIP_WINDOW)
            self._started = True
            try:
                piece = self._member.decompress(chunk, room + 1)
            except zlib.error as error:
                raise BodyUnreadable(f"the body is not gzip: {error}") from error
            pieces.append(piece)
            room -= len(piece)
            chunk = self._member.unused_data or self._member.unconsumed_tail
        return b"".join(pieces)

    def finish(self) -> None:
        if self._started and not self._member.eof:
            raise BodyUnreadable("the body is a gzip stream that is cut off")


async def read_body(request: web.Request, limit: int) -> bytes:
    """The decompressed body. Raises BodyTooLarge, BodyUnreadable or UnknownEncoding."""
    encoding = request.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding not in ("identity", "gzip", ""):
        raise UnknownEncoding(f"Content-Encoding {encoding!r} is not supported; send identity or gzip")
    decoder = _Gunzip() if encoding == "gzip" else _Identity()
    if request.content_length is not None and request.content_length > limit:
        raise BodyTooLarge(f"the request has more than {limit} bytes")
    pieces: list[bytes] = []
    raw = inflated = 0
    async for chunk in request.content.iter_any():
        raw += len(chunk)
        piece = decoder.feed(chunk, limit - inflated)
        inflated += len(piece)
        if raw > limit or inflated > limit:
            raise BodyTooLarge(f"the request has more than {limit} bytes, or inflates to more")
        pieces.append(piece)
    decoder.finish()
    return b"".join(pieces)
