"""One event of a Chrome trace, as far as it is read, and how blocks of them are decoded.

The format is Google's "Trace Event Format"; which categories and arguments occur is up to torch's kineto.
"""

from __future__ import annotations

import json
import re
from typing import Annotated, Any

import msgspec

MOST_US = 2**51
"""Times and durations beyond this many microseconds (Unix times from 2041 on) are taken for none: sums need room."""

_Microseconds = (
    Annotated[int, msgspec.Meta(ge=-MOST_US, le=MOST_US)] | Annotated[float, msgspec.Meta(ge=-MOST_US, le=MOST_US)]
)


MOST_ID = 2**62
"""Identities and correlations beyond this are no integers of 64 bits, which is what is kept of them."""

_Int = Annotated[int, msgspec.Meta(ge=-MOST_ID, le=MOST_ID)]


class Args(msgspec.Struct, gc=False):
    """The arguments that are looked at; all others are passed over by the decoder."""

    correlation: _Int | str | None = None
    name: Any = None
    labels: Any = None
    collective: Any = msgspec.field(default=None, name="Collective name")
    group: Any = msgspec.field(default=None, name="Process Group Name")
    elements: Any = msgspec.field(default=None, name="In msg nelems")


class Event(msgspec.Struct, gc=False):
    """An entry of `traceEvents`; times in microseconds, integers or with a fraction."""

    ph: str = ""
    name: str = ""
    cat: str = ""
    pid: _Int | float | str | None = None
    tid: _Int | float | str | None = None
    ts: _Microseconds | None = None
    dur: _Microseconds | None = None
    args: Args | None = None


_block_decoder = msgspec.json.Decoder(list[Event])
_decoder = msgspec.json.Decoder()
# Kineto has written C's names of what JSON has no number for.
_NO_NUMBER = re.compile(rb":\s*-?(?:nan|inf|infinity)(?=\s*[,}\]])", re.IGNORECASE)


def decode_block(content: bytes) -> list[Event]:
    """The events of a JSON array; raises msgspec.DecodeError where it is none or holds something else."""
    try:
        return _block_decoder.decode(content)
    except (msgspec.DecodeError, RecursionError):
        pass
    try:
        return _block_decoder.decode(without_nan(content))
    except RecursionError as error:  # nested deeper than the decoder goes
        raise msgspec.DecodeError(str(error)) from error


def decode_value(content: bytes) -> Any:
    """Any JSON, with None where a value is no number; raises msgspec.DecodeError."""
    try:
        return _decoder.decode(without_nan(content))
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        pass
    try:  # takes what Python's own writes into lists, too
        return json.loads(content, parse_constant=lambda name: None)
    except (ValueError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from error


def decode_one(content: bytes) -> Event | None:
    """One event whose fields may be of unexpected types; None where it is no JSON object."""
    try:
        raw = decode_value(content)
    except msgspec.DecodeError:
        return None
    if not isinstance(raw, dict):
        return None
    args = raw.get("args")
    return Event(
        ph=str(raw.get("ph", "")),
        name=str(raw.get("name", "")),
        cat=str(raw.get("cat", "")),
        pid=_identity(raw.get("pid")),
        tid=_identity(raw.get("tid")),
        ts=_number(raw.get("ts")),
        dur=_number(raw.get("dur")),
        args=_args(args) if isinstance(args, dict) else None,
    )


def without_nan(content: bytes) -> bytes:
    """The JSON with `null` where a value is `nan` or `inf`."""
    return _NO_NUMBER.sub(b": null", content)


def _args(raw: dict[str, Any]) -> Args:
    correlation = raw.get("correlation")
    return Args(
        correlation=correlation if isinstance(correlation, str) or _is_int(correlation) else None,
        name=raw.get("name"),
        labels=raw.get("labels"),
        collective=raw.get("Collective name"),
        group=raw.get("Process Group Name"),
        elements=raw.get("In msg nelems"),
    )


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and abs(value) <= MOST_ID


def _identity(value: Any) -> int | float | str | None:
    return value if value is None or isinstance(value, float | str) or _is_int(value) else str(value)


def _number(value: Any) -> int | float | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    return value if isinstance(value, int | float) and abs(value) <= MOST_US else None
