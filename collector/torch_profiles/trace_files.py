"""The files that torch profilers write: which are new, whose they are, and whether they are whole."""

from __future__ import annotations

import asyncio
import gzip
import os
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from vime_otel.data.errors import VimeOtelError
from vime_otel.data.folders import files_below
from vime_otel.data.texts import printable

SUFFIXES = (".trace.json", ".trace.json.gz")
BROWSER_BYTES = 1 << 30
"""Of uncompressed JSON; a browser's Perfetto gives up somewhere above, for lack of memory."""

UNREADABLE = "can't be read"
NO_EVENTS = "it holds no events: no step was made while it ran, or it is no trace"
_CHUNK = 1 << 20
_OVERLAP = 64
_STILL_S = 1.0
_LOOK_S = 0.2
_RANK = re.compile(r"(?:^|[_-])rank[_-]?(?P<rank>\d+)(?=[._-]|$)")
_TIMESTAMP = re.compile(rb'"ts":\s*(\d{1,16}(?:\.\d{1,9})?)(?=[\s,}])')
_BASE = re.compile(rb'"baseTimeNanoseconds":\s*(\d{1,19})(?=[\s,}])')
_PROCESS = re.compile(rb'"pid":\s*(\d{1,9})\s*,')

Stamp = tuple[int, int]
"""Size in bytes and time of the last change in nanoseconds."""


@dataclass(frozen=True)
class TraceContent:
    """What reading a trace to its end tells. Sizes in bytes; times in Unix nanoseconds, None where it has none.

    `pid` is the process of the first event. `why` is empty for a whole trace.
    """

    bytes: int
    inflated_bytes: int
    first_unix_nano: int | None = None
    last_unix_nano: int | None = None
    pid: int | None = None
    why: str = ""

    @property
    def whole(self) -> bool:
        """Whether it can be read to its end."""
        return not self.why


def find_traces(directory: Path) -> dict[Path, Stamp]:
    """All traces below a directory; raises VimeOtelError where it is none.

    Links that lead out of it are passed over: who may write there could show files of others with them.
    """
    try:
        readable = directory.is_dir()
    except OSError:
        readable = False
    if not readable:
        raise VimeOtelError(
            f"{printable(str(directory))} is no folder here; name the engines' torch_profiler_dir, as this machine sees"
            " it, with --trace-dir DIR"
        )
    if not os.access(directory, os.R_OK | os.X_OK):
        raise VimeOtelError(f"{directory} can't be read; let this user read it, or run as one who may")
    found: dict[Path, Stamp] = {}
    for path in files_below(directory):
        try:
            if path.name.endswith(SUFFIXES) and path.is_file() and not _leads_out(path, directory):
                status = path.stat()
                found[path] = (status.st_size, status.st_mtime_ns)
        except OSError:
            continue  # it went meanwhile
    return found


def _leads_out(path: Path, directory: Path) -> bool:
    return path.is_symlink() and not path.resolve().is_relative_to(directory.resolve())


def new_since(before: Mapping[Path, Stamp], now: Mapping[Path, Stamp]) -> list[Path]:
    """Those that were not there, or have been written since, in the order of their names."""
    return sorted(path for path, stamp in now.items() if before.get(path) != stamp)


async def wait_until_still(directory: Path, before: Mapping[Path, Stamp], least: int, timeout_s: float) -> list[Path]:
    """The new traces, once there are `least` of them and none has changed for a second, or at the time-out."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    last: dict[Path, Stamp] = {}
    changed = loop.time()
    while True:
        now = await asyncio.to_thread(find_traces, directory)
        if now != last:
            last, changed = now, loop.time()
        new = new_since(before, now)
        if (len(new) >= least and loop.time() - changed >= _STILL_S) or loop.time() >= deadline:
            return new
        await asyncio.sleep(_LOOK_S)


def rank_of(name: str) -> int | None:
    """The rank in a trace's name, `dp0_pp0_tp1_dcp0_ep1_rank3.17….pt.trace.json.gz` or an older form; else None."""
    found = _RANK.search(name)
    return int(found["rank"]) if found else None


def read_trace(path: Path) -> TraceContent:
    """Read a trace to its end, in bounded memory. What is wrong with it is told, never raised."""
    size = inflated = 0
    base = 0
    first = last = None
    pid: int | None = None
    tail = b""
    why = ""
    try:
        size = path.stat().st_size
        for chunk in _inflated(path):
            inflated += len(chunk)
            text = tail + chunk
            if not base and (found := _BASE.search(text)):
                base = int(found[1])
            if pid is None and (found := _PROCESS.search(text)):
                pid = int(found[1])
            for stamp in _TIMESTAMP.finditer(text):
                at = float(stamp[1])
                first = at if first is None or at < first else first
                last = at if last is None or at > last else last
            tail = text[-_OVERLAP:]
        why = _why_not_whole(tail, first is not None)
    except EOFError:
        why = "cut off: the file ends in the middle"
    except (gzip.BadGzipFile, zlib.error) as error:
        why = f"damaged ({error})"
    except OSError as error:
        why = f"{UNREADABLE} ({error.strerror or error})"
    return TraceContent(size, inflated, _unix_nano(first, base), _unix_nano(last, base), pid, why)


def _inflated(path: Path) -> Iterator[bytes]:
    with path.open("rb") as raw:
        packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        stream = gzip.GzipFile(fileobj=raw) if packed else raw
        while chunk := stream.read(_CHUNK):
            yield chunk


def _why_not_whole(tail: bytes, has_events: bool) -> str:
    end = tail.rstrip()
    if not end:
        return "empty"
    if not end.endswith((b"}", b"]")):
        return "cut off: its JSON does not end"
    return "" if has_events else NO_EVENTS


def _unix_nano(microseconds: float | None, base: int) -> int | None:
    """Kineto since torch 2.4 counts from `baseTimeNanoseconds`; before, and where it is 0, from 1970."""
    return None if microseconds is None else base + round(microseconds * 1000)
