"""The pages and the downloads."""

from __future__ import annotations

from flask import Blueprint, Response, redirect, render_template, request, send_file, url_for
from flask.typing import ResponseReturnValue

from vime_otel.data.errors import VimeOtelError
from vime_otel.data.perfetto import perfetto_trace
from vime_otel.data.run_files import JOURNAL_FILE
from vime_otel.data.trace_link import trace_link_of

from . import describe, live_view
from .colors import CATEGORIES
from .exports import EXPORTS
from .store import RunNotFound, Store, torch_name
from .torch_zip import zip_of
from .traces import has_spans
from .view import KEYS, View, choose


def blueprint(store: Store, trace_link: str, perfetto_url: str) -> Blueprint:
    """The routes for people."""
    pages = Blueprint("pages", __name__)

    @pages.get("/")
    def runs() -> str:
        return render_template(
            "runs.html", runs=describe.briefs(store), live=live_view.all_live(store), root=store.root
        )

    @pages.get("/runs/<which>")
    def run(which: str) -> ResponseReturnValue:
        try:
            found = store.find(which)
        except RunNotFound:
            return live_page(which)
        address = store.address(found)
        if which != address:
            asked = request.query_string.decode("ascii", "replace")
            return redirect(url_for(".run", which=address) + (f"?{asked}" if asked else ""))
        query = {key: request.args[key] for key in KEYS if request.args.get(key)}
        return render_template(
            "run.html",
            run=describe.full(store, found, address),
            view=choose(found, query) if found.steps else None,
            query=query,
            others=[each for each in describe.briefs(store) if each["id"] and each["address"] != address],
            categories=CATEGORIES,
            exports=EXPORTS,
            trace_link=trace_link_of(found.header, trace_link),
            perfetto_url=perfetto_url,
        )

    def live_page(which: str) -> str:
        try:
            live = live_view.find(store, which)
        except RunNotFound:
            raise RunNotFound(f"no run {which!r} here; the list of recordings shows those there are") from None
        return render_template("live.html", live=live.as_dict(), categories=CATEGORIES)

    @pages.get("/runs/<which>/<file>")
    def export(which: str, file: str) -> Response:
        kind, _, extension = file.partition(".")
        form = next((form for form in EXPORTS.values() if form.extension == extension), None)
        if form is None:
            known = ", ".join(form.extension for form in EXPORTS.values())
            raise RunNotFound(f"{file!r} is no file of a run; each kind has {known} (not found)")
        view = downloaded(which, kind)
        try:
            content = form.write(view)
        except VimeOtelError as error:
            raise RunNotFound(str(error)) from error
        response = Response(content, mimetype=form.mimetype)
        # A stand-alone page would be forbidden its own script here.
        shown = "attachment" if extension == "html" else "inline"
        response.headers.set("Content-Disposition", shown, filename=f"{view.file_stem}.{extension}")
        return response

    @pages.get("/runs/<which>/torch/<path:name>")
    def torch_trace(which: str, name: str) -> Response:
        path = store.torch_trace(store.find(which), name)
        # The traces are sent as the bytes they are: a .gz must not be unpacked on the way.
        return send_file(path, "application/octet-stream", as_attachment=True, download_name=path.name)

    @pages.get("/runs/<which>/torch.zip")
    def torch_zip(which: str) -> Response:
        found = store.find(which)
        traces = [(torch_name(found, path), path) for path in store.torch_traces(found)]
        if not traces:
            raise RunNotFound(f"run {found.id} has no torch traces")
        return attached(Response(zip_of(traces), mimetype="application/zip"), f"{found.path.name}-torch.zip")

    @pages.get("/runs/<which>/spans.pftrace")
    def spans_trace(which: str) -> Response:
        found = store.find(which)
        if not has_spans(store, found):
            raise RunNotFound(f"run {found.id} has no spans")
        pieces = perfetto_trace(found.path / JOURNAL_FILE)
        return attached(Response(pieces, mimetype="application/octet-stream"), f"{found.path.name}.pftrace")

    def downloaded(which: str, kind: str) -> View:
        found = store.find(which)
        if kind not in found.steps:
            kinds = ", ".join(found.steps) or "none"
            raise RunNotFound(f"run {found.id} has no {kind!r} steps; it has {kinds}")
        return choose(found, {**{key: request.args[key] for key in KEYS if request.args.get(key)}, "kind": kind})

    return pages


def attached(response: Response, name: str) -> Response:
    """To be saved under a name."""
    response.headers.set("Content-Disposition", "attachment", filename=name)
    return response
