"""The pages and the downloads."""

from __future__ import annotations

from flask import Blueprint, Response, redirect, render_template, request, send_file, url_for
from flask.typing import ResponseReturnValue

from vime_otel.data.folded import dumps
from vime_otel.data.rundir import RunDirectory

from . import describe
from .colors import CATEGORIES, TEXT_COLOR
from .store import RunNotFound, Store
from .svg import render_svg
from .view import BY_LAYER, View, choose

ROWS_SHOWN = 500
"""Steps in the page's table; the API has them all."""


def blueprint(store: Store, perfetto_url: str) -> Blueprint:
    """The routes for people."""
    pages = Blueprint("pages", __name__)

    @pages.get("/")
    def runs() -> str:
        return render_template("runs.html", runs=describe.briefs(store), root=store.root)

    @pages.get("/runs/<which>")
    def run(which: str) -> ResponseReturnValue:
        found = store.find(which)
        address = store.address(found)
        if which != address:
            query = request.query_string.decode("ascii", "replace")
            return redirect(url_for(".run", which=address) + (f"?{query}" if query else ""))
        return render_template(
            "run.html",
            run=describe.full(store, found, address),
            view=chosen(found, request.args.get("kind")) if found.steps else None,
            rows_shown=ROWS_SHOWN,
            categories=CATEGORIES,
            perfetto_url=perfetto_url,
        )

    @pages.get("/runs/<which>/<kind>.svg")
    def svg(which: str, kind: str) -> Response:
        view = downloaded(which, kind)
        text = render_svg(view.self_us(), view.calls(), view.steps, view.title)
        return named(Response(text, mimetype="image/svg+xml"), f"{view.file_stem}.svg")

    @pages.get("/runs/<which>/<kind>.folded")
    def folded(which: str, kind: str) -> Response:
        view = downloaded(which, kind)
        return named(Response(dumps(view.self_us()), mimetype="text/plain"), f"{view.file_stem}.folded")

    @pages.get("/runs/<which>/torch/<path:name>")
    def torch_trace(which: str, name: str) -> Response:
        path = store.torch_trace(store.find(which), name)
        # The traces are sent as the bytes they are: a .gz must not be unpacked on the way.
        return send_file(path, "application/octet-stream", as_attachment=True, download_name=path.name)

    @pages.get("/palette.css")
    def palette() -> Response:
        variables = [f"  --frame-{category.key}: {category.color};" for category in CATEGORIES]
        swatches = [
            f'.swatch[data-category="{category.key}"] {{ background: var(--frame-{category.key}); }}'
            for category in CATEGORIES
        ]
        lines = [":root {", *variables, f"  --frame-text: {TEXT_COLOR};", "}", *swatches, ""]
        return Response("\n".join(lines), mimetype="text/css")

    def chosen(found: RunDirectory, kind: str | None) -> View:
        return choose(found, kind, request.args.get("rank"), request.args.get(BY_LAYER))

    def downloaded(which: str, kind: str) -> View:
        found = store.find(which)
        if kind not in found.steps:
            kinds = ", ".join(found.steps) or "none"
            raise RunNotFound(f"run {found.id} has no {kind!r} steps; it has {kinds}")
        return chosen(found, kind)

    return pages


def named(response: Response, file_name: str) -> Response:
    """Shown in the browser, and saved under this name."""
    response.headers.set("Content-Disposition", "inline", filename=file_name)
    return response
