"""Everything that a collector counts, as plain integers; `/metrics` shows them.

Items are spans and log records. Of every signal, `accepted = kept + duplicate + dropped` holds at any
moment: accepted are the items of requests that were answered with success, and each of them was summed,
had been summed before, or was passed over for a reason that the answer's `partial_success` told.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

GRPC = "grpc"
HTTP = "http"


@dataclass
class Counts:
    """Keys: `signal` is `spans` or `log_records`, `transport` GRPC or HTTP."""

    requests: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(signal, transport) → requests that were answered with success."""
    accepted: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(signal, transport) → items of these."""
    received_bytes: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(signal, transport) → their bytes, after decompression."""
    refused: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """(signal, transport, reason) → requests that were answered with an error; REFUSALS lists the reasons."""

    kept: Counter[str] = field(default_factory=Counter)
    """signal → items that were summed."""
    duplicate: Counter[str] = field(default_factory=Counter)
    """signal → items that had been summed before."""
    dropped: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(signal, reason) → items that were passed over; DROPS lists the reasons."""

    journal_bytes: int = 0
    """Written into journals since the start, frames included."""
    journal_commits: int = 0
    """Group commits: one write and one sync for all requests that had come meanwhile."""
    journal_sync_ns: int = 0
    """Time that these took, in nanoseconds."""
    journal_failures: int = 0
    """Group commits that the disk refused."""
    torn_bytes: int = 0
    """Cut off from the ends of journals at the start."""

    pending_requests: int = 0
    """Requests that are being read, written or summed right now."""
    pending_bytes: int = 0
    """What they take of the memory that is set aside for them."""
    memory_limit_bytes: int = 0
    """How much that is; beyond, requests are refused until others are done."""

    recordings: Counter[str] = field(default_factory=Counter)
    """State (`waiting`, `recording`, `finishing`, `done`, `failed`) → recordings of this collector's life in it."""
    recorders_connected: int = 0
    """Recorders that were heard within the last minute."""
    polls_waiting: int = 0
    """Long polls that are open right now."""

    foreign_services: int = 0
    """Services whose spans fold today."""
    foreign_open_spans: int = 0
    """Spans of traces that may still grow."""


REFUSALS = ("malformed", "too_large", "overload", "disk", "stopping", "unauthenticated", "unsupported", "fault")
"""Why a request is refused; `overload`, `disk` and `stopping` are retryable."""

DROPS = ("no_recording", "malformed", "not_kept", "too_many_services")
"""Why an item is passed over: nobody asked for it, it can't be read, a rolling recording keeps totals
alone (`not_kept`: its spans), or more services send spans than one day holds."""
