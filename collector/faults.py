"""Telling of faults of our own: one line in the log, the traceback only where it is asked for."""

from __future__ import annotations

import logging

from vime_otel.data import settings


def log_refusal(log: logging.Logger, what: str, reason: str, why: str) -> None:
    """Log that a request was refused; of each `reason` one in a while, since whoever sent it sends it again."""
    log.info(f"{what} was refused ({reason}): %.300s", why, extra={"often": True})


def log_fault(log: logging.Logger, what: str, error: Exception) -> None:
    """Log an error that should not have been possible."""
    log.error(
        "%s: a fault of the collector: %s: %s (%s=1 shows where)",
        what,
        type(error).__name__,
        error,
        settings.DEBUG.name,
        exc_info=error if settings.get(settings.DEBUG) else None,
    )
