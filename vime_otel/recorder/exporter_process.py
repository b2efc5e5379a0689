"""The exporter subprocess: reads windows from standard input, assembles them, sends or writes them.

It answers each with one line of JSON, `{"error": null or text, "waits": null or the id of a recording to be sent yet}`,
and tells what became of each window that waited in a line `{"told": text, "recording": id, "error": null or text}`.
Other lines with `told` have no id there. It ends when nothing waits, or when standard input does.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import pickle
import queue
import sys
import threading
import time
from pathlib import Path
from typing import NoReturn

from vime_otel.data import settings
from vime_otel.data.errors import VimeOtelError

from .delivery import Delivery, Outcome, Send, try_parcel
from .exporter import Destination
from .outbox import Parcel
from .window import Window

NICENESS = 10
"""A tenth of a core where engines use every core; at 19 an export would take minutes there."""

COLLECTOR = "collector"
OTLP = "otlp"
_MIB = 2**20
_Job = tuple[Window | None, Destination]


class _Waits(VimeOtelError):
    """A window could not be sent, and waits."""


def main() -> NoReturn:
    """Do what the engine process asks on standard input."""
    os.nice(NICENESS)
    with contextlib.suppress(OSError):
        # In a session of its own a process is niced only against itself, where the kernel groups by session.
        Path("/proc/self/autogroup").write_text(str(NICENESS))
    logging.getLogger().addHandler(logging.NullHandler())  # whatever fails is answered, not printed
    ExporterProcess().run()
    os._exit(0)  # a thread may still read standard input, which Python's own end can't stand


class ExporterProcess:
    """Works through what comes on standard input, and through what waits."""

    def __init__(self) -> None:
        self._jobs: queue.Queue[_Job | None] = queue.Queue()
        self._ended = threading.Event()
        self._delivery: Delivery | None = None
        self._destination: Destination | None = None
        threading.Thread(target=self._read, name="standard input", daemon=True).start()

    def run(self) -> None:
        """Until nothing waits, or the engine is gone."""
        while True:
            try:
                job = self._jobs.get(timeout=self._idle_seconds())
            except queue.Empty:
                self._retry()
            else:
                if job is None:
                    break
                self._answer(*job)
            if not self._waiting() and self._jobs.empty():
                break
        self._last_try()

    def _read(self) -> None:
        try:
            while True:
                self._jobs.put(pickle.load(sys.stdin.buffer))
        except (EOFError, pickle.UnpicklingError):
            pass  # the engine process ended, maybe while it wrote
        except Exception as error:  # noqa: BLE001 - the last line is what the engine's process tells
            print(f"it can't read what the engine gives it: {error!r}", file=sys.stderr, flush=True)
        finally:
            self._ended.set()
            self._jobs.put(None)

    def _answer(self, window: Window | None, destination: Destination) -> None:
        error, waits = None, None
        try:
            self._export(window, destination)
        except VimeOtelError as failure:
            error = str(failure)
            if window is not None and isinstance(failure, _Waits):
                waits = window.command.recording
        except Exception as failure:  # noqa: BLE001 - what else waits here must not be lost with it
            error = f"the exporter failed: {failure!r}"
        _say({"error": error, "waits": waits})

    def _export(self, window: Window | None, destination: Destination) -> None:
        if destination.directory and destination.start:
            # Late: what imports little starts fast.
            import sqlite3

            from .write_directory import write_window

            directory = Path(destination.directory)
            try:
                write_window(window, directory, destination.start)
            except (OSError, sqlite3.Error) as error:
                way_out = "mend it, then write `start` again"
                raise VimeOtelError(f"{directory} can't be written ({error}); {way_out}") from error
        # With a collector set, all that leaves the host goes there: a Jaeger must not get it by accident.
        kind = _kind(destination)
        if kind == OTLP and (settings.get(settings.COLLECTOR) or not _has_endpoint()):
            return
        self._destination = destination
        if self._delivery is None:
            directory_of = Path(destination.outbox) if destination.outbox else None
            most_bytes = settings.whole_number(settings.OUTBOX_MIB) * _MIB
            self._delivery = Delivery(destination.engine, directory_of, most_bytes, _say_dropped)
        if window is None:
            self._delivery.adopt()
            self._retry()
            return
        try:
            self._send_or_keep(Parcel(kind, window), self._delivery, destination)
        finally:
            # Only now: should what an exporter died of lie there, this window has gone before.
            self._delivery.take_up()

    def _send_or_keep(self, parcel: Parcel, delivery: Delivery, destination: Destination) -> None:
        deadline, outcomes = time.monotonic() + destination.patience, []
        if self._waiting():
            # Who ordered this may be back: what waits goes now then, and this after it.
            name, deadline = delivery.keep(parcel), 0.0
            outcomes = self._retry()
        else:
            parcel, trouble = try_parcel(parcel, _sender(destination))
            if trouble is None:
                return
            name, delivery.trouble = delivery.keep(parcel), trouble
        while (outcome := next((each for each in outcomes if each.name == name), None)) is None:
            if not delivery.has(name):
                gone = "what was recorded is lost: it had to wait, and was dropped for want of room or removed"
                raise VimeOtelError("; ".join(filter(None, (delivery.trouble, gone))))
            now = time.monotonic()
            if now >= deadline or self._ended.wait(max(min(delivery.next_try, deadline) - now, 0.0)):
                break
            outcomes = self._retry()
        else:
            if outcome.error:
                raise VimeOtelError(outcome.error)
            return
        what = f"{delivery.trouble}; what was recorded waits in {delivery.place} and goes when that ends"
        if destination.collector:
            raise _Waits(what)
        _say({"told": what})  # no error: under the file trigger the recording's files are there

    def _retry(self) -> list[Outcome]:
        if self._delivery is None or self._destination is None:
            return []
        outcomes = self._delivery.send_waiting(_sender(self._destination), _kind(self._destination))
        for outcome in outcomes:
            _say({"told": outcome.sentence, "recording": outcome.recording, "error": outcome.error})
        return outcomes

    def _last_try(self) -> None:
        """What waits in memory ends with this process; one more try costs little. Where nothing waits, it tells why."""
        if self._delivery is not None:
            if self._delivery.in_memory or not self._waiting():
                self._retry()
            self._delivery.close()

    def _waiting(self) -> int:
        if self._delivery is None or self._destination is None:
            return 0
        return self._delivery.waiting(_kind(self._destination))

    def _idle_seconds(self) -> float | None:
        if self._delivery is None:
            return None
        return max(self._delivery.next_try - time.monotonic(), 0.0)


def _kind(destination: Destination) -> str:
    return COLLECTOR if destination.collector else OTLP


def _sender(destination: Destination) -> Send:
    if destination.collector:
        return lambda parcel, note: _send_to_collector(parcel.window, destination)
    from .send_otlp import send_to_environment

    return lambda parcel, note: send_to_environment(parcel.window, parcel.taken, note)


def _send_to_collector(window: Window, destination: Destination) -> None:
    from .send import knock, send_to_collector
    from .stand_in import StandIn

    url, token = destination.collector, destination.token
    knock(url)
    left = window.engine["engine"] != destination.engine and not window.command.totals_only
    with StandIn(window, url, token) if left else contextlib.nullcontext():
        send_to_collector(window, url, token)


def _has_endpoint() -> bool:
    from .send_otlp import endpoint

    return bool(endpoint())


def _say_dropped(sentence: str, recording: str) -> None:
    _say({"told": sentence, "recording": recording, "error": sentence})


def _say(what: dict[str, object]) -> None:
    with contextlib.suppress(OSError):  # the engine process is gone
        print(json.dumps(what), flush=True)
