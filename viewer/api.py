"""The JSON API, as the page itself uses it; docs/api.md describes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
from flask import Blueprint, Response, jsonify, request

from vime_otel.data.errors import UsageError
from vime_otel.data.rundir import RunDirectory

from . import describe, live_view
from .caching import BodyCache
from .comparing import choose_sides, compare_views
from .store import RunNotFound, Store, version
from .view import KEYS, View, choose


def blueprint(store: Store, trace_link: str) -> Blueprint:
    """The routes under /api."""
    api = Blueprint("api", __name__, url_prefix="/api")
    cache = BodyCache()

    def kept(run: RunDirectory, what: str, make: Callable[[], Any]) -> Response:
        key = f"{version(run)} {what} {request.query_string.decode('ascii', 'replace')}"
        return cache.json(key, lambda: orjson.dumps(make()))

    def view_of(run: RunDirectory) -> View:
        _refuse_unknown({*KEYS})
        return choose(run, request.args)

    @api.get("/runs")
    def runs() -> Response:
        return jsonify(runs=describe.briefs(store))

    @api.get("/runs/<which>")
    def run(which: str) -> Response:
        found = store.find(which)
        return jsonify(describe.full(store, found, store.address(found)))

    @api.get("/runs/<which>/steps")
    def steps(which: str) -> Response:
        found = store.find(which)
        return kept(found, "steps", lambda: describe.step_columns(found, trace_link))

    @api.get("/runs/<which>/flamegraph")
    def flamegraph(which: str) -> Response:
        found = store.find(which)
        return kept(found, "flamegraph", lambda: view_of(found).flamegraph())

    @api.get("/runs/<which>/ranks")
    def ranks(which: str) -> Response:
        found = store.find(which)
        return kept(found, "ranks", lambda: view_of(found).ranks())

    @api.get("/compare")
    def compare() -> Response:
        a, b = choose_sides(store, request.args)
        key = f"{version(a.run)} {version(b.run)} {request.query_string.decode('ascii', 'replace')}"
        return cache.json(key, lambda: orjson.dumps(compare_views(a, b)))

    @api.get("/live")
    def live() -> Response:
        return jsonify(recordings=live_view.all_live(store))

    @api.get("/live/<name>")
    def one_live(name: str) -> Response:
        return jsonify(live_view.find(store, name).as_dict())

    @api.get("/live/<name>/flamegraph")
    def live_flamegraph(name: str) -> Response:
        return jsonify(live_view.flamegraph(live_view.find(store, name), request.args.get("kind")))

    @api.get("/<path:path>")
    def nothing(path: str) -> Response:
        raise RunNotFound(f"the API has no /api/{path}; docs/api.md lists what it has (not found)")

    return api


def _refuse_unknown(known: set[str]) -> None:
    unknown = set(request.args) - known
    if unknown:
        raise UsageError(f"unknown in the query: {', '.join(sorted(unknown))}; known are {', '.join(sorted(known))}")
