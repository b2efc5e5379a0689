"""Speaks for an engine that is gone while what it left is sent: its collector would end the recording else."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import asdict
from types import TracebackType
from typing import Any

import requests

from vime_otel.data import tls

from .status import Status
from .window import Window

PROTOCOL = 1
_WAIT_SECONDS = 0.25
_PAUSE_SECONDS = 1.0
_TIMEOUT_SECONDS = 10.0


class StandIn:
    """While entered, the collector hears from the engine of a window that it is exporting.

    It names no API port, so that nobody takes it for an engine that can be recorded.
    """

    def __init__(self, window: Window, url: str, token: str) -> None:
        recording, steps = window.command.recording, len(window.steps)
        self._url = f"{url}/control/v1/recorders/poll"
        self._token = token
        self._body: dict[str, Any] = {
            "protocol": PROTOCOL,
            "recorder": {**window.engine, "addresses": [], "api_ports": []},
            "status": asdict(Status("exporting", recording, steps, window.command.steps)),
            "seen": None,
            "wait_seconds": _WAIT_SECONDS,
        }
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._poll, name="stand-in", daemon=True)

    def __enter__(self) -> StandIn:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _poll(self) -> None:
        with requests.Session() as session:
            session.trust_env = False
            session.verify = tls.trusted_bundle()
            if self._token:
                session.headers["Authorization"] = f"Bearer {self._token}"
            while not self._ended.is_set():
                with contextlib.suppress(requests.RequestException):  # what is sent meanwhile tells of it
                    session.post(self._url, json=self._body, timeout=_TIMEOUT_SECONDS)
                self._ended.wait(_PAUSE_SECONDS)
