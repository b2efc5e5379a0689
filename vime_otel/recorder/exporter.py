"""Runs the exporter subprocess: the engine's own processes encode and send nothing.

Encoding on a thread of EngineCore would hold the GIL that its steps need. The subprocess ends with
the window that it was given, unless that could not be sent: then it stays, and tries on. One that
dies over that is followed by one more, which takes up what lies in VIME_OTEL_DIR.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import pickle
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .window import Window

logger = logging.getLogger("vllm.vime_otel")

_START = """
import sys
sys.path[:] = filter(None, sys.path)  # the engine's folder must not stand in for its packages
if sys.argv[1] not in sys.path:
    sys.path.append(sys.argv[1])
from vime_otel.recorder.exporter_process import main
main()
"""
_MESSAGE_BYTES = 400


@dataclass(frozen=True)
class Destination:
    """Where the windows of an engine go: to a `collector`, or into a `directory` on its `start` file's order.

    `outbox` is VIME_OTEL_DIR, where windows wait that can't be sent; empty for memory. For `patience` seconds
    the collector is tried before the answer says that a window waits.
    """

    engine: str
    outbox: str = ""
    collector: str = ""
    token: str = ""
    directory: str = ""
    start: str = ""
    patience: float = 0.0


class Kept(str):
    """What kept a window from being sent: it waits, and goes by itself when that ends."""


Gone = Callable[[str, str | None], None]
"""Gets the id of a recording whose window waits no more, and why it was not sent (None: it was)."""


class Exporter:
    """One door's exporter: `export` may be called from several threads, `close` at the end."""

    def __init__(self, gone: Gone = lambda recording, error: None) -> None:
        """`gone` is called on a thread of the exporter's."""
        self._gone = gone
        self._lock = threading.Lock()
        self._process: _Process | None = None
        self._may_restart = False
        self._closed = False

    def export(self, window: Window | None, destination: Destination) -> str | None:
        """Export a window (None: merge what engines have written, send what waits); wait until that is done.

        The answer is None, or what could not be done; `Kept` where it will be yet.
        """
        self._may_restart = True
        return self._ask(window, destination)

    def close(self) -> None:
        """Let the subprocess end; what it holds in memory only it tries to send once more."""
        self._closed = True
        process = self._process
        if process is not None:
            process.close()

    def _ask(self, window: Window | None, destination: Destination) -> str | None:
        job = pickle.dumps((window, destination), protocol=5)
        with self._lock:
            lingering = self._process
            if lingering is not None and (answer := lingering.ask(job)) is not None:
                return _error_of(answer)
            # There was none, or it ended for lack of work as we asked.
            self._process = process = _Process(self._gone, lambda ended: self._ended(ended, destination))
            if lingering is not None and destination.outbox:
                process.waits, lingering.waits = lingering.waits, set()
            answer = process.ask(job)
            if self._closed:
                process.close()
            return _error_of(answer) if answer is not None else process.why_it_ended()

    def _ended(self, process: _Process, destination: Destination) -> None:
        """On the thread of a process that is gone: see to what waited with it."""
        with self._lock:
            if self._closed:
                return
            died = bool(process.status) and bool(destination.outbox) and process is self._process
            # Once until the next job: a window that kills whoever tries it must not do so for ever.
            restart, self._may_restart = died and self._may_restart, self._may_restart and not died
        if restart:
            with contextlib.suppress(OSError, RuntimeError):  # no process or thread can be started
                self._ask(None, replace(destination, directory="", start=""))
        lost, process.waits = process.waits, set()  # empty where the next one has it
        for recording in sorted(lost):
            self._gone(recording, _why_lost(process, destination))


class _Process:
    """One subprocess, at a low priority, with a thread that reads what it says and waits for its end."""

    def __init__(self, gone: Gone, ended: Callable[[_Process], None]) -> None:
        """`ended` is called on its thread, after the last answer."""
        self.waits: set[str] = set()
        """The recordings that were answered as kept, and of which nothing was told since."""
        self._gone = gone
        self._ended = ended
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by the thread at the end
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START, str(Path(__file__).resolve().parents[2])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            start_new_session=True,  # Ctrl-C of the server must not cut a recording off
        )
        self._answers: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._last_words = ""
        threading.Thread(target=self._listen, name="vime-otel exporter", daemon=True).start()

    @property
    def status(self) -> int | None:
        """What it ended with; None before that."""
        return self._process.returncode

    def ask(self, job: bytes) -> dict[str, Any] | None:
        """Give it a job and wait for the answer; None where it ended without one."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, ValueError):  # it is about to end; ValueError: closed by `close`
            self._process.stdin.write(job)
            self._process.stdin.flush()
        answer = self._answers.get()
        if answer is None:
            self._answers.put(None)  # for whoever asks next
        return answer

    def why_it_ended(self) -> str:
        """After `ask` had no answer."""
        return f"the exporter ended with status {self.status}: {self._last_words or 'no message'}"

    def close(self) -> None:
        """Tell it to end."""
        with contextlib.suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout:
            for line in self._process.stdout:
                with contextlib.suppress(ValueError, TypeError, KeyError):  # not ours
                    self._hear(json.loads(line))
        self._process.wait()
        with self._errors as errors:
            errors.seek(0)
            last = errors.read().decode(errors="replace").strip().splitlines()[-1:]
        self._last_words = " ".join(last)[:_MESSAGE_BYTES]
        self.close()
        self._answers.put(None)
        self._ended(self)

    def _hear(self, message: dict[str, Any]) -> None:
        if "told" in message:
            logger.warning("vime-otel: %s", message["told"])
            if message.get("recording"):
                self.waits.discard(message["recording"])
                self._gone(message["recording"], message["error"])
        elif "waits" in message:
            if message["waits"] is not None:
                self.waits.add(message["waits"])
            self._answers.put(message)


def _error_of(answer: dict[str, Any]) -> str | None:
    error: str | None = answer["error"]
    return Kept(error) if error is not None and answer["waits"] is not None else error


def _why_lost(process: _Process, destination: Destination) -> str:
    """What to say of a recording that waited with a process of which nothing was heard about it."""
    if not process.status:
        return "what waited is gone: removed, taken up by another engine's exporter, or lost with one that died"
    if destination.outbox:
        return f"{process.why_it_ended()}; what waits in {destination.outbox} goes with the next recording"
    return f"{process.why_it_ended()}; what waited in its memory is lost"
