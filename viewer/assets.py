"""Scripts and styles under addresses that change with their content, so that browsers keep them for good."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from flask import Blueprint, Response, abort, url_for

from .colors import palette_css
from .standalone import bundle

FOR_GOOD = "public, max-age=31536000, immutable"
_STATIC = Path(__file__).parent / "static"
_SCRIPTS = ("run.js", "runs.js", "compare.js", "live.js")


@dataclass(frozen=True)
class _Asset:
    content: str
    mimetype: str

    @property
    def version(self) -> str:
        """The beginning of the content's hash."""
        return hashlib.sha256(self.content.encode()).hexdigest()[:12]


class Assets:
    """Each page's script with all modules that it imports, and the style sheet with the palette."""

    def __init__(self) -> None:
        style = palette_css() + (_STATIC / "style.css").read_text("utf-8")
        self._assets = {"style.css": _Asset(style, "text/css")}
        self._assets |= {name: _Asset(bundle(name), "text/javascript") for name in _SCRIPTS}
        icon = (_STATIC / "favicon.svg").read_text("utf-8")
        self._assets["favicon.svg"] = _Asset(icon, "image/svg+xml")

    def url(self, name: str) -> str:
        """The asset's address."""
        return url_for("assets.asset", version=self._assets[name].version, name=name)

    def blueprint(self) -> Blueprint:
        """The route of the assets."""
        routes = Blueprint("assets", __name__)

        @routes.get("/assets/<version>/<name>")
        def asset(version: str, name: str) -> Response:
            found = self._assets.get(name)
            if found is None or found.version != version:
                abort(404, f"there is no {name!r} of version {version!r}; reload the page")
            response = Response(found.content, mimetype=found.mimetype)
            response.headers["Cache-Control"] = FOR_GOOD
            return response

        return routes
