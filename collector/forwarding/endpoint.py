"""OTLP endpoints elsewhere: how a user names them, and how requests with spans get there.

The requests are ready made, and what becomes of each matters: tried again, passed over, or done. So
they go through the official gRPC stubs and requests, and not through an exporter of the SDK, which
encodes its own spans and tells success or failure alone.
"""

from __future__ import annotations

import http.client
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

import grpc
import requests
from google.protobuf.message import DecodeError
from google.rpc.error_details_pb2 import RetryInfo
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import TraceServiceStub

from vime_otel.data import settings, tls
from vime_otel.data.errors import Unavailable, UsageError, VimeOtelError
from vime_otel.data.urls import otlp_over_http, shown

TIMEOUT_S = 10.0
_GRPC_PORT = 4317
_TRACES_PATH = "/v1/traces"
_TEXT_SHOWN = 200
_HEADER_NAME = re.compile(r"(?!.*-bin$)[a-z0-9_.-]+", re.IGNORECASE)
"""What both transports can carry; of gRPC's, those that end in `-bin` are bytes."""

_RETRY_INFO = "google.rpc.retryinfo-bin"


@dataclass(frozen=True)
class Endpoint:
    """Where spans go: `url` as it was given, and what it means. `target` is HOST:PORT or the full URL of the route."""

    url: str
    over_grpc: bool
    secure: bool
    target: str
    headers: tuple[tuple[str, str], ...] = ()

    def connect(self) -> Sender:
        """A way to send there; nothing is sent yet. Raises UsageError for VIME_OTEL_CA."""
        return _GrpcSender(self) if self.over_grpc else _HttpSender(self)


def parse_endpoint(text: str) -> Endpoint:
    """An endpoint from a URL; raises UsageError.

    gRPC is spoken, or HTTP where the port is 4318 or the URL has a path (`/v1/traces` is added if need be).
    Headers come from VIME_OTEL_FORWARD_HEADERS.
    """
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or parts.scheme not in ("http", "https") or not text.isprintable() or " " in text or port == 0:
        raise UsageError(f"{shown(text)!r} is no OTLP endpoint, such as http://127.0.0.1:4317 or https://host:4318")
    if parts.username is not None or parts.query or parts.fragment:
        way_out = f"credentials belong into {settings.FORWARD_HEADERS.name}"
        raise UsageError(f"{shown(text)!r} has a user, a query or a fragment; {way_out}")
    path = parts.path.rstrip("/")
    secure, over_grpc = parts.scheme == "https", not otlp_over_http(parts)
    if over_grpc:
        target = f"[{host}]:{port or _GRPC_PORT}" if ":" in host else f"{host}:{port or _GRPC_PORT}"
    else:
        target = f"{parts.scheme}://{parts.netloc}{path if path.endswith(_TRACES_PATH) else path + _TRACES_PATH}"
    return Endpoint(text, over_grpc, secure, target, _headers_for(host))


def _headers_for(host: str) -> tuple[tuple[str, str], ...]:
    """The headers of VIME_OTEL_FORWARD_HEADERS that a host is to get; raises UsageError, which repeats no value."""
    headers: dict[str, str] = {}
    for item in filter(None, map(str.strip, settings.get(settings.FORWARD_HEADERS).split(","))):
        key, equals, value = item.partition("=")
        place, _, name = key.strip().rpartition("/")
        value = unquote(value.strip())
        if not equals or not _HEADER_NAME.fullmatch(name) or not (value.isascii() and value.isprintable()):
            raise UsageError(
                f"{settings.FORWARD_HEADERS.name} is not written NAME=VALUE,HOST/NAME=VALUE,… with names of letters,"
                " digits, `-`, `_` and `.` and percent-encoded values of printable ASCII"
            )
        if place in ("", host):
            headers[name.lower()] = value
    return tuple(headers.items())


@dataclass(frozen=True)
class Accepted:
    """What an endpoint says of a request that it took: how many spans it left out, and why."""

    rejected: int = 0
    message: str = ""


class Refused(VimeOtelError):
    """The endpoint will never take this request."""


class Sender(Protocol):
    """A connection to an endpoint, for one thread."""

    def send(self, request: ExportTraceServiceRequest) -> Accepted:
        """Raises Refused, or Unavailable where the same may be taken later."""
        ...

    def close(self) -> None: ...


class Later(Unavailable):
    """The endpoint says when to come again: after `seconds`."""

    def __init__(self, message: str, seconds: float) -> None:
        super().__init__(message)
        self.seconds = seconds


# As OTLP has it, and what a wrong token, address or certificate gives: that is mended, and then nothing is lost.
_GRPC_LATER = frozenset(
    {
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DATA_LOSS,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.UNIMPLEMENTED,
    }
)
_HTTP_LATER = frozenset({301, 302, 307, 308, 401, 403, 404, 405, 407, 408, 429, 502, 503, 504})


