"""Names from traces as text that can be shown."""

from __future__ import annotations

import re

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def printable(text: str) -> str:
    """The text without control characters, which could steer a terminal; each stands as U+FFFD."""
    return _CONTROL.sub("\ufffd", text)
