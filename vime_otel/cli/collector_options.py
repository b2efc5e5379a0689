"""Options of the commands that run a collector: `collect` and `serve`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from collector.server import CollectorConfig

from ..data import settings
from ..data.errors import UsageError
from ..data.rundir import runs_root
from ..version import __version__
from .options import FOLDER

_Command = TypeVar("_Command", bound=Callable[..., Any])
_MAX_PORT = 65535


@dataclass(frozen=True)
class Place:
    """A host and a port; port 0 means any free one."""

    host: str
    port: int


def place(text: str) -> Place:
    """A place from `HOST:PORT`; UsageError for anything else."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdecimal() or int(port) > _MAX_PORT:
        raise UsageError(f"{text!r} is not HOST:PORT, such as 127.0.0.1:4318")
    return Place(host, int(port))


def collector_options(command: _Command) -> _Command:
    """`--grpc`, `--http`, `--out`, `--insecure`: passed on as `grpc`, `http`, `out`, `insecure`."""
    for option in (
        click.option(
            "--insecure", is_flag=True, help=f"Listen beyond loopback without a token (${settings.TOKEN.name})."
        ),
        click.option(
            "--out", type=FOLDER, metavar="DIR", help=f"Folder of the runs (default: ${settings.RUNS.name}, or ./runs)."
        ),
        click.option(
            "--http",
            type=place,
            metavar="HOST:PORT",
            default="127.0.0.1:4318",
            show_default=True,
            help="Where recorders and OTLP over HTTP come in.",
        ),
        click.option(
            "--grpc",
            type=place,
            metavar="HOST:PORT",
            default="127.0.0.1:4317",
            show_default=True,
            help="Where OTLP over gRPC comes in.",
        ),
    ):
        command = option(command)
    return command


def collector_config(grpc: Place, http: Place, out: str | None, insecure: bool) -> CollectorConfig:
    """The collector that the options ask for; the token comes from the environment."""
    return CollectorConfig(
        runs_root=runs_root(out),
        version=__version__,
        grpc_host=grpc.host,
        grpc_port=grpc.port,
        http_host=http.host,
        http_port=http.port,
        token=settings.secret(settings.TOKEN),
        insecure=insecure,
    )
