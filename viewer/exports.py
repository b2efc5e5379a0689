"""A view as a file: every format that the page offers and `vime-otel export` writes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import orjson

from vime_otel.data import folded, speedscope, stack_table
from vime_otel.data.errors import VimeOtelError
from vime_otel.data.profile import Profile

from .standalone import render_page
from .svg import render_svg
from .view import View


@dataclass(frozen=True)
class Export:
    """A format: how its files are called, what they are, how one is made, and what opens it."""

    extension: str
    mimetype: str
    write: Callable[[View], bytes]
    opener: str


def as_profile(view: View) -> Profile:
    """The view's stacks and what they are sums of."""
    self_us, calls = view.values
    return Profile(dict(self_us), dict(calls), view.kind, view.steps, view.unit)


def _svg(view: View) -> bytes:
    self_us, calls = view.values
    if not any(self_us.values()):
        raise VimeOtelError(
            f"the {view.kind} steps of {view.run.path.name} took no measurable time, so there is nothing to draw;"
            " `--format folded` writes their stacks"
        )
    return render_svg(self_us, calls, view.steps, view.title, view.unit).encode()


def _folded(view: View) -> bytes:
    return folded.dumps(view.values[0]).encode()


def _speedscope(view: View) -> bytes:
    return orjson.dumps(speedscope.dump(view.values[0], view.title, view.unit))


def _csv(view: View) -> bytes:
    return stack_table.dump_csv(as_profile(view)).encode()


def _json(view: View) -> bytes:
    return orjson.dumps(stack_table.dump_json(as_profile(view)))


def _html(view: View) -> bytes:
    return render_page(view).encode()


EXPORTS = {
    "svg": Export("svg", "image/svg+xml", _svg, "open it in a browser"),
    "html": Export("html", "text/html", _html, "open it in a browser; it needs no network"),
    "folded": Export("folded", "text/plain", _folded, "flamegraph.pl {} > {}.svg"),
    "speedscope": Export("speedscope.json", "application/json", _speedscope, "open it at https://www.speedscope.app"),
    "csv": Export("csv", "text/csv", _csv, "open it in a spreadsheet"),
    "json": Export("json", "application/json", _json, "vime-otel view {}"),
}
