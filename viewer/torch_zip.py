"""Several torch traces as one ZIP, which Perfetto opens as a merged timeline (from v58 on)."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

_CHUNK = 1 << 20


def zip_of(traces: Sequence[tuple[str, Path]]) -> Iterator[bytes]:
    """The ZIP of (name, file) pairs, piece by piece; what is compressed already is stored as it is.

    A name's folders become part of it: Perfetto shows the last part only.
    """
    pieces = _Pieces()
    with zipfile.ZipFile(pieces, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for name, path in traces:
            entry = zipfile.ZipInfo(name.replace("/", "_"))
            with path.open("rb") as source, archive.open(entry, "w", force_zip64=True) as target:
                while chunk := source.read(_CHUNK):
                    target.write(chunk)
                    yield pieces.take()
            yield pieces.take()
    yield pieces.take()


class _Pieces(io.RawIOBase):
    """A stream that can only be written, and gives what was written so far."""

    def __init__(self) -> None:
        self._written: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, content: bytes) -> int:  # type: ignore[override]
        self._written.append(bytes(content))
        return len(content)

    def take(self) -> bytes:
        """All that was written since the last time."""
        content, self._written = b"".join(self._written), []
        return content
