"""Starting and stopping the collector: both listeners, the control routes, the recordings."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from vime_otel.data import settings
from vime_otel.data.errors import UsageError, VimeOtelError
from vime_otel.data.write_run import check_writable

from . import control, health
from .addresses import is_loopback
from .auth import Token
from .counts import Counts
from .disk import DiskLimit
from .forwarding.endpoint import Endpoint
from .forwarding.forwarder import DRAIN_SECONDS, Forwarder
from .forwarding.selection import Choice
from .guard import guard
from .metrics import Metrics
from .otlp import otlp_grpc, otlp_http
from .otlp.limits import DEFAULT_LIMIT_BYTES, Budget
from .recordings.patience import Patience
from .recordings.recordings import Recordings
from .tls import ServerTls

# What is no HTTP at all gets its 400; a traceback of each in the log helps nobody.
_http_log = logging.getLogger(f"{__name__}.http")
_http_log.setLevel(logging.CRITICAL)

_HTTP_SHUTDOWN_S = 2.0
_GRPC_GRACE_S = 1.0
_LOOPBACK_OF = {"0.0.0.0": "127.0.0.1", "::": "::1"}
_SOMEWHERE = ("192.0.2.1", 9)


@dataclass(frozen=True)
class CollectorConfig:
    """Where to listen (port 0 takes a free one), where runs go, and who may come in.

    With `serves` what engines sample (VIME_OTEL_SAMPLE_EVERY) and spans of other services go into runs of the day.
    What comes goes on to the `forward` endpoints, as far as it is in the `forwarded` choice. `trace_link` goes
    into every run; the oldest runs are removed beyond `max_disk` bytes.
    """

    runs_root: Path
    version: str
    grpc_host: str = "127.0.0.1"
    grpc_port: int = 4317
    http_host: str = "127.0.0.1"
    http_port: int = 4318
    token: str = ""
    insecure: bool = False
    serves: bool = False
    tls: ServerTls | None = None
    forward: tuple[Endpoint, ...] = ()
    forwarded: Choice = field(default_factory=Choice)
    drain_seconds: float = DRAIN_SECONDS
    trace_link: str | None = None
    max_disk: int | None = None
    patience: Patience = field(default_factory=Patience)
    pending_bytes: int = DEFAULT_LIMIT_BYTES
    """Memory for requests that are read, written and summed; beyond, clients are asked to come again."""


class Collector:
    """The collector. `start` and `stop` belong to one event loop; stopping twice is fine."""

    def __init__(self, config: CollectorConfig) -> None:
        self.config = config
        self.http_port = config.http_port
        self.grpc_port = config.grpc_port
        self._token = Token(config.token)
        self._recordings = Recordings(
            config.runs_root.absolute(),
            config.version,
            config.patience,
            lambda: self.url,
            bool(config.token),
            config.serves,
            config.trace_link,
            self._forward_run,
        )
        self._budget = Budget(self.counts, config.pending_bytes)
        self._metrics = Metrics(self.counts, self._recordings.refresh_counts)
        self._stopping = False
        self._runner: web.AppRunner | None = None
        self._grpc: Any = None

    @property
    def forwarders(self) -> list[Forwarder]:
        """What sends spans on, one each endpoint; empty once it is stopped."""
        return self._metrics.forwarders

    @property
    def counts(self) -> Counts:
        """What it counts."""
        return self._recordings.counts

    @property
    def url(self) -> str:
        """Where recorders and commands find it."""
        return f"{self._scheme}://{_for_others(self.config.http_host)}:{self.http_port}"

    @property
    def local_url(self) -> str:
        """Where this process finds it."""
        host = _LOOPBACK_OF.get(self.config.http_host, self.config.http_host)
        return f"{self._scheme}://{_bracketed(host)}:{self.http_port}"

    @property
    def local_context(self) -> ssl.SSLContext | None:
        """What a client at `local_url` has to trust; None without TLS."""
        return self.config.tls.own_clients_context() if self.config.tls else None

    @property
    def _scheme(self) -> str:
        return "https" if self.config.tls else "http"

    @property
    def grpc_address(self) -> str:
        """Where OTLP over gRPC comes in."""
        return f"{_for_others(self.config.grpc_host)}:{self.grpc_port}"

    async def start(self) -> None:
        """Open both listeners. Raises VimeOtelError, with neither open, where that can't be done."""
        self._check_access()
        check_writable(self.config.runs_root, "--out")
        self._start_forwarding()
        self._recordings.begin()
        try:
            if self.config.max_disk is not None:
                self._metrics.disk = DiskLimit(self.config.runs_root.absolute(), self.config.max_disk)
                self._metrics.disk.start()
            await self._start_http()
            await self._start_grpc()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Disarm what is being recorded, write it, close the listeners, forward what is left."""
        self._stopping = True
        await self._recordings.stop()
        grpc_server, self._grpc = self._grpc, None
        if grpc_server is not None:
            await grpc_server.stop(_GRPC_GRACE_S)
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()
        forwarders, self.forwarders[:] = list(self.forwarders), []
        await asyncio.gather(*(asyncio.to_thread(each.stop, self.config.drain_seconds) for each in forwarders))
        if self._metrics.disk is not None:
            await asyncio.to_thread(self._metrics.disk.stop)

    def _start_forwarding(self) -> None:
        """Before anything is resumed, which opens runs."""
        for endpoint in self.config.forward:
            forwarder = Forwarder(endpoint, self.config.runs_root.absolute(), self.config.forwarded)
            forwarder.start()
            self.forwarders.append(forwarder)

    def _forward_run(self, run: Path) -> None:
        for forwarder in self.forwarders:
            forwarder.take_up(run)

    def _not_ready(self) -> str:
        if self._stopping:
            return "the collector is being stopped"
        if not health.writable(self.config.runs_root):
            return "the folder of the runs can't be written"
        return "the disk refuses what comes" if self._recordings.intake.commits.refuses else ""

    def _check_access(self) -> None:
        beyond = [host for host in (self.config.http_host, self.config.grpc_host) if not is_loopback(host)]
        if beyond and not self.config.token and not self.config.insecure:
            raise UsageError(
                f"whoever reaches {beyond[0]} could arm the engines: set {settings.TOKEN.name}"
                " (here and in the engines' environment), or say --insecure"
            )

    async def _start_http(self) -> None:
        context = self.config.tls.http_context() if self.config.tls else None
        loopback_only = is_loopback(self.config.http_host)
        admission = guard(self._token, loopback_only, self._recordings.recorders.refused, self.counts)
        app = web.Application(middlewares=[admission])
        otlp_http.add_routes(app, self._recordings.intake, self._budget)
        control.add_routes(app, self._recordings)
        health.add_routes(app, self._metrics, self._not_ready)
        runner = web.AppRunner(
            app,
            access_log=None,
            logger=_http_log,
            auto_decompress=False,
            handler_cancellation=True,
            shutdown_timeout=_HTTP_SHUTDOWN_S,
        )
        await runner.setup()
        self._runner = runner
        listener = _listen(self.config.http_host, self.config.http_port, "--http")
        self.http_port = listener.getsockname()[1]
        await web.SockSite(runner, listener, ssl_context=context).start()

    async def _start_grpc(self) -> None:
        self._grpc = otlp_grpc.make_server(self._recordings.intake, self._budget, self._token)
        port = self.config.grpc_port
        if port:
            # Our own attempt tells why a port can't be had; gRPC's would only say that it can't.
            _listen(self.config.grpc_host, port, "--grpc").close()
        host = _bracketed(self.config.grpc_host)
        try:
            if self.config.tls:
                self.grpc_port = self._grpc.add_secure_port(f"{host}:{port}", self.config.tls.grpc_credentials())
            else:
                self.grpc_port = self._grpc.add_insecure_port(f"{host}:{port}")
        except RuntimeError as error:
            raise VimeOtelError(_in_use(self.config.grpc_host, port, "--grpc", "taken meanwhile")) from error
        await self._grpc.start()


def _listen(host: str, port: int, option: str) -> socket.socket:
    """A bound socket; raises VimeOtelError with the way out."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(1024)
    except (OSError, OverflowError) as error:
        listener.close()
        raise VimeOtelError(_in_use(host, port, option, getattr(error, "strerror", None) or str(error))) from error
    return listener


def _in_use(host: str, port: int, option: str, why: str) -> str:
    way_out = f"choose another place with {option} HOST:PORT (port 0 takes a free one)"
    return f"can't listen on {host}:{port} ({why}); {way_out}"


def _for_others(host: str) -> str:
    """A host that others can use: where we listen on all addresses, the one of this machine that leads out."""
    if host not in _LOOPBACK_OF:
        return _bracketed(host)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_SOMEWHERE)  # of a datagram socket: it sends nothing, it only chooses the way
            return str(probe.getsockname()[0])
        except OSError:
            return socket.gethostname()


def _bracketed(host: str) -> str:
    """As it stands in a URL."""
    return f"[{host}]" if ":" in host else host
