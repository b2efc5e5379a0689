"""Several trace files at once, a process each, with their progress."""

from __future__ import annotations

import multiprocessing
import os
import queue
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor, Future, wait
from functools import partial
from pathlib import Path
from typing import Any

from ..data.errors import VimeOtelError
from .summary import TraceSummary, summarize
from .workers import process_pool

Progress = Callable[[Path, int], None]
"""Called with a file and the bytes read of it since the last call."""

_LOOK_EVERY_S = 0.1


def summarize_all(paths: Sequence[Path], jobs: int | None, progress: Progress) -> tuple[list[TraceSummary], list[str]]:
    """(a summary of each file that could be read, why the others could not), in the order of `paths`."""
    cores = jobs or os.cpu_count() or 1
    at_once = min(cores, len(paths))
    helpers = cores // max(at_once, 1)
    results = _in_turn(paths, helpers, progress) if at_once == 1 else _at_once(paths, at_once, helpers, progress)
    summaries = [result for result in results if isinstance(result, TraceSummary)]
    return summaries, [result for result in results if isinstance(result, str)]


def _in_turn(paths: Sequence[Path], helpers: int, progress: Progress) -> list[TraceSummary | str]:
    return [_try(path, partial(progress, path), helpers) for path in paths]


def _at_once(paths: Sequence[Path], jobs: int, helpers: int, progress: Progress) -> list[TraceSummary | str]:
    with multiprocessing.get_context("spawn").Manager() as manager:
        reports: Any = manager.Queue()
        with process_pool(jobs) as pool:
            futures = [pool.submit(_work, path, helpers, reports) for path in paths]
            try:
                _follow(futures, reports, progress)
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
            return [_result(future, path) for future, path in zip(futures, paths, strict=True)]


def _follow(futures: Sequence[Future[TraceSummary | str]], reports: Any, progress: Progress) -> None:
    pending = set(futures)
    while pending:
        _, pending = wait(pending, timeout=_LOOK_EVERY_S)
        while True:
            try:
                path, count = reports.get_nowait()
            except queue.Empty:
                break
            progress(Path(path), count)


def _result(future: Future[TraceSummary | str], path: Path) -> TraceSummary | str:
    try:
        return future.result()
    except (BrokenExecutor, MemoryError) as error:
        raise VimeOtelError(
            f"{path}: the process that read it ended ({error}); try --jobs 1, or free some memory"
        ) from error


def _work(path: Path, helpers: int, reports: Any) -> TraceSummary | str:
    return _try(path, lambda count: reports.put((str(path), count)), helpers)


def _try(path: Path, advance: Callable[[int], None], helpers: int) -> TraceSummary | str:
    try:
        summary = summarize(path, advance, helpers)
    except OSError as error:
        return f"{path}: {error.strerror or error}"
    if not (summary.threads or summary.has_device):
        return f"{path}: {'; '.join(summary.problems)}"
    return summary
