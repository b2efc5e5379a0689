"""Every failure as one clear line: JSON under /api, a page elsewhere, never a traceback."""

from __future__ import annotations

from flask import Flask, Response, jsonify, make_response, render_template, request
from werkzeug.exceptions import HTTPException

from vime_otel.data.errors import UsageError, VimeOtelError
from vime_otel.data.selection import NotInRun

from .store import AmbiguousRun, RunNotFound
from .uploads import Unreadable


def handle_errors(app: Flask) -> None:
    """Answer errors with `{"error": {"message": …}}` or a page, and the status that fits."""

    @app.errorhandler(HTTPException)
    def http_error(error: HTTPException) -> Response:
        answer = _answer(error.description or error.name, error.code or 500)
        for name, value in error.get_headers():
            if name.lower() != "content-type":
                answer.headers[name] = value
        return answer

    @app.errorhandler(AmbiguousRun)
    def several_runs(error: AmbiguousRun) -> Response:
        if _wants_json():
            return _answer(str(error), 400)
        return make_response(render_template("choice.html", runs=[run.path.name for run in error.runs]), 300)

    @app.errorhandler(VimeOtelError)
    def known_error(error: VimeOtelError) -> Response:
        if isinstance(error, RunNotFound):
            return _answer(str(error), 404)
        if isinstance(error, Unreadable):
            return _answer(str(error), 415)
        return _answer(str(error), 400 if isinstance(error, (UsageError, NotInRun)) else 500)

    @app.errorhandler(Exception)
    def unknown_error(error: Exception) -> Response:
        app.logger.exception("%s %s failed", request.method, request.path)
        return _answer(f"the viewer failed on this ({type(error).__name__}); its log says where", 500)


def _wants_json() -> bool:
    return request.path == "/api" or request.path.startswith("/api/")


def _answer(message: str, status: int) -> Response:
    if _wants_json():
        return make_response(jsonify(error={"message": message}), status)
    return make_response(render_template("error.html", message=message, status=status), status)
