"""Finding runs in their folder, by whatever names one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from . import settings
from .errors import VimeOtelError
from .run_files import HEADER_FILE
from .rundir import RunDirectory

_NAMES_SHOWN = 10


def runs_root(given: str | Path | None = None) -> Path:
    """The folder of the run directories: `given`, or VIME_OTEL_RUNS, or `runs`."""
    return Path(given or settings.get(settings.RUNS))


def list_runs(root: Path) -> list[RunDirectory]:
    """The runs below `root`, newest first; folders that are no runs are passed over."""
    if not os.path.isdir(root):
        return []
    try:
        entries = list(root.iterdir())
    except OSError as error:
        raise VimeOtelError(
            f"{root} can't be read ({error.strerror or error}); name another folder with --runs"
        ) from error
    names = sorted((entry.name for entry in entries if os.path.isfile(entry / HEADER_FILE)), reverse=True)
    return [RunDirectory(root / name) for name in names]


def matching(runs: Sequence[RunDirectory], which: str) -> list[RunDirectory]:
    """The runs that a text may mean: the folder of this name, else those whose name or id begins so."""
    name = which.rstrip("/")
    exact = [run for run in runs if run.path.name == name]
    return exact or [run for run in runs if name and (run.path.name.startswith(name) or _id_begins(run, name))]


def ambiguous(which: str, matches: Sequence[RunDirectory]) -> str:
    """What to say when a text may mean several runs."""
    names = [run.path.name for run in matches]
    shown = ", ".join(names[:_NAMES_SHOWN]) + ("" if len(names) <= _NAMES_SHOWN else ", …")
    return f"{which!r} fits {len(names)} runs: {shown}; type more of it, or a folder's name"


def _id_begins(run: RunDirectory, which: str) -> bool:
    try:
        return run.id.startswith(which)
    except VimeOtelError:  # a damaged run is no reason not to find the others
        return False


def find_run(root: Path, which: str = "latest") -> RunDirectory:
    """The run that a RUN argument names: `latest`, the beginning of an id or of a folder's name, or a path."""
    runs = list_runs(root)
    if which == "latest":
        if not runs:
            raise VimeOtelError(f"no runs in {root}; make one with `vime-otel collect`, or name the folder with --runs")
        return runs[0]
    matches = matching(runs, which)
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise VimeOtelError(ambiguous(which, matches))
    if os.path.isdir(which):
        return RunDirectory(Path(which))
    raise VimeOtelError(f"no run {which!r} in {root}, and no such folder; `vime-otel view` lists the runs there are")
