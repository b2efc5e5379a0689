"""Files that are brought to the page: folded stacks, speedscope JSON, our own exports."""

from __future__ import annotations

import shutil
from pathlib import Path

from flask import Blueprint, Response, abort, jsonify, make_response, request, url_for

from vime_otel.data.errors import VimeOtelError
from vime_otel.data.find_runs import list_runs
from vime_otel.data.imported import write_imported
from vime_otel.data.profile_file import read_profile

MAX_BYTES = 64 * 1024 * 1024
"""Of a file, as it comes and after decompression."""

_KEPT = 20
"""Files; a further one takes the place of the oldest."""

_NAME = 200
"""Characters of a file's name that are kept."""


class Unreadable(VimeOtelError):
    """A file that was brought holds nothing that can be shown."""


def blueprint(scratch: Path | None) -> Blueprint:
    """The route that takes a file; it only exists where there is a scratch folder."""
    routes = Blueprint("uploads", __name__)
    if scratch is None:
        return routes

    @routes.post("/api/files")
    def bring() -> Response:
        content = _content()
        name = Path(request.args.get("name") or "file").name[:_NAME] or "file"
        try:
            profile = read_profile(content, MAX_BYTES)
        except VimeOtelError as error:
            raise Unreadable(f"{name}: {error}") from error
        run_id = write_imported(scratch, profile, name, content)
        for run in list_runs(scratch)[_KEPT:]:
            shutil.rmtree(run.path, ignore_errors=True)
        return make_response(jsonify(id=run_id, address=url_for("pages.run", which=run_id)), 201)

    return routes


def _content() -> bytes:
    """The request's body. Its length has to be told beforehand, and be within the limit."""
    length = request.content_length
    if length is None:
        abort(411, "the length of the file has to be told (Content-Length)")
    if length > MAX_BYTES:
        abort(413, f"the file has {length:,} bytes, the viewer takes {MAX_BYTES:,}; `vime-otel view FILE` takes more")
    return request.get_data(cache=False)
