"""The page that compares two recordings."""

from __future__ import annotations

from urllib.parse import urlencode

from flask import Blueprint, render_template, request

from .comparing import KEYS, choose_sides
from .describe import briefs
from .store import Store
from .view import rank_label


def blueprint(store: Store) -> Blueprint:
    """The route of the page; what it shows it gets from the API."""
    routes = Blueprint("comparison", __name__)

    @routes.get("/compare")
    def compare() -> str:
        query = {key: request.args[key] for key in KEYS if request.args.get(key)}
        a, b = choose_sides(store, query)
        sides = [
            {
                "letter": letter,
                "address": store.address(view.run),
                "ranks": [(name, rank_label(view.run, name)) for name in view.run.ranks()],
                "rank": view.selected.selection.rank or "",
                "steps": request.args.get(f"{letter}_steps", ""),
                "title": view.title,
            }
            for letter, view in (("a", a), ("b", b))
        ]
        return render_template(
            "compare.html",
            sides=sides,
            runs=[run for run in briefs(store) if not run["error"] and run["steps"]],
            kinds=[kind for kind in a.run.steps if kind in b.run.steps],
            kind=a.kind,
            query=urlencode(query),
        )

    return routes