class _GrpcSender:
    def __init__(self, endpoint: Endpoint) -> None:
        self._url = endpoint.url
        self._metadata = endpoint.headers
        options = (
            ("grpc.enable_http_proxy", 0),
            ("grpc.initial_reconnect_backoff_ms", 500),
            ("grpc.max_reconnect_backoff_ms", 5000),
        )
        if endpoint.secure:
            credentials = grpc.ssl_channel_credentials(_roots())
            self._channel = grpc.secure_channel(endpoint.target, credentials, options)
        else:
            self._channel = grpc.insecure_channel(endpoint.target, options)
        self._stub: Any = TraceServiceStub(self._channel)  # type: ignore[no-untyped-call]

    def send(self, request: ExportTraceServiceRequest) -> Accepted:
        try:
            return _accepted(self._stub.Export(request, metadata=self._metadata, timeout=TIMEOUT_S))
        except grpc.RpcError as error:
            code, details = error.code(), " ".join(str(error.details()).split())[:_TEXT_SHOWN]
            message = f"{self._url} answers {code.name}: {details}"
            if "http1" in details.lower():
                message = (
                    f"{self._url} speaks HTTP and no gRPC; say so with the path: {self._url.rstrip('/')}{_TRACES_PATH}"
                )
            delay = _retry_delay(error)
            if delay is not None and code in (*_GRPC_LATER, grpc.StatusCode.RESOURCE_EXHAUSTED):
                raise Later(message, delay) from error
            raise Unavailable(message) if code in _GRPC_LATER else Refused(message) from error

    def close(self) -> None:
        self._channel.close()


class _HttpSender:
    def __init__(self, endpoint: Endpoint) -> None:
        self._url = endpoint.url
        self._target = endpoint.target
        self._session = requests.Session()
        self._session.trust_env = False
        self._session.verify = tls.trusted_bundle()
        self._session.headers.update(dict(endpoint.headers))
        self._session.headers["Content-Type"] = "application/x-protobuf"

    def send(self, request: ExportTraceServiceRequest) -> Accepted:
        try:
            answer = self._session.post(
                self._target, request.SerializeToString(), timeout=TIMEOUT_S, allow_redirects=False
            )
        except requests.RequestException as error:
            if tls.is_untrusted(error):
                raise Unavailable(tls.untrusted(self._url)) from error
            raise Unavailable(f"{self._url} can't be reached: {_why(error)}") from error
        if 200 <= answer.status_code < 300:
            return _accepted(_response(answer.content))
        message = f"{self._url} answers {answer.status_code}: {' '.join(answer.text[:_TEXT_SHOWN].split())}"
        if answer.status_code not in _HTTP_LATER:
            raise Refused(message)
        seconds = answer.headers.get("Retry-After", "")
        raise Later(message, float(seconds)) if seconds.isdecimal() else Unavailable(message)

    def close(self) -> None:
        self._session.close()


def _why(error: BaseException) -> str:
    """What is behind an error of `requests`, in few words."""
    if isinstance(error, requests.Timeout):
        return f"no answer within {TIMEOUT_S:g} s"
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, http.client.RemoteDisconnected):
            return "it closed the connection without an answer"
        if isinstance(cause, http.client.BadStatusLine):
            return "it does not speak HTTP"
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror.lower()
        cause = cause.__cause__ or cause.__context__
    return str(error)


def _roots() -> bytes | None:
    """What `data.tls` trusts, for gRPC; None means gRPC's own."""
    bundle = tls.trusted_bundle()
    if isinstance(bundle, str) and Path(bundle).is_file():
        return Path(bundle).read_bytes()
    certificates = ssl.create_default_context().get_ca_certs(binary_form=True)
    return "".join(map(ssl.DER_cert_to_PEM_cert, certificates)).encode() or None


def _accepted(response: ExportTraceServiceResponse) -> Accepted:
    told = response.partial_success
    return Accepted(told.rejected_spans, told.error_message[:_TEXT_SHOWN])


def _response(content: bytes) -> ExportTraceServiceResponse:
    try:
        return ExportTraceServiceResponse.FromString(content)
    except DecodeError:  # many answer 200 with a body of their own
        return ExportTraceServiceResponse()


def _retry_delay(error: Any) -> float | None:
    metadata: Mapping[str, Any] = dict(error.trailing_metadata() or ())
    if _RETRY_INFO not in metadata:
        return None
    delay = RetryInfo.FromString(metadata[_RETRY_INFO]).retry_delay
    return float(delay.seconds + delay.nanos / 1e9)
