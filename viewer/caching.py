"""Answers that are made once and sent small: kept by what they are made of, named by an ETag, compressed."""

from __future__ import annotations

import gzip
import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from flask import Flask, Response, request

_KEPT_BYTES = 64 * 1024 * 1024
_LEAST_BYTES = 1024
_COMPRESSED = ("text/", "application/json", "image/svg+xml")
_LEVEL = 1
"""Higher levels take longer to make than a local network takes to send what they save."""


@dataclass(frozen=True)
class Body:
    """An answer's content, as it is and compressed, and the tag of its version."""

    plain: bytes
    packed: bytes
    etag: str


class BodyCache:
    """The latest bodies, as many as fit."""

    def __init__(self, most_bytes: int = _KEPT_BYTES) -> None:
        self._most = most_bytes
        self._bodies: OrderedDict[str, Body] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()

    def json(self, key: str, make: Callable[[], bytes]) -> Response:
        """The JSON that `make` gives, or that it gave for this key; 304 where the browser has it."""
        etag = hashlib.sha256(key.encode()).hexdigest()[:20]
        if etag in request.if_none_match:
            response = Response(status=304)
        else:
            body = self._find(etag) or self._keep(etag, make())
            packed = _wants_gzip()
            response = Response(body.packed if packed else body.plain, mimetype="application/json")
            if packed:
                response.headers["Content-Encoding"] = "gzip"
            response.headers["X-Content-Bytes"] = str(len(body.plain))
        response.set_etag(etag)
        response.headers["Cache-Control"] = "private, no-cache"
        response.headers["Vary"] = "Accept-Encoding"
        return response

    def _find(self, etag: str) -> Body | None:
        with self._lock:
            if etag in self._bodies:
                self._bodies.move_to_end(etag)
            return self._bodies.get(etag)

    def _keep(self, etag: str, content: bytes) -> Body:
        body = Body(content, gzip.compress(content, _LEVEL, mtime=0), etag)
        size = len(body.plain) + len(body.packed)
        with self._lock:
            if size <= self._most and etag not in self._bodies:
                self._bodies[etag] = body
                self._size += size
            while self._size > self._most:
                _, oldest = self._bodies.popitem(last=False)
                self._size -= len(oldest.plain) + len(oldest.packed)
        return body


def compress(app: Flask) -> None:
    """Compress whatever text is sent and is not compressed yet."""

    @app.after_request
    def pack(response: Response) -> Response:
        if "Cache-Control" not in response.headers:
            response.headers["Cache-Control"] = "private, no-cache"
        fits = (
            response.status_code == 200
            and not response.direct_passthrough
            and "Content-Encoding" not in response.headers
        )
        if not fits or not (response.mimetype or "").startswith(_COMPRESSED):
            return response
        response.headers.add("Vary", "Accept-Encoding")
        if _wants_gzip() and len(response.get_data()) >= _LEAST_BYTES:
            response.set_data(gzip.compress(response.get_data(), _LEVEL, mtime=0))
            response.headers["Content-Encoding"] = "gzip"
        return response


def _wants_gzip() -> bool:
    return bool(request.accept_encodings["gzip"])
