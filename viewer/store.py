"""The runs directory as the viewer reads it: nothing outside it, whatever a name or a link says."""

from __future__ import annotations

import os
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path

from vime_otel.data.errors import VimeOtelError
from vime_otel.data.find_runs import ambiguous, list_runs, matching
from vime_otel.data.run_files import HEADER_FILE, TORCH_DIR
from vime_otel.data.rundir import RunDirectory

_KEPT = 16
"""Runs that are kept read."""


class RunNotFound(VimeOtelError):
    """No such run, rank, kind or file."""


class AmbiguousRun(VimeOtelError):
    """A text in an address may mean any of several `runs`."""

    def __init__(self, which: str, runs: Sequence[RunDirectory]):
        super().__init__(ambiguous(which, runs))
        self.runs = runs


class Store:
    """The runs below one directory, and the files that were brought to a second one."""

    def __init__(self, root: Path, scratch: Path | None = None):
        self.root = root.resolve()
        self._roots = [self.root, *([scratch.resolve()] if scratch else [])]
        self._read: OrderedDict[Path, tuple[str, RunDirectory]] = OrderedDict()

    def runs(self) -> list[RunDirectory]:
        """The runs, newest first; one that holds a link out of the runs directory is passed over."""
        found = [run for root in self._roots for run in list_runs(root)]
        return [self._kept(run) for run in found if all(map(self.is_inside, _links(run.path)))]

    def find(self, which: str) -> RunDirectory:
        """The run with this folder name or id, or whose name or id begins so.

        Raises RunNotFound or AmbiguousRun.
        """
        matches = matching(self.runs(), which)
        if not matches:
            raise RunNotFound(f"no run {which!r} here; the list of recordings shows those there are")
        if len(matches) > 1:
            raise AmbiguousRun(which, matches)
        return matches[0]

    def address(self, run: RunDirectory) -> str:
        """What names this run in a URL."""
        return addresses(self.runs()).get(run.path, run.path.name)

    def torch_traces(self, run: RunDirectory) -> list[Path]:
        """The run's torch traces; links that lead out or nowhere are passed over."""
        return [path for path in run.torch_traces() if self.is_inside(path)]

    def torch_trace(self, run: RunDirectory, name: str) -> Path:
        """The torch trace of this name, relative to the run's torch folder; or RunNotFound."""
        for path in self.torch_traces(run):
            if torch_name(run, path) == name:
                return path
        raise RunNotFound(f"run {run.id} has no torch trace {name!r}")

    def unfinished(self) -> list[Path]:
        """Folders of the runs directory that are no runs yet, newest first; none that holds a link out of it."""
        if not self.root.is_dir():
            return []
        folders = (path for path in self.root.iterdir() if path.is_dir() and not (path / HEADER_FILE).exists())
        return sorted((path for path in folders if all(map(self.is_inside, _links(path)))), reverse=True)

    def _kept(self, run: RunDirectory) -> RunDirectory:
        """The same run as it was read before, unless its files have changed."""
        now = version(run)
        before, kept = self._read.get(run.path, ("", run))
        if before == now:
            return kept
        self._read[run.path] = (now, run)
        while len(self._read) > _KEPT:
            self._read.popitem(last=False)
        return run

    def is_inside(self, path: Path) -> bool:
        """Whether a path, with all links followed, lies where runs may be read."""
        real = Path(os.path.realpath(path))
        return any(real.is_relative_to(root) for root in self._roots)


def version(run: RunDirectory) -> str:
    """What changes when any of a run's files does: each one's name, size and time."""
    entries = [entry for folder in (run.path, run.path / "ranks") if folder.is_dir() for entry in os.scandir(folder)]
    stats = sorted((entry.path, entry.stat()) for entry in entries if os.path.exists(entry.path))
    return ";".join(f"{path} {stat.st_size} {stat.st_mtime_ns}" for path, stat in stats)


def addresses(runs: Sequence[RunDirectory]) -> dict[Path, str]:
    """What names each of all runs in a URL: its id, or its folder where the id is not its alone."""
    ids = {run.path: _id(run) for run in runs}
    uses = Counter(ids.values())
    return {path: own if own and uses[own] == 1 else path.name for path, own in ids.items()}


def torch_name(run: RunDirectory, path: Path) -> str:
    """A trace's name within its run, `/` between folders."""
    return path.relative_to(run.path / TORCH_DIR).as_posix()


def _id(run: RunDirectory) -> str | None:
    try:
        return run.id
    except VimeOtelError:
        return None


def _links(directory: Path) -> Iterator[Path]:
    """A run's own folder and every link in it, but for its torch traces: those are checked one by one."""
    yield directory
    for folder, folders, files in os.walk(directory):
        if Path(folder) == directory and TORCH_DIR in folders:
            folders.remove(TORCH_DIR)
        for name in (*folders, *files):
            path = Path(folder, name)
            if path.is_symlink():
                yield path
