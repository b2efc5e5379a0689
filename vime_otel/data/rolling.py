"""Rolling recordings: one a UTC day, into which every engine that samples its steps sends them."""

from __future__ import annotations

import hashlib
from datetime import date


def rolling_id(day: date) -> str:
    """The id of a day's rolling recording, 16 hex digits; recorders and collectors derive the same one."""
    return hashlib.sha256(f"rolling/{day.isoformat()}".encode()).hexdigest()[:16]
