"""Options and arguments that several subcommands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import urlsplit

import click

from ..data import settings
from ..data.errors import UsageError

_Command = TypeVar("_Command", bound=Callable[..., Any])


def clean_url(text: str) -> str:
    """The URL without a trailing slash, `http://` put before a bare host:port; UsageError for anything else."""
    url = text if "://" in text else f"http://{text}"
    parts = urlsplit(url)
    try:
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid or parts.query or parts.fragment:
        raise UsageError(f"{text!r} is not a URL such as http://127.0.0.1:3521")
    return url.rstrip("/")


def engine_options(command: _Command) -> _Command:
    """`--router`, `--worker`, `--limit`: which engines a command reaches."""
    for option in (
        click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Only the first N workers."),
        click.option(
            "--worker", "workers", multiple=True, type=clean_url, metavar="URL", help="A worker; may be repeated."
        ),
        click.option("--router", type=clean_url, metavar="URL", help="The router whose workers are meant."),
    ):
        command = option(command)
    return command


def run_argument(command: _Command) -> _Command:
    """A RUN argument: `latest`, the beginning of an id, a folder's name or a path."""
    return click.argument("run", default="latest", metavar="[RUN]")(command)


def runs_option(command: _Command) -> _Command:
    """`--runs DIR`: where the run directories are; passed on as given, or None."""
    return click.option(
        "--runs", metavar="DIR", help=f"Folder of the runs (default: ${settings.RUNS.name}, or ./runs)."
    )(command)


def json_option(command: _Command) -> _Command:
    """`--json`: machine-readable output, alone on stdout."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)
