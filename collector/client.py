"""The client of the control routes, for commands."""

from __future__ import annotations

import asyncio
import ssl
from types import TracebackType
from typing import Any

import aiohttp
import orjson

from vime_otel.data import settings, tls
from vime_otel.data.errors import VimeOtelError
from vime_otel.data.urls import shown

from .addresses import host_and_port, server_url
from .control import PREFIX
from .http_client import new_session, why
from .recordings.messages import RecordingRequest

_TIMEOUT_S = 30.0
_DEFAULT_PLACE = "127.0.0.1:4318"


class NoCollector(VimeOtelError):
    """Nobody answers at the collector's URL."""


def listening_option(url: str) -> str:
    """What a collector's command needs to listen where `url` points: ` --http HOST:PORT`, or nothing."""
    host, port = host_and_port(url)
    place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return "" if place == _DEFAULT_PLACE else f" --http {place}"


class Client:
    """Talks to a collector; to be used with `async with`. Every failure is a VimeOtelError."""

    def __init__(self, url: str, token: str, context: ssl.SSLContext | None = None) -> None:
        """`context` says which certificates are trusted; by default those of `data.tls`."""
        self._context = context
        self._url = server_url(url)
        self._shown = shown(self._url)
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    async def __aenter__(self) -> Client:
        self._session = new_session(_TIMEOUT_S, self._context)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def recorders(self) -> dict[str, Any]:
        """Who polls: `recorders` have introduced themselves, `refused` were without the right token."""
        answer = await self._call("GET", "/recorders")
        if not isinstance(answer.get("recorders"), list):
            raise VimeOtelError(f"{self._shown} answered no list of recorders: it is no vime-otel collector")
        return answer

    async def start(self, request: RecordingRequest) -> dict[str, Any]:
        """Begin a recording; returns it as docs/formats.md has it."""
        return await self._call("POST", "/recordings", orjson.dumps(request.as_dict()))

    async def show(self, recording_id: str) -> dict[str, Any]:
        """How a recording stands."""
        return await self._call("GET", f"/recordings/{recording_id}")

    async def stop(self, recording_id: str) -> dict[str, Any]:
        """Disarm a recording's engines everywhere; it ends soon after."""
        return await self._call("DELETE", f"/recordings/{recording_id}")

    async def _call(self, method: str, path: str, body: bytes | None = None) -> dict[str, Any]:
        headers = dict(self._headers)
        if body is not None:
            headers["Content-Type"] = "application/json"
        try:
            async with self._session.request(
                method, f"{self._url}{PREFIX}{path}", data=body, headers=headers
            ) as response:
                status, content = response.status, await response.read()
        except aiohttp.ClientSSLError as error:
            if tls.is_untrusted(error):
                raise VimeOtelError(tls.untrusted(self._shown)) from error
            raise VimeOtelError(f"{self._shown} speaks no TLS; is it http://?") from error
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError, ValueError) as error:
            raise NoCollector(
                f"no collector answers at {self._shown} ({why(error)});"
                f" start one with `vime-otel serve{listening_option(self._url)}`"
            ) from error
        if status == 401:
            what = "another token; mend" if self._headers else "a token; set"
            raise VimeOtelError(f"the collector {self._shown} asks for {what} {settings.TOKEN.name}")
        try:
            answer = orjson.loads(content)
            if status < 300 and isinstance(answer, dict):
                return answer
            message = str(answer["error"]["message"])
        except (orjson.JSONDecodeError, LookupError, TypeError) as error:
            raise VimeOtelError(
                f"{self._shown} answered HTTP {status} and no JSON of ours: it is no vime-otel collector"
            ) from error
        raise VimeOtelError(message)
