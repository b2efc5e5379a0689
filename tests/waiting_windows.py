"""What waits in outboxes on a disk."""

from __future__ import annotations

from pathlib import Path

from vime_otel.data.folders import files_below


def windows_below(folder: Path) -> list[Path]:
    """The files of windows that wait in any outbox below a folder; outboxes may go meanwhile."""
    return [path for path in files_below(folder) if path.suffix == ".window"]
