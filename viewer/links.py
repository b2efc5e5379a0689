"""Addresses of other programs that a step's trace is opened in."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from vime_otel.data.errors import UsageError

PLACE = "{trace_id}"


def trace_template(text: str) -> str:
    """The URL with `{trace_id}` in it; UsageError for one that is not http or https, or holds no such place."""
    if not _is_link(text):
        raise UsageError(f"{text!r} is no link to traces such as http://127.0.0.1:16686/trace/{PLACE}")
    return text


def trace_link_of(header: dict[str, Any], chosen: str) -> str | None:
    """The template that opens a run's traces: the viewer's own, else the run's if it is one, else None."""
    told = chosen or header.get("trace_link") or ""
    return told if _is_link(told) else None


def _is_link(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and PLACE in text and text.isprintable()
    except ValueError:
        return False
