"""Where commands print: people's text and JSON on stdout, never both."""

from __future__ import annotations

import sys
from typing import Any

import click
import orjson
from rich.console import Console

_PLAIN_WIDTH = 160


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
    click.echo(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode())
