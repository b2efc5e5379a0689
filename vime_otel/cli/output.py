"""Where commands print: people's text and JSON on stdout, never both."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Mapping
from typing import Any, TextIO, cast

import click
import orjson
from rich.console import Console

from ..data.errors import VimeOtelError

_PLAIN_WIDTH = 160


class Failure(VimeOtelError):
    """A failure of which `details` are known; with --json they stand beside the error."""

    def __init__(self, message: str, details: Mapping[str, Any]) -> None:
        super().__init__(message)
        self.details = details


def unfailing(stream: TextIO) -> TextIO:
    """The stream, swallowing what can't be written: a closed terminal must not end a recording."""
    return cast(TextIO, _Unfailing(stream))


class _Unfailing:
    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()


def console() -> Console:
    """A console on stdout: plain and wide in a pipe, without colour under NO_COLOR."""
    return Console(
        highlight=False,
        emoji=False,
        markup=False,
        width=None if sys.stdout.isatty() else _PLAIN_WIDTH,
        soft_wrap=False,
    )


def print_json(value: Any) -> None:
    """`value` as indented JSON."""
    try:
        text = orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()
    except TypeError:  # a lone surrogate, of a file's name perhaps
        text = json.dumps(value, indent=2)
    click.echo(text)
