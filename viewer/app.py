"""The viewer as a WSGI application over a directory of runs."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from flask import Flask

from . import api, errors, formats, pages, security
from .store import Store

PERFETTO_URL = "https://ui.perfetto.dev"


def create_app(
    runs_root: Path,
    allowed_hosts: Collection[str] = (),
    perfetto_url: str = PERFETTO_URL,
    any_address: bool = False,
) -> Flask:
    """The application for any WSGI server; it answers to loopback names, `allowed_hosts`, or any IP address."""
    app = Flask(__name__)
    app.jinja_env.filters.update(formats.FILTERS)
    store = Store(runs_root)
    security.protect(app, allowed_hosts, any_address)
    errors.handle_errors(app)
    app.register_blueprint(api.blueprint(store))
    app.register_blueprint(pages.blueprint(store, perfetto_url))
    return app
