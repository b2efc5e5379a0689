"""The names of a run's files; see docs/formats.md."""

from __future__ import annotations

FORMAT = 1
HEADER_FILE = "recording.json"
"""Written last: a folder without it is no run."""

STEPS_FILE = "steps.json"
TOTALS_FILE = "totals.sqlite"
JOURNAL_FILE = "spans.otlp"
OPEN_FILE = "open.json"
"""There while a collector records into the run; the collector holds a lock on it."""

CURSOR_FILES = "forward-*.json"
"""How far a run's spans went on to each endpoint."""

TORCH_DIR = "torch"
MANIFEST_FILE = "manifest.json"
"""In TORCH_DIR: what each trace is."""

FOLDED_FILES = ("folded", "calls")
"""A kind's two files: self time in microseconds, and calls."""


def folded_name(kind: str, suffix: str, by_layer: bool) -> str:
    """The name of one of a kind's FOLDED_FILES, also within a rank's folder."""
    return f"{kind}.layers.{suffix}" if by_layer else f"{kind}.{suffix}"
