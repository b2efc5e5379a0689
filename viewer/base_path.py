"""The viewer below a path of its proxy's choice."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from vime_otel.data.errors import UsageError

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

_PATH = re.compile(r"(/[A-Za-z0-9._~-]+)*")


def clean(path: str) -> str:
    """The path without a slash at its end; UsageError for what is no path such as /vime."""
    cleaned = path.rstrip("/")
    if not _PATH.fullmatch(cleaned) or {".", ".."} & set(cleaned.split("/")):
        raise UsageError(f"{path!r} is not a path such as /vime")
    return cleaned


def under(path: str, app: WSGIApplication) -> WSGIApplication:
    """The application below `path`; whatever lies elsewhere is not found."""
    path = clean(path)
    if not path:
        return app

    def below(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        asked = environ.get("PATH_INFO", "")
        if asked != path and not asked.startswith(f"{path}/"):
            start_response("404 Not Found", [("Content-Type", "text/plain")])
            return [f"the viewer lives at {path}/\n".encode()]
        environ["SCRIPT_NAME"] = environ.get("SCRIPT_NAME", "") + path
        environ["PATH_INFO"] = asked[len(path) :] or "/"
        return app(environ, start_response)

    return below
