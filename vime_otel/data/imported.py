"""A profile from a file as a run directory, so that whatever shows runs can show it."""

from __future__ import annotations

import hashlib
import shutil
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import orjson

from . import folded
from .profile import Profile
from .run_files import FORMAT, HEADER_FILE, STEPS_FILE
from .summary import counted
from .write_run import new_run_name, write_atomically


def write_imported(root: Path, profile: Profile, name: str, content: bytes, created: datetime | None = None) -> str:
    """Write the profile as a run below `root`; returns its id, which follows from the file's content.

    A run of the same content that is there already goes.
    """
    created = created or datetime.now(timezone.utc)
    run_id = hashlib.sha256(content).hexdigest()[:16]
    header = {
        "format": FORMAT,
        "id": run_id,
        "label": name,
        "complete": None,
        "reasons": [],
        "notes": _notes(profile),
        "created": created.isoformat(timespec="seconds"),
        "source": name,
        "unit": profile.unit,
        "engines": [],
    }
    directory = root / new_run_name(run_id, None, created)
    directory.mkdir(parents=True, exist_ok=True)
    for suffix, column in {"folded": profile.self_values, "calls": profile.calls}.items():
        write_atomically(directory / f"{profile.kind}.{suffix}", folded.dumps(column).encode())
    steps: dict[str, Any] = {"steps": {profile.kind: profile.steps}, "decode_tokens": None, "rows": []}
    write_atomically(directory / STEPS_FILE, orjson.dumps(steps))
    write_atomically(directory / HEADER_FILE, orjson.dumps(header))
    for earlier in root.glob(f"*-{run_id[:8]}"):
        if earlier != directory:
            shutil.rmtree(earlier, ignore_errors=True)
    return run_id


def _notes(profile: Profile) -> list[str]:
    if not profile.invalid_lines:
        return []
    verb = "is" if profile.invalid_lines == 1 else "are"
    return [f"{counted(profile.invalid_lines, 'line')} of the file {verb} in no format and {verb} left out"]
