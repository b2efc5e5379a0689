"""Values as people read them; the filters of the templates."""

from __future__ import annotations

from datetime import datetime, timezone


def ms(value: float) -> str:
    """Milliseconds with three digits that matter."""
    return f"{value:.1f}" if value >= 100 else f"{value:.2f}" if value >= 1 else f"{value:.3f}"


def percent(share: float) -> str:
    """A share from 0 to 1."""
    return f"{share:.1%}"


def count(value: float) -> str:
    """A number of calls or tokens, which need not be whole."""
    return f"{value:,.0f}" if value == round(value) else f"{value:,.1f}"


def size(value: int) -> str:
    """A number of bytes."""
    amount = float(value)
    for unit in ("B", "KiB", "MiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} GiB"


def moment(text: str | None) -> str:
    """An ISO time as UTC to the second; what is no time stays as it is."""
    try:
        parsed = datetime.fromisoformat(str(text).replace("Z", "+00:00"))
        if parsed.tzinfo:
            parsed = parsed.astimezone(timezone.utc)
    except (ValueError, OverflowError):  # the year 1, a day earlier in UTC
        return str(text or "—")
    return f"{parsed:%Y-%m-%d %H:%M:%S} UTC"


FILTERS = {"ms": ms, "percent": percent, "count": count, "size": size, "moment": moment}
