"""The folded format: `frame;frame;frame <integer>` lines, sorted; see docs/formats.md.

`.folded` files hold self time in microseconds, `.calls` files counts. In memory a stack is its
escaped text (`step;execute_model;…`), so that it can be compared, summed and sent as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from .errors import VimeOtelError

# `%` first when escaping, last when reading: the escapes themselves contain it.
_ESCAPES = (("%", "%25"), (";", "%3B"), ("\n", "%0A"), ("\r", "%0D"))


_MOST_DIGITS = 18
"""More do not fit 64 bits."""

_MOST_CHARACTERS = 2**29
"""Of all stacks that are summed, the implied ones, too: a few stacks of 100,000 frames would imply gigabytes."""

# Before the colon a dot stands in the frames of numbered layers only: `layers.3:Qwen3MoeDecoderLayer`.
_LAYER = re.compile(r"(^|;)([^;:]*)\.([0-9]{1,9}):")


def escape_frame(name: str) -> str:
    """The frame's name as it stands in a stack: no `;`, no line break."""
    for raw, escaped in _ESCAPES:
        name = name.replace(raw, escaped)
    return name


def unescape_frame(frame: str) -> str:
    """The name that `escape_frame` was given."""
    for raw, escaped in reversed(_ESCAPES):
        frame = frame.replace(escaped, raw)
    return frame


@lru_cache(maxsize=2**17)
def merge_layers(stack: str) -> str:
    """The stack in which all layers of a class are one frame: `layers.3:DecoderLayer` becomes `DecoderLayer`."""
    return _LAYER.sub(r"\1", stack)


def layers_of(stack: str) -> tuple[tuple[str, int], ...]:
    """The numbered layers that a stack passes, outermost first: `layers.3` is ("layers", 3)."""
    return tuple((name, int(number)) for _, name, number in _LAYER.findall(stack))


@dataclass
class Folded:
    """Inclusive nanoseconds and calls by stack. Adding and merging commute."""

    inclusive_ns: dict[str, int] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)

    def add(self, stack: str, inclusive_ns: int, calls: int = 1) -> None:
        """Add `inclusive_ns` spent in `calls` calls of the last frame of `stack`."""
        self.inclusive_ns[stack] = self.inclusive_ns.get(stack, 0) + inclusive_ns
        self.calls[stack] = self.calls.get(stack, 0) + calls

    def merge(self, other: Folded) -> None:
        """Add all of `other`."""
        for stack, inclusive_ns in other.inclusive_ns.items():
            self.add(stack, inclusive_ns, other.calls[stack])

    def divided(self, parts: int) -> Folded:
        """The mean over `parts`, each value rounded to the nearest integer."""
        half = parts // 2
        return Folded(
            {stack: (value + half) // parts for stack, value in self.inclusive_ns.items()},
            {stack: (value + half) // parts for stack, value in self.calls.items()},
        )

    def self_ns(self) -> dict[str, int]:
        """Time in the last frame itself, by stack: inclusive less the direct children's.

        Overlapping children can exceed their parent; the parent's self time is then 0 and
        `overlap_ns` tells by how much.
        """
        return {stack: max(value, 0) for stack, value in self._signed_self_ns().items()}

    def overlap_ns(self) -> int:
        """By how much children exceed their parents in all; 0 where every tree nests."""
        return -sum(value for value in self._signed_self_ns().values() if value < 0)

    def _signed_self_ns(self) -> dict[str, int]:
        own = dict(self.inclusive_ns)
        for stack, value in self.inclusive_ns.items():
            parent = stack.rpartition(";")[0]
            if parent in own:
                own[parent] -= value
        return own


def inclusive(self_values: Mapping[str, int]) -> dict[str, int]:
    """Inclusive values by stack from self values; stacks that were only implied get entries too.

    Raises VimeOtelError where these would not fit into memory.
    """
    totals: dict[str, int] = {}
    room = _MOST_CHARACTERS
    for stack, value in self_values.items():
        while stack:
            if stack not in totals:
                room -= len(stack)
                if room < 0:
                    raise VimeOtelError(
                        "its stacks are too deep to tell each one's total; the folded format holds them"
                    )
            totals[stack] = totals.get(stack, 0) + value
            stack = stack.rpartition(";")[0]
    return totals


def dumps(values: Mapping[str, int]) -> str:
    """The file's text: one line a stack, sorted."""
    return "".join(f"{stack} {value}\n" for stack, value in sorted(values.items()))


def dumps_self_us(folded: Folded) -> str:
    """A `.folded` file: self time in whole microseconds."""
    return dumps({stack: (value + 500) // 1000 for stack, value in folded.self_ns().items()})


@dataclass
class Parsed:
    """What a folded file holds: values by stack, and how many lines were not in the format."""

    values: dict[str, int]
    invalid_lines: int


def parse(lines: Iterable[str]) -> Parsed:
    """Read folded lines; a line that is not `stack <integer>` is skipped and counted."""
    values: dict[str, int] = {}
    invalid = 0
    for raw in lines:
        line = raw.strip()
        if not line:
            continue
        stack, _, number = line.rpartition(" ")
        if not stack or not (number.isascii() and number.isdigit()) or len(number) > _MOST_DIGITS:
            invalid += 1
            continue
        values[stack] = values.get(stack, 0) + int(number)
    return Parsed(values, invalid)
