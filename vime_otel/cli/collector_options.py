"""Options of the commands that run a collector: `collect` and `serve`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from collector.forwarding.endpoint import parse_endpoint
from collector.forwarding.selection import Choice
from collector.server import CollectorConfig
from collector.tls import ServerTls

from ..data import settings
from ..data.errors import UsageError
from ..data.find_runs import runs_root
from ..data.trace_link import parse_trace_link
from ..version import __version__
from .options import FOLDER, Seconds

_Command = TypeVar("_Command", bound=Callable[..., Any])
_MAX_PORT = 65535
ONE_RANK = "one"
ALL_RANKS = "all"


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


class _Share(Seconds):
    """A finite number from 0 to 1."""

    name = "share"


def sample_option(name: str) -> Callable[[_Command], _Command]:
    """A share of the steps that are sent."""
    return click.option(
        name, type=_Share(0, 1), default=1.0, show_default=True, help="Share of the steps that are sent, whole."
    )


def ranks_option(name: str) -> Callable[[_Command], _Command]:
    """One rank of a step, or all."""
    return click.option(
        name, type=click.Choice((ONE_RANK, ALL_RANKS)), default=ONE_RANK, show_default=True, help="Ranks that are sent."
    )


def collector_options(command: _Command) -> _Command:
    """Where a collector listens, what it asks for and writes; passed on as `config`."""

    @functools.wraps(command)
    def with_config(
        *args: Any,
        grpc: Place,
        http: Place,
        out: str | None,
        insecure: bool,
        tls_cert: str | None,
        tls_key: str | None,
        forward: tuple[str, ...],
        forward_sample: float,
        forward_ranks: str,
        trace_link: str | None,
        **others: Any,
    ) -> Any:
        config = CollectorConfig(
            runs_root=runs_root(out),
            version=__version__,
            grpc_host=grpc.host,
            grpc_port=grpc.port,
            http_host=http.host,
            http_port=http.port,
            token=settings.secret(settings.TOKEN),
            insecure=insecure,
            tls=_tls(tls_cert, tls_key),
            forward=tuple(map(parse_endpoint, dict.fromkeys(forward))),
            forwarded=Choice(forward_sample, forward_ranks == ALL_RANKS),
            trace_link=trace_link,
        )
        return command(*args, config=config, **others)

    for option in reversed(_OPTIONS):
        with_config = option(with_config)
    return cast("_Command", with_config)


_OPTIONS = (
    click.option(
        "--grpc",
        type=place,
        metavar="HOST:PORT",
        default="127.0.0.1:4317",
        show_default=True,
        help="Where OTLP over gRPC comes in.",
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
        "--out", type=FOLDER, metavar="DIR", help=f"Folder of the runs (default: ${settings.RUNS.name}, or ./runs)."
    ),
    click.option("--insecure", is_flag=True, help=f"Listen beyond loopback without a token (${settings.TOKEN.name})."),
    click.option(
        "--tls-cert", type=FOLDER, metavar="FILE", help="Speak TLS on both ports, with this certificate chain (PEM)."
    ),
    click.option("--tls-key", type=FOLDER, metavar="FILE", help="The certificate's key (PEM)."),
    click.option(
        "--forward",
        multiple=True,
        metavar="URL",
        help="Send spans on to Jaeger, Tempo or any OTLP endpoint; may be repeated. gRPC, or HTTP on port 4318 and"
        f" where URL has a path. Headers come from ${settings.FORWARD_HEADERS.name}.",
    ),
    sample_option("--forward-sample"),
    ranks_option("--forward-ranks"),
    click.option(
        "--trace-link",
        type=parse_trace_link,
        metavar="URL",
        help="Where a step's trace can be seen, `{trace_id}` standing for its id; runs link there.",
    ),
)
OWN_COLLECTOR_ONLY = (
    "grpc",
    "http",
    "out",
    "insecure",
    "tls_cert",
    "tls_key",
    "forward",
    "forward_sample",
    "forward_ranks",
    "trace_link",
)
"""The options' names: they mean nothing to a command that asks another collector."""


def _tls(certificate: str | None, key: str | None) -> ServerTls | None:
    if not certificate and not key:
        return None
    if not certificate or not key:
        raise UsageError("--tls-cert and --tls-key go together; give both")
    return ServerTls(Path(certificate), Path(key))
