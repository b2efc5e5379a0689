"""Keeps the runs within a size: the oldest go first, never one that is being recorded or is kept."""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from vime_otel.data.days import utc_today
from vime_otel.data.errors import VimeOtelError
from vime_otel.data.find_runs import list_runs
from vime_otel.data.run_files import HEADER_FILE, JOURNAL_FILE, OPEN_FILE, TORCH_DIR, TOTALS_FILE
from vime_otel.data.rundir import RunDirectory

_log = logging.getLogger(__name__)

KEEP_FILE = "keep"
"""A run with a file of this name is never removed."""

LOOK_SECONDS = 15.0
_REMOVED_PREFIX = ".removed-"
_BLOCK_BYTES = 512
_RUN_FILES = (HEADER_FILE, OPEN_FILE, JOURNAL_FILE, TOTALS_FILE, TORCH_DIR)


@dataclass
class DiskCounts:
    """For `/metrics`; bytes as the disk counts them."""

    used_bytes: int = 0
    removed_runs: int = 0
    removed_bytes: int = 0


class DiskLimit:
    """Looks every now and then, from `start` to `stop`, on a thread of its own."""

    def __init__(self, runs_root: Path, most_bytes: int) -> None:
        self.counts = DiskCounts()
        self._runs_root = runs_root
        self._most_bytes = most_bytes
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="disk limit", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End. Blocks while a run is being removed."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def enforce(self) -> None:
        """Remove runs until the limit is kept, as far as that can be."""
        for left in self._runs_root.glob(f"{_REMOVED_PREFIX}*"):  # by a collector that was killed meanwhile
            shutil.rmtree(left, ignore_errors=True)
        sizes = {path: size_of(path) for path in self._runs_root.iterdir() if _is_ours(path)}
        used = sum(sizes.values())
        for run in removable(self._runs_root) if used > self._most_bytes else ():
            if used <= self._most_bytes:
                break
            self._remove(run, sizes.get(run, 0))
            used -= sizes.get(run, 0)
        self.counts.used_bytes = used
        if used > self._most_bytes:
            _log.warning(
                "the runs take %d bytes, --max-disk allows %d, and what is left is being recorded, unfinished or kept"
                " (`%s` files)",
                used,
                self._most_bytes,
                KEEP_FILE,
            )

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self.enforce()
            except OSError as error:
                _log.warning("the runs can't be kept within --max-disk: %s", error)
            self._stopping.wait(LOOK_SECONDS)

    def _remove(self, run: Path, size: int) -> None:
        # Renamed first: nobody is to see half a run.
        doomed = run.with_name(f"{_REMOVED_PREFIX}{run.name}")
        run.rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)
        self.counts.removed_runs += 1
        self.counts.removed_bytes += size
        _log.info("removed the run %s (%d bytes) to keep within --max-disk", run.name, size)


def removable(runs_root: Path) -> Iterator[Path]:
    """The runs that may go, oldest first: those that are over and not kept."""
    for run in sorted(list_runs(runs_root), key=_created):
        stays = (run.path / KEEP_FILE).exists() or (run.path / OPEN_FILE).exists() or _goes_on(run)
        if not stays and not run.path.is_symlink():
            yield run.path


def _is_ours(path: Path) -> bool:
    """Whether it is a run, or one that is being made. What else lies there is no reason to remove any."""
    return not path.is_symlink() and any((path / name).exists() for name in _RUN_FILES)


def size_of(path: Path) -> int:
    """Bytes on the disk of a file, or of all that is in a folder; what vanishes meanwhile counts nothing."""
    try:
        own = path.lstat().st_blocks * _BLOCK_BYTES
        return own + sum(map(size_of, path.iterdir())) if path.is_dir() and not path.is_symlink() else own
    except (FileNotFoundError, NotADirectoryError):
        return 0


def _created(run: RunDirectory) -> tuple[str, str]:
    """Names begin with the time; a folder that somebody renamed has it in its header."""
    try:
        return str(run.header.get("created", "")), run.path.name
    except VimeOtelError:
        return "", run.path.name


def _goes_on(run: RunDirectory) -> bool:
    """Whether more may come, as into the runs of today and yesterday (clocks differ). A damaged run is over."""
    try:
        endless = "complete" in run.header and run.header["complete"] is None
    except VimeOtelError:
        return False
    yesterday = utc_today() - timedelta(days=1)
    return endless and _created(run)[0] >= yesterday.isoformat()
