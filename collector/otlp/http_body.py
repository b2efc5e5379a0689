"""Reading a request's body: bounded, and inflated no further than the bound."""

from __future__ import annotations

from aiohttp import web

from .inflate import DEFLATE, GZIP, Inflation, Unreadable
from .limits import Room


class BodyTooLarge(Exception):
    """The body, or what it inflates to, exceeds the bound."""


class BodyUnreadable(Exception):
    """The body is not what its Content-Encoding says, or it does not come."""


class UnknownEncoding(Exception):
    """A Content-Encoding other than identity, gzip and deflate."""


async def read_body(request: web.Request, limit: int, room: Room | None = None) -> bytes:
    """The decompressed body; what it takes is taken of `room`.

    Raises BodyTooLarge, BodyUnreadable, UnknownEncoding, or Overloaded where there is no room.
    """
    encoding = request.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding not in ("identity", "", GZIP, DEFLATE):
        raise UnknownEncoding(f"Content-Encoding {encoding!r} is not supported; send identity, {GZIP} or {DEFLATE}")
    inflation = Inflation(encoding) if encoding in (GZIP, DEFLATE) else None
    announced = request.content_length or 0
    if announced > limit:
        raise BodyTooLarge(f"the request has more than {limit} bytes")
    if room is not None:
        await room.take(announced)
    pieces: list[bytes] = []
    raw = size = 0
    try:
        async for chunk in request.content.iter_any():
            raw += len(chunk)
            for piece in inflation.feed(chunk) if inflation else (chunk,):
                pieces.append(piece)
                size += len(piece)
                if raw > limit or size > limit:
                    raise BodyTooLarge(f"the request has more than {limit} bytes, or inflates to more")
                if room is not None and size > announced:
                    await room.take(size)
        if inflation:
            inflation.finish()
    except Unreadable as error:
        raise BodyUnreadable(f"the body is {error}") from error
    return b"".join(pieces)
