"""The viewer as a WSGI application over a directory of runs."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from flask import Flask

from vime_otel.data.trace_link import parse_trace_link

from . import access, api, caching, compare_page, errors, formats, pages, security, uploads
from .assets import Assets
from .base_path import under
from .store import Store

PERFETTO_URL = "https://ui.perfetto.dev"


@dataclass(frozen=True)
class Config:
    """What a viewer shows, and to whom.

    It answers to loopback names and `allowed_hosts`; with `any_address` to every IP address, too. With a `token`
    only to those who bring it. `base_path` is where a proxy puts it (`/vime`). `scratch` is a folder of its own
    for files that are brought to it; without one it takes none. `trace_link` is a URL with `{trace_id}` in it
    that opens a step's trace, and wins over what a run says.
    """

    runs_root: Path
    allowed_hosts: Collection[str] = ()
    any_address: bool = False
    base_path: str = ""
    token: str = ""
    scratch: Path | None = None
    trace_link: str = ""
    perfetto_url: str = PERFETTO_URL


def create_app(config: Config | Path) -> Flask:
    """The application for any WSGI server; a path alone is a Config with nothing but its runs_root."""
    config = config if isinstance(config, Config) else Config(config)
    app = Flask(__name__)
    app.jinja_env.filters.update(formats.FILTERS)
    store = Store(config.runs_root, config.scratch)
    assets = Assets()
    link = parse_trace_link(config.trace_link) if config.trace_link else ""
    security.protect(app, config.allowed_hosts, config.any_address)
    access.ask_for(app, config.token)
    errors.handle_errors(app)
    app.register_blueprint(assets.blueprint())
    app.register_blueprint(api.blueprint(store, link))
    app.register_blueprint(pages.blueprint(store, link, config.perfetto_url))
    app.register_blueprint(compare_page.blueprint(store))
    app.register_blueprint(uploads.blueprint(config.scratch))
    caching.compress(app)
    app.jinja_env.globals.update(asset=assets.url, takes_bytes=uploads.MAX_BYTES if config.scratch else 0)
    app.wsgi_app = under(config.base_path, app.wsgi_app)  # type: ignore[method-assign, assignment]
    return app
