"""Windows that wait in outboxes: where they lie on a disk, and the spans that come of them."""

from __future__ import annotations

from pathlib import Path

from vime_otel.data.folders import files_below
from vime_otel.recorder.assemble import assemble
from vime_otel.recorder.window import Window


def windows_below(folder: Path) -> list[Path]:
    """The files of windows that wait in any outbox below a folder; outboxes may go meanwhile."""
    return [path for path in files_below(folder) if path.suffix == ".window"]


def span_ids(of: Window) -> list[list[bytes]]:
    """Of each step, the roots' left out."""
    return [[span.span_id for part in step.parts for span in part.spans] for step in assemble(of)]


def every_span_id(of: Window) -> list[bytes]:
    """Sorted, the roots' included."""
    return sorted([*(step.root.span_id for step in assemble(of)), *(each for step in span_ids(of) for each in step)])
