"""Looking through folders that others write to and clear at the same time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def files_below(folder: Path) -> Iterator[Path]:
    """Every entry below that is no folder, in no order; links to folders aren't followed.

    Unlike `Path.rglob` it passes over folders that vanish meanwhile, or can't be read.
    """
    for where, _, names in os.walk(folder):
        yield from (Path(where, name) for name in names)
