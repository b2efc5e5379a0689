"""The JSON API, as the page itself uses it."""

from __future__ import annotations

from flask import Blueprint, Response, jsonify, request

from . import describe
from .store import Store
from .view import BY_LAYER, choose


def blueprint(store: Store) -> Blueprint:
    """The routes under /api."""
    api = Blueprint("api", __name__, url_prefix="/api")

    @api.get("/runs")
    def runs() -> Response:
        return jsonify(runs=describe.briefs(store))

    @api.get("/runs/<which>")
    def run(which: str) -> Response:
        found = store.find(which)
        return jsonify(describe.full(store, found, store.address(found)))

    @api.get("/runs/<which>/flamegraph")
    def flamegraph(which: str) -> Response:
        query = request.args
        view = choose(store.find(which), query.get("kind"), query.get("rank"), query.get(BY_LAYER))
        return jsonify(view.flamegraph())

    return api
