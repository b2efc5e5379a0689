"""Days as runs are kept by: of UTC, whatever a machine's time zone is."""

from __future__ import annotations

from datetime import date, datetime, timezone


def utc_today() -> date:
    """The day that it is."""
    return datetime.now(timezone.utc).date()
