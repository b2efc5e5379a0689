"""The collector's log: one line of logfmt an event, nothing secret in it, and no flood of the same warning."""

from __future__ import annotations

import logging
import re
import sys
import time
from collections.abc import Iterable
from datetime import datetime, timezone
from typing import TextIO

SAME_SECONDS = 10.0
"""Warnings of one kind are at least so far apart; the next one tells how many there were."""

_MOST_KINDS = 1000
_PLAIN = re.compile(r"[^\s\"=\\]+")
_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t", '"': '\\"', "\\": "\\\\"}


class Logfmt(logging.Formatter):
    """`time=… level=warning logger=collector.intake message="…"`; every secret is shown as `***`."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        super().__init__()
        self._secrets = sorted(filter(None, secrets), key=len, reverse=True)

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        moment = datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds")
        fields = {
            "time": moment.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if suppressed := getattr(record, "suppressed", 0):
            fields["suppressed"] = str(suppressed)
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        line = " ".join(f"{key}={_value(value)}" for key, value in fields.items())
        for secret in self._secrets:
            line = line.replace(secret, "***")
        return line


class RateLimit(logging.Filter):
    """Passes one warning or error of a kind (a place in the code) every SAME_SECONDS; the next one has `suppressed`.

    So it does with what is marked by `extra={"often": True}`.
    """

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[tuple[str, object], float] = {}
        self._suppressed: dict[tuple[str, object], int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is to be written."""
        if record.levelno < logging.WARNING and not getattr(record, "often", False):
            return True
        kind = (record.name, record.msg)
        now = time.monotonic()
        if now - self._last.get(kind, -SAME_SECONDS) < SAME_SECONDS:
            self._suppressed[kind] = self._suppressed.get(kind, 0) + 1
            return False
        if len(self._last) >= _MOST_KINDS:  # of messages that were made elsewhere, each may be a kind of its own
            self._last.clear()
            self._suppressed.clear()
        self._last[kind] = now
        record.suppressed = self._suppressed.pop(kind, 0)
        return True


def write_log(secrets: Iterable[str] = (), stream: TextIO | None = None) -> None:
    """Write the log of this process to `stream` (stderr) from now on."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(Logfmt(secrets))
    handler.addFilter(RateLimit())
    logging.basicConfig(handlers=[handler], level=logging.INFO, force=True)
    for noisy in ("aiohttp", "asyncio", "urllib3"):
        logging.getLogger(noisy).setLevel(logging.CRITICAL)


def _value(text: str) -> str:
    """As logfmt has it: bare where that is clear, else quoted; one line whatever is in it."""
    if _PLAIN.fullmatch(text) and text.isprintable():
        return text
    return '"' + "".join(_escaped(character) for character in text) + '"'


def _escaped(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    return character if character.isprintable() else f"\\u{ord(character):04x}"
