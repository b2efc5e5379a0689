"""Makes a large trace of a real one: its events again and again, each time later, with correlations of their own."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

from vime_otel.analyze.splitting import scan

_ARRAY = re.compile(rb'"traceEvents"\s*:\s*\[')
# The integers that must differ from repetition to repetition: times in whole microseconds, and what links events.
_NUMBER = re.compile(rb'("ts": |"correlation": |"External id": |"id": |ProfilerStep#)(\d+)')


def read_text(path: Path) -> bytes:
    """A trace's JSON."""
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()


def repeat(seed: Path, target: Path, size: int) -> tuple[int, int]:
    """Write `target` with at least `size` bytes; (its bytes, how often the events of `seed` stand in it)."""
    text = read_text(seed)
    opening = _ARRAY.search(text)
    if opening is None:
        raise SystemExit(f"{seed} has no traceEvents")
    closing = scan(text[opening.end() :]).array_end
    if closing is None:
        raise SystemExit(f"{seed} is cut off")
    closing += opening.end()
    inside = text[opening.end() : closing].strip()
    constants, numbers = _split(inside)
    spans = [number for constant, number in zip(constants, numbers, strict=False) if constant.endswith(b'"ts": ')]
    shifts = {b"ts": max(spans) - min(spans) + 1000, b"other": max(numbers) + 1}
    repetitions = -(-size // len(inside))
    with open(target, "wb") as file:
        file.write(text[: opening.end()])
        for repetition in range(repetitions):
            file.write(b",\n" if repetition else b"")
            file.write(_shifted(constants, numbers, repetition, shifts))
        file.write(text[closing:])
        return file.tell(), repetitions


def _split(inside: bytes) -> tuple[list[bytes], list[int]]:
    """What stays, and the numbers between; one constant more than numbers."""
    constants, numbers, position = [], [], 0
    for found in _NUMBER.finditer(inside):
        constants.append(inside[position : found.start(2)])
        numbers.append(int(found.group(2)))
        position = found.end()
    constants.append(inside[position:])
    return constants, numbers


def _shifted(constants: list[bytes], numbers: list[int], repetition: int, shifts: dict[bytes, int]) -> bytes:
    links = 1_000_000 * repetition
    time = shifts[b"ts"] * repetition
    pieces = [
        b"%b%d" % (constant, number + (time if constant.endswith(b'"ts": ') else links))
        for constant, number in zip(constants, numbers, strict=False)
    ]
    return b"".join([*pieces, constants[-1]])
