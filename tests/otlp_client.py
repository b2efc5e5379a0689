"""One client for every way into a collector: gRPC and HTTP, protobuf and JSON, plain and gzip, with like answers."""

from __future__ import annotations

import base64
import gzip
import json
from dataclasses import dataclass
from typing import Any

import grpc
import requests
from google.protobuf.json_format import MessageToDict
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from running_collector import RunningCollector

from collector.otlp.signals import Signal

WAYS = ("grpc", "grpc-gzip", "http", "http-gzip", "json", "json-gzip")
_TYPES = {"http": "application/x-protobuf", "json": "application/json"}
_ID_FIELDS = ("traceId", "spanId", "parentSpanId")


@dataclass(frozen=True)
class Answer:
    """What came back; `code` is gRPC's number, over HTTP that of the Status in the body, 0 for success.

    `retry_seconds` is what the RetryInfo asks for, None where there is none.
    """

    code: int
    http_status: int = 200
    message: str = ""
    rejected: int = 0
    retry_seconds: int | None = None


def send(collector: RunningCollector, way: str, signal: Signal, request: Any, token: str = "") -> Answer:
    """Send a request, given as a message or as its encoded bytes."""
    transport, _, compression = way.partition("-")
    if isinstance(request, bytes):
        content = request
    else:
        content = as_json(signal, request) if transport == "json" else request.SerializeToString()
    if transport == "grpc":
        return _over_grpc(collector, signal, content, bool(compression), token)
    headers = {"Content-Type": _TYPES[transport]}
    if compression:
        headers["Content-Encoding"], content = "gzip", gzip.compress(content, 1)
    if token:
        headers["Authorization"] = f"Bearer {token}"
    answer = requests.post(f"{collector.url}{signal.path}", content, headers=headers, timeout=30)
    return _read(answer, signal)


def as_json(signal: Signal, request: Any) -> bytes:
    """As OTLP's JSON form has it: ids in hexadecimal, enums as integers."""
    tree = MessageToDict(request, use_integers_for_enums=True)

    def walk(node: Any) -> None:
        if isinstance(node, dict):
            for key in _ID_FIELDS:
                if key in node:
                    node[key] = base64.b64decode(node[key]).hex()
        for inner in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
            walk(inner)

    walk(tree)
    return json.dumps(tree).encode()


def _over_grpc(collector: RunningCollector, signal: Signal, content: bytes, compress: bool, token: str) -> Answer:
    options = [("grpc.max_send_message_length", -1)]
    compression = grpc.Compression.Gzip if compress else None
    metadata = [("authorization", f"Bearer {token}")] if token else []
    with grpc.insecure_channel(collector.collector.grpc_address, options, compression) as channel:
        try:
            answer = channel.unary_unary(f"/{signal.grpc_service}/Export")(content, metadata=metadata, timeout=30)
        except grpc.RpcError as error:
            trailers = dict(error.trailing_metadata())
            status = Status.FromString(trailers.get("grpc-status-details-bin", b""))
            seconds = _retry_seconds(status)
            if seconds is not None:
                assert RetryInfo.FromString(trailers["google.rpc.retryinfo-bin"]).retry_delay.seconds == seconds
            return Answer(error.code().value[0], 0, error.details(), retry_seconds=seconds)
    return _success(signal.response_type.FromString(answer), signal)


def _read(answer: requests.Response, signal: Signal) -> Answer:
    as_json = answer.headers["Content-Type"] == "application/json"
    assert answer.request.headers["Content-Type"] == answer.headers["Content-Type"]
    if answer.status_code == 200:
        if not as_json:
            return _success(signal.response_type.FromString(answer.content), signal)
        partial = answer.json().get("partialSuccess", {})
        rejected = next((int(value) for key, value in partial.items() if key.startswith("rejected")), 0)
        return Answer(0, 200, partial.get("errorMessage", ""), rejected)
    if as_json:
        body = answer.json()
        details = [each.get("retryDelay") for each in body.get("details", [])]
        seconds = int(details[0].rstrip("s")) if details else None
        code, message = body["code"], body["message"]
    else:
        status = Status.FromString(answer.content)
        code, message, seconds = status.code, status.message, _retry_seconds(status)
    assert answer.headers.get("Retry-After") == (None if seconds is None else str(seconds))
    return Answer(code, answer.status_code, message, retry_seconds=seconds)


def _success(response: Any, signal: Signal) -> Answer:
    partial = response.partial_success
    return Answer(0, 200, partial.error_message, getattr(partial, signal.rejected_field))


def _retry_seconds(status: Status) -> int | None:
    retry = RetryInfo()
    return retry.retry_delay.seconds if any(detail.Unpack(retry) for detail in status.details) else None
