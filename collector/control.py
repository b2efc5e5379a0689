"""The control routes of docs/formats.md: recorders poll, commands start and follow recordings."""

from __future__ import annotations

from typing import Any

import orjson
from aiohttp import web

from vime_otel.data.errors import VimeOtelError

from .otlp.http_body import BodyTooLarge, BodyUnreadable, UnknownEncoding, read_body
from .recordings.messages import Invalid, read_poll, read_recording_request
from .recordings.recordings import Conflict, Recordings, Unknown

PREFIX = "/control/v1"
POLL = f"{PREFIX}/recorders/poll"
_MAX_BODY_BYTES = 1024 * 1024


def add_routes(app: web.Application, recordings: Recordings) -> None:
    """Serve the control routes."""
    routes = _Routes(recordings)
    app.router.add_post(POLL, routes.poll)
    app.router.add_get(f"{PREFIX}/recorders", routes.list_recorders)
    app.router.add_post(f"{PREFIX}/recordings", routes.start)
    app.router.add_get(f"{PREFIX}/recordings/{{id}}", routes.show)
    app.router.add_delete(f"{PREFIX}/recordings/{{id}}", routes.stop)


def error_response(status: int, message: str) -> web.Response:
    """An error of a control route."""
    return _json({"error": {"message": message}}, status)


class _Routes:
    def __init__(self, recordings: Recordings) -> None:
        self._recordings = recordings

    async def poll(self, request: web.Request) -> web.Response:
        try:
            poll = read_poll(await _read_json(request))
        except _Refusal as refusal:
            return refusal.response
        except VimeOtelError as error:
            return error_response(400, str(error))
        command = await self._recordings.recorders.poll(poll)
        samples = self._recordings.rolling is not None
        return _json({"command": command.body if command else None, "samples": samples})

    async def list_recorders(self, request: web.Request) -> web.Response:
        return _json(
            {
                "recorders": [
                    {
                        **each.introduction.as_dict(),
                        "phase": each.status.phase,
                        "last_seen_seconds": round(each.silent_seconds(), 3),
                    }
                    for each in self._recordings.recorders.alive()
                ],
                "refused": self._recordings.recorders.refused.lately(),
            }
        )

    async def start(self, request: web.Request) -> web.Response:
        try:
            recording = await self._recordings.start(read_recording_request(await _read_json(request)))
        except _Refusal as refusal:
            return refusal.response
        except Conflict as error:
            return error_response(409, str(error))
        except VimeOtelError as error:
            return error_response(400, str(error))
        return _json(recording.as_dict(), 201)

    async def show(self, request: web.Request) -> web.Response:
        try:
            return _json(self._recordings.get(request.match_info["id"]).as_dict())
        except Unknown as error:
            return error_response(404, str(error))

    async def stop(self, request: web.Request) -> web.Response:
        try:
            recording = self._recordings.get(request.match_info["id"])
        except Unknown as error:
            return error_response(404, str(error))
        recording.stop("the recording was cancelled")
        return _json(recording.as_dict())


class _Refusal(Exception):
    """A body that can't be read, with the answer to it."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.response = error_response(status, message)


async def _read_json(request: web.Request) -> Any:
    # Asked for strictly: a browser's page elsewhere can't send this type unasked.
    if request.content_type != "application/json":
        raise _Refusal(415, f"Content-Type {request.content_type!r} is not supported; send application/json")
    try:
        return orjson.loads(await read_body(request, _MAX_BODY_BYTES))
    except UnknownEncoding as error:
        raise _Refusal(415, str(error)) from error
    except BodyTooLarge as error:
        raise _Refusal(413, str(error)) from error
    except BodyUnreadable as error:
        raise _Refusal(400, str(error)) from error
    except orjson.JSONDecodeError as error:
        raise Invalid(f"the body is not JSON: {error}") from error


def _json(body: Any, status: int = 200) -> web.Response:
    return web.Response(status=status, body=orjson.dumps(body), content_type="application/json")
