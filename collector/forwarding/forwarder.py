"""Forwarding: what journals hold goes on to other OTLP endpoints, each with a thread and cursors of its own.

The journal is the queue. An endpoint that is away costs nothing but time, and a collector that starts
again goes on where the cursors stand.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

from vime_otel.data.errors import Unavailable, VimeOtelError
from vime_otel.data.run_files import JOURNAL_FILE

from ..faults import log_fault
from .endpoint import Endpoint, Later, Sender
from .forward_journal import Cursor, ForwardedJournal, Sent, cursor_name, read_cursor, write_cursor
from .selection import Choice

_log = logging.getLogger(__name__)

LOOK_SECONDS = 0.5
FIRST_WAIT_SECONDS = 1.0
LONGEST_WAIT_SECONDS = 30.0
_MOST_WARM = 20
DRAIN_SECONDS = 10.0
"""So long a stopping collector sends what is left, where the endpoint takes it."""
PATIENCE_SECONDS = 10.0
"""So long it tries on where the endpoint takes nothing."""


@dataclass
class ForwardCounts:
    """What one endpoint got since the start; for `/metrics`."""

    sent: int = 0
    refused: int = 0
    over_limit: int = 0
    failed_requests: int = 0
    waiting_bytes: int = 0


class Forwarder:
    """Sends the runs below a folder that were taken up for one endpoint, from `start` to `stop`.

    A run that was taken up has a cursor, which outlives the process.
    """

    def __init__(self, endpoint: Endpoint, runs_root: Path, choice: Choice) -> None:
        self.endpoint = endpoint
        self.counts = ForwardCounts()
        self.trouble = ""
        """Why the last try failed; empty while all goes well."""
        self._choice = choice
        self._runs_root = runs_root
        self._journals: dict[Path, ForwardedJournal] = {}
        self._warm: OrderedDict[Path, ForwardedJournal] = OrderedDict()
        """Those that something was sent of lately, and that remember how large traces became."""
        self._stopping = threading.Event()
        self._drain_until = float("inf")
        self._patient_until = 0.0
        self._wait = FIRST_WAIT_SECONDS
        self._thread = threading.Thread(target=self._run, name=f"forward to {endpoint.target}", daemon=True)

    def start(self) -> None:
        """Begin. Raises UsageError for VIME_OTEL_CA."""
        self._sender: Sender = self.endpoint.connect()
        self._thread.start()

    def take_up(self, run: Path) -> None:
        """Forward a run that begins, or what is added to it from now on. From any thread."""
        journal, url = run / JOURNAL_FILE, self.endpoint.url
        if read_cursor(run, url) is None:
            try:
                write_cursor(run, Cursor(url, journal.stat().st_size if journal.exists() else 0))
            except OSError as error:
                _log.error("the run %s is not forwarded to %s: %s", run, url, error)

    def stop(self, drain_seconds: float = DRAIN_SECONDS) -> None:
        """Send what is left, as far as that goes within the time, and end. Blocks.

        An endpoint that is away is tried again for a while: many are only busy.
        """
        self._patient_until = time.monotonic() + PATIENCE_SECONDS
        self._drain_until = time.monotonic() + drain_seconds
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        try:
            while True:
                last = self._stopping.is_set()
                wait = self._round()
                if not last:
                    self._stopping.wait(wait)
                elif self.trouble and time.monotonic() + wait < min(self._drain_until, self._patient_until):
                    time.sleep(wait)
                else:
                    break
        finally:
            self._sender.close()

    def _round(self) -> float:
        """Send all that is there; returns how long to wait for the next time, in seconds."""
        try:
            self._find()
            for journal in list(self._journals.values()):
                self._go_on_with(journal)
            if self.trouble:
                _log.info("forwarding to %s goes on", self.endpoint.url)
            self.trouble, self._wait = "", FIRST_WAIT_SECONDS
            return LOOK_SECONDS
        except Unavailable as error:
            self.counts.failed_requests += 1
            if not self.trouble:
                _log.warning("spans wait to be forwarded: %s", error)
            self.trouble = str(error)
            return self._backoff(error)
        except OSError as error:
            _log.warning("forwarding to %s has to wait: %s", self.endpoint.url, error)
            return self._backoff(error)
        except Exception as error:  # noqa: BLE001 - the thread has to go on
            log_fault(_log, f"forwarding to {self.endpoint.url}", error)
            return self._backoff(error)
        finally:
            self.counts.waiting_bytes = sum(_waiting(journal) for journal in self._journals.values())

    def _backoff(self, error: Exception) -> float:
        wait, self._wait = self._wait, min(2 * self._wait, LONGEST_WAIT_SECONDS)
        asked = error.seconds if isinstance(error, Later) else 0.0
        return max(wait * random.uniform(0.5, 1.0), min(asked, LONGEST_WAIT_SECONDS))

    def _go_on_with(self, journal: ForwardedJournal) -> None:
        """Send what a run has; what the disk refuses of it holds up no other run."""
        try:
            self._send_all(journal)
            journal.trouble = ""
        except FileNotFoundError:  # nothing came yet, or the run was removed meanwhile
            return
        except OSError as error:
            why = str(error.strerror or error)
            if journal.trouble != why:
                _log.warning("%s waits to be forwarded to %s: %s", journal.run.name, self.endpoint.url, why)
            journal.trouble = why

    def _send_all(self, journal: ForwardedJournal) -> None:
        try:
            journal.look(settled=self._stopping.is_set())
            if journal.trouble:  # it may be the cursor that could not be written
                write_cursor(journal.run, journal.cursor)
            while journal.waiting_bytes() and time.monotonic() < self._drain_until:
                before = journal.cursor
                sent = journal.send_next(self._sender)
                if sent is None:
                    break
                self._patient_until = time.monotonic() + PATIENCE_SECONDS
                self._keep_warm(journal)
                self._count(sent, journal, journal.cursor.over_limit - before.over_limit)
                write_cursor(journal.run, journal.cursor)
        except VimeOtelError as error:
            if isinstance(error, Unavailable):
                raise
            _log.warning("%s is not forwarded: %s", journal.run.name, error)
            journal.give_up()

    def _keep_warm(self, journal: ForwardedJournal) -> None:
        self._warm.pop(journal.run, None)
        self._warm[journal.run] = journal
        if len(self._warm) > _MOST_WARM:
            self._warm.popitem(last=False)[1].rest()

    def _count(self, sent: Sent, journal: ForwardedJournal, over_limit: int) -> None:
        self.counts.sent += sent.spans
        self.counts.refused += sent.refused
        self.counts.over_limit += over_limit
        if sent.message:
            run = journal.run.name
            _log.warning("%s left out %d spans of %s: %s", self.endpoint.url, sent.refused, run, sent.message)

    def _find(self) -> None:
        """Go on with runs that were taken up; forget those that are gone."""
        url = self.endpoint.url
        found = [path.parent for path in self._runs_root.glob(f"[!.]*/{cursor_name(url)}")]
        for run in self._journals.keys() - set(found):
            del self._journals[run]
        for run in found:
            if run not in self._journals and (cursor := read_cursor(run, url)) is not None:
                self._journals[run] = ForwardedJournal(run, self._choice, cursor)


def _waiting(journal: ForwardedJournal) -> int:
    try:
        return journal.waiting_bytes()
    except OSError:  # nothing came yet, or the run was removed meanwhile
        return 0
