"""How OTLP tells an error: a google.rpc.Status, with RetryInfo where the client may try again."""

from __future__ import annotations

from dataclasses import dataclass

from google.protobuf.duration_pb2 import Duration
from google.rpc.code_pb2 import INTERNAL, INVALID_ARGUMENT, RESOURCE_EXHAUSTED, UNAUTHENTICATED, UNAVAILABLE
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status

from .limits import RETRY_SECONDS


@dataclass(frozen=True)
class Error:
    """One kind of error: its name in counts, and its codes over both transports."""

    reason: str
    http_status: int
    code: int
    retryable: bool = False

    def status(self, message: str) -> Status:
        """The body of an answer over HTTP, and the details of one over gRPC."""
        status = Status(code=self.code, message=message)
        if self.retryable:
            status.details.add().Pack(retry_info())
        return status


MALFORMED = Error("malformed", 400, INVALID_ARGUMENT)
UNKNOWN_ENCODING = Error("unsupported", 415, INVALID_ARGUMENT)
UNAUTHORIZED = Error("unauthenticated", 401, UNAUTHENTICATED)
TOO_LARGE = Error("too_large", 413, RESOURCE_EXHAUSTED)
OVERLOAD = Error("overload", 503, UNAVAILABLE, retryable=True)
DISK = Error("disk", 503, UNAVAILABLE, retryable=True)
STOPPING = Error("stopping", 503, UNAVAILABLE, retryable=True)
FAULT = Error("fault", 500, INTERNAL)


def retry_info() -> RetryInfo:
    """Asks to wait before the next try."""
    return RetryInfo(retry_delay=Duration(seconds=RETRY_SECONDS))
