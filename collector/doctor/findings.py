"""What a check found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from vime_otel.data.errors import VimeOtelError

Level = Literal["ok", "note", "mend"]
_NAMED = 3


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at: fine, worth knowing, or to be mended; `fix` says how."""

    level: Level
    subject: str
    text: str
    fix: str = ""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def ok(subject: str, text: str) -> Finding:
    """Something that is as it should be."""
    return Finding("ok", subject, text)


def note(subject: str, text: str, fix: str = "") -> Finding:
    """Something that is worth knowing."""
    return Finding("note", subject, text, fix)


def mend(subject: str, text: str, fix: str) -> Finding:
    """Something that keeps a command from working."""
    return Finding("mend", subject, text, fix)


def from_error(subject: str, error: VimeOtelError) -> Finding:
    """An error as something to be mended: its text says what happened, and after a `;` the way out."""
    what, _, way_out = str(error).partition("; ")
    return mend(subject, what, way_out)


def listed(names: Sequence[str]) -> str:
    """The first few of what a finding is about, and how many there are besides."""
    first = ", ".join(names[:_NAMED])
    return first + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
