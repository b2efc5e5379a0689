"""A trace file as columns, decoded here or, where it is large, by helper processes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import msgspec

from .columns import Columns, ColumnsBuilder
from .events import Event, decode_block
from .reading import TraceReader
from .workers import process_pool

LARGE = {".gz": 16 * 2**20}
"""From this size on helpers pay, by suffix; without it LARGE_TEXT."""
LARGE_TEXT = 128 * 2**20
_WAITING_BLOCKS = 3
"""Blocks that a helper may have before it, so that memory does not follow the file's size."""


def read(path: Path, advance: Callable[[int], None], helpers: int) -> tuple[TraceReader, Columns]:
    """(the reader, with header and problems; the file's events). Raises OSError where it can't be read."""
    if helpers > 1 and path.stat().st_size >= LARGE.get(path.suffix, LARGE_TEXT):
        try:
            return _with_helpers(path, advance, helpers)
        except msgspec.DecodeError:  # a block needs a closer look, and what follows depends on it
            advance(-path.stat().st_size)
    reader, builder = TraceReader(path, advance), ColumnsBuilder()
    for block in reader.blocks(decode_block):
        builder.add(block)
    return reader, builder.columns


def _with_helpers(path: Path, advance: Callable[[int], None], helpers: int) -> tuple[TraceReader, Columns]:
    reader, builder = TraceReader(path, advance), ColumnsBuilder()
    waiting: deque[Future[Columns]] = deque()
    with process_pool(helpers) as pool:

        def decode(content: bytes) -> Future[Columns] | list[Event]:
            if not builder.has_origin:
                return decode_block(content)
            origin = builder.columns.origin_us, builder.columns.coarse
            return pool.submit(_reduce_block, content, origin)

        try:
            for block in reader.blocks(decode):
                if isinstance(block, list):
                    _merge(builder, waiting, 0)
                    builder.add(block)
                else:
                    waiting.append(block)
                    _merge(builder, waiting, helpers * _WAITING_BLOCKS)
            _merge(builder, waiting, 0)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return reader, builder.columns


def _merge(builder: ColumnsBuilder, waiting: deque[Future[Columns]], most: int) -> None:
    """Take results, in the order of the file, until no more than `most` are waited for."""
    while len(waiting) > most:
        builder.merge(waiting.popleft().result())


def _reduce_block(content: bytes, origin: tuple[int, bool]) -> Columns:
    """In a helper: one block as columns."""
    builder = ColumnsBuilder(origin)
    builder.add(decode_block(content))
    return builder.columns
