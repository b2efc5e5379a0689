"""Links from a run's steps to the same steps as traces elsewhere."""

from __future__ import annotations

from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from .errors import UsageError

PLACE = "{trace_id}"


def parse_trace_link(text: str) -> str:
    """A template such as `http://jaeger:16686/trace/{trace_id}`; raises UsageError for anything else.

    It is shown in pages, so it has to be a web address, and one without a password.
    """
    try:
        parts = urlsplit(text)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        raise UsageError(f"{text!r} is no link such as http://127.0.0.1:16686/trace/{PLACE}") from None
    if parts.username is not None:
        raise UsageError("the link has a user in it, which everybody who sees a run would see; leave it out")
    if not valid or PLACE in parts.netloc or not text.isprintable() or " " in text:
        raise UsageError(f"{text!r} is no link such as http://127.0.0.1:16686/trace/{PLACE}")
    if PLACE not in text:
        raise UsageError(f"{text!r} has no {PLACE}, where each step's trace id is to stand")
    return text


def trace_link_of(header: dict[str, Any], chosen: str = "") -> str | None:
    """The template that opens a run's traces: the chosen one, else the run's own; None where that is no link."""
    with suppress(UsageError):
        return parse_trace_link(chosen or header.get("trace_link") or "")
    return None
