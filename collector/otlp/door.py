"""What the doors of OTLP share: a request in its turn, and every way in which it can fail."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from ..faults import log_fault, log_refusal
from ..journal.intake import Intake, Malformed, Outcome, Stopping
from . import otlp_errors
from .http_body import BodyTooLarge, BodyUnreadable, UnknownEncoding
from .in_time import Late
from .limits import Budget, Overloaded, Room
from .otlp_errors import Error
from .signals import Signal

_log = logging.getLogger(__name__)

_TOLD_ELSEWHERE = (otlp_errors.DISK, otlp_errors.STOPPING, otlp_errors.FAULT)


class Refused(Exception):
    """The answer to a request is an error."""

    def __init__(self, error: Error, message: str) -> None:
        super().__init__(message)
        self.error = error


class Door:
    """Takes requests of one transport (`counts.GRPC` or `counts.HTTP`)."""

    def __init__(self, intake: Intake, budget: Budget, transport: str) -> None:
        self._intake = intake
        self._budget = budget
        self._transport = transport

    async def take(self, signal: Signal, read: Callable[[Room], Awaitable[bytes]]) -> Outcome:
        """Read a request within its room, and take it. Raises Refused, and counts it."""
        try:
            with self._budget.room() as room:
                return await self._intake.take(signal, await read(room), self._transport)
        except Refused as refused:
            self._note(signal, refused)
            raise
        except Exception as error:
            # Not through a local name: an exception that its own frame holds keeps gRPC's poller thread alive.
            raise self._counted(signal, _refused(error, signal)) from error

    def _counted(self, signal: Signal, refused: Refused) -> Refused:
        self._note(signal, refused)
        return refused

    def _note(self, signal: Signal, refused: Refused) -> None:
        reason = refused.error.reason
        self._intake.counts.refused[signal.key, self._transport, reason] += 1
        if refused.error not in _TOLD_ELSEWHERE:
            log_refusal(_log, f"a request with {signal.name} over {self._transport}", reason, str(refused))


def _refused(error: Exception, signal: Signal) -> Refused:
    if isinstance(error, UnknownEncoding):
        return Refused(otlp_errors.UNKNOWN_ENCODING, str(error))
    if isinstance(error, BodyTooLarge):
        return Refused(otlp_errors.TOO_LARGE, str(error))
    if isinstance(error, (BodyUnreadable, Malformed)):
        return Refused(otlp_errors.MALFORMED, str(error))
    if isinstance(error, (Overloaded, Late)):
        return Refused(otlp_errors.OVERLOAD, str(error))
    if isinstance(error, Stopping):
        return Refused(otlp_errors.STOPPING, str(error))
    if isinstance(error, OSError):
        return Refused(otlp_errors.DISK, f"the collector can't write what came: {error.strerror or error}")
    log_fault(_log, f"a request with {signal.name}", error)
    return Refused(otlp_errors.FAULT, f"a fault of the collector: {type(error).__name__}")
