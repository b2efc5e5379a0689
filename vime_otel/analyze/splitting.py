"""Where the events of a trace begin and end in its text, found without decoding it.

`likely_end` is quick and may be wrong, which shows when the piece is decoded; `scan` reads every string and bracket.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field

# An object ends, the next begins with one of the keys that events begin with.
_BETWEEN_EVENTS = re.compile(rb'\}(\s*,\s*)\{\s*"(?:ph|name|cat|pid|tid|ts|args|id|dur)"')
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\]]|"', re.DOTALL)
_TAIL = 4 * 1024


def likely_end(text: bytes | bytearray) -> tuple[int, int]:
    """(end of the last event that another seems to follow, begin of that other one); (0, 0) where there is none."""
    for begin in (max(len(text) - _TAIL, 0), max(len(text) - 16 * _TAIL, 0), 0):
        found = deque(_BETWEEN_EVENTS.finditer(text, begin), maxlen=1)
        if found:
            return found[0].start(1), found[0].end(1)
    return 0, 0


@dataclass
class Scanned:
    """(begin, end) of each whole object of a text; where the array ends, None if it doesn't; the rest's begin."""

    objects: list[tuple[int, int]] = field(default_factory=list)
    array_end: int | None = None
    rest: int = 0


def scan(text: bytes | bytearray) -> Scanned:
    """Find the objects of an array whose inside `text` is the beginning of."""
    found = Scanned()
    depth = begin = 0
    for token in _TOKEN.finditer(text):
        mark = text[token.start()]
        if mark in b"{[":
            if depth == 0:
                begin = token.start()
            depth += 1
        elif mark in b"}]":
            depth -= 1
            if depth < 0:
                found.array_end = found.rest = token.start()
                return found
            if depth == 0:
                found.objects.append((begin, token.end()))
                found.rest = token.end()
        elif token.end() - token.start() == 1:  # a string that does not end here
            break
    return found


def array_begin(text: bytes | bytearray) -> int | None:
    """Where the inside of the event array begins: that of `traceEvents`, or the text's own; None if not here yet."""
    tokens = _TOKEN.finditer(text)
    first = next(tokens, None)
    if first is None:
        return None
    if text[first.start()] == ord("["):
        return first.end()
    depth, key_end = 1, -1
    for token in tokens:
        mark = text[token.start()]
        if mark == ord('"'):
            if depth == 1 and token.group() == b'"traceEvents"':
                key_end = token.end()
            continue
        if mark == ord("[") and depth == 1 and text[key_end : token.start()].strip() == b":":
            return token.end()
        depth += 1 if mark in b"{[" else -1
    return None
