"""Pools of processes that end when their parent does, however it ends."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from concurrent.futures import ProcessPoolExecutor


def process_pool(size: int) -> ProcessPoolExecutor:
    """A pool of new processes. Ctrl-C ends them at once and without a word; so does the end of this process."""
    return ProcessPoolExecutor(size, mp_context=multiprocessing.get_context("spawn"), initializer=_start)


def _start() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
