"""Starting and stopping the collector: both listeners, the control routes, the recordings."""

from __future__ import annotations

import logging
import socket
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from vime_otel.data import settings
from vime_otel.data.errors import UsageError, VimeOtelError

from . import control, otlp_grpc, otlp_http
from .addresses import is_loopback, names_loopback
from .auth import Token
from .faults import log_fault
from .patience import Patience
from .recordings import Recordings
from .refused import RefusedPolls

_log = logging.getLogger(__name__)
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

    With `samples` it takes what engines sample (VIME_OTEL_SAMPLE_EVERY).
    """

    runs_root: Path
    version: str
    grpc_host: str = "127.0.0.1"
    grpc_port: int = 4317
    http_host: str = "127.0.0.1"
    http_port: int = 4318
    token: str = ""
    insecure: bool = False
    samples: bool = False
    patience: Patience = field(default_factory=Patience)


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
            config.samples,
        )
        self._runner: web.AppRunner | None = None
        self._grpc: Any = None

    @property
    def url(self) -> str:
        """Where recorders and commands find it."""
        return f"http://{_for_others(self.config.http_host)}:{self.http_port}"

    @property
    def local_url(self) -> str:
        """Where this process finds it."""
        host = _LOOPBACK_OF.get(self.config.http_host, self.config.http_host)
        return f"http://{_bracketed(host)}:{self.http_port}"

    @property
    def grpc_address(self) -> str:
        """Where OTLP over gRPC comes in."""
        return f"{_for_others(self.config.grpc_host)}:{self.grpc_port}"

    async def start(self) -> None:
        """Open both listeners. Raises VimeOtelError, with neither open, where that can't be done."""
        self._check_access()
        self._check_runs_root()
        self._recordings.start_rolling()
        try:
            await self._start_http()
            await self._start_grpc()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Disarm what is being recorded, write it, close the listeners."""
        await self._recordings.stop()
        grpc_server, self._grpc = self._grpc, None
        if grpc_server is not None:
            await grpc_server.stop(_GRPC_GRACE_S)
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    def _check_access(self) -> None:
        beyond = [host for host in (self.config.http_host, self.config.grpc_host) if not is_loopback(host)]
        if beyond and not self.config.token and not self.config.insecure:
            raise UsageError(
                f"whoever reaches {beyond[0]} could arm the engines: set {settings.TOKEN.name}"
                " (here and in the engines' environment), or say --insecure"
            )

    def _check_runs_root(self) -> None:
        root = self.config.runs_root
        try:
            root.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=root):
                pass
        except OSError as error:
            raise VimeOtelError(
                f"runs can't be written to {root} ({error.strerror}); name another folder with --out DIR"
            ) from error

    async def _start_http(self) -> None:
        loopback_only = is_loopback(self.config.http_host)
        app = web.Application(middlewares=[_guard(self._token, loopback_only, self._recordings.recorders.refused)])
        otlp_http.add_routes(app, self._recordings.intake)
        control.add_routes(app, self._recordings)
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
        await web.SockSite(runner, listener).start()

    async def _start_grpc(self) -> None:
        self._grpc = otlp_grpc.make_server(self._recordings.intake, self._token)
        port = self.config.grpc_port
        if port:
            # Our own attempt tells why a port can't be had; gRPC's would only say that it can't.
            _listen(self.config.grpc_host, port, "--grpc").close()
        host = _bracketed(self.config.grpc_host)
        try:
            self.grpc_port = self._grpc.add_insecure_port(f"{host}:{port}")
        except RuntimeError as error:
            raise VimeOtelError(_in_use(self.config.grpc_host, port, "--grpc", "taken meanwhile")) from error
        await self._grpc.start()


def _guard(token: Token, loopback_only: bool, refused: RefusedPolls) -> Any:
    """Ask for the token, and give every error the body that its route's clients read.

    `loopback_only` refuses other names in Host: a browser's page could reach us under a name of its own.
    """

    @web.middleware
    async def guard(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        if loopback_only and not names_loopback(request.headers.get("Host", "localhost")):
            return _error(request, 403, "this collector listens on loopback: call it 127.0.0.1 or localhost")
        if not token.admits(request.headers.get("Authorization")):
            if request.path == control.POLL:
                refused.note(request.remote or "?")
            return _error(request, 401, token.refusal)
        try:
            return await handler(request)
        except web.HTTPMethodNotAllowed as error:
            allowed = ", ".join(sorted(error.allowed_methods))
            response = _error(request, 405, f"{request.path} takes {allowed}, not {request.method}")
            response.headers["Allow"] = allowed
            return response
        except web.HTTPNotFound:
            return _error(request, 404, f"there is nothing at {request.path:.100}; docs/formats.md lists the routes")
        except web.HTTPException as error:
            return _error(request, error.status, error.reason)
        except Exception as error:  # noqa: BLE001 - no request may end the process
            log_fault(_log, f"{request.method} {request.path}", error)
            return _error(request, 500, f"a fault of the collector: {type(error).__name__}")

    return guard


def _error(request: web.Request, status: int, message: str) -> web.Response:
    if request.path in otlp_http.PATHS:
        return otlp_http.error_response(request, status, message)
    return control.error_response(status, message)


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
