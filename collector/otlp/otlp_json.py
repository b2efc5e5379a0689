"""OTLP's JSON form: protobuf's, but with hexadecimal trace and span ids."""

from __future__ import annotations

import base64
from typing import Any

import orjson
from google.protobuf import json_format

from .signals import Signal

_ID_BYTES = {"trace_id": 16, "span_id": 8, "parent_span_id": 8}


def decode(signal: Signal, content: bytes) -> Any:
    """The request in `content`. Raises ValueError where it is none."""
    try:
        tree = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"the body is not JSON: {error}") from error
    if not isinstance(tree, dict):
        raise ValueError("the body is not a JSON object")
    for item in _items(signal, tree):
        _convert_ids(item)
        for link in _children(item, "links"):
            _convert_ids(link)
    try:
        return json_format.ParseDict(tree, signal.request_type(), ignore_unknown_fields=True)
    except (json_format.ParseError, ValueError, TypeError, AttributeError, KeyError) as error:
        raise ValueError(f"the body is not an OTLP request: {error}") from error


def encode(message: Any) -> bytes:
    """An answer (a response or a Status) as JSON."""
    return orjson.dumps(json_format.MessageToDict(message))


def _items(signal: Signal, tree: dict[str, Any]) -> list[dict[str, Any]]:
    """The spans or log records of a JSON tree; what is not of the expected shape is left to the parser."""
    return [
        item
        for resource in _children(tree, signal.resources_field)
        for scope in _children(resource, signal.scopes_field)
        for item in _children(scope, signal.items_field)
    ]


def _children(node: dict[str, Any], field: str) -> list[dict[str, Any]]:
    """The objects of a list field. Protobuf would take the field's other spelling too, with its ids unread."""
    name = _camel(field)
    if name != field:
        node.pop(field, None)
    value = node.get(name)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _convert_ids(item: dict[str, Any]) -> None:
    """Ids from hexadecimal to the base64 that protobuf's own JSON form has."""
    for field, length in _ID_BYTES.items():
        item.pop(field, None)
        name = _camel(field)
        text = item.get(name)
        if text is None or text == "":
            continue
        try:
            value = bytes.fromhex(text)
        except (TypeError, ValueError):
            value = b""
        if len(value) != length or len(text) != 2 * length:
            raise ValueError(f"{name} {text!r} is not {2 * length} hexadecimal digits")
        item[name] = base64.b64encode(value).decode()


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)
