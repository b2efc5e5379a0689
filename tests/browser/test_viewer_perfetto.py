"""A torch trace is handed to Perfetto's window, byte for byte."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from flask import Flask
from samples import ENGINES, RECORDING_ID, torch_trace, write_sample

from viewer.app import Config, create_app

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.browser
api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

# Plays Perfetto's side: deaf to the first PINGs as while its page loads, then PONG, then one trace.
PERFETTO = """<!doctype html><title>Perfetto's part</title><script>
let pings = 0;
window.addEventListener("message", (event) => {
  if (event.data === "PING") {
    pings += 1;
    if (pings > 3) event.source.postMessage("PONG", event.origin);
  } else if (event.data.perfetto) {
    const { buffer, title, fileName } = event.data.perfetto;
    const text = Array.from(new Uint8Array(buffer), (byte) => String.fromCharCode(byte)).join("");
    window.received = { data: btoa(text), title, fileName, origin: event.origin, pings };
  }
});
</script>"""


def perfetto() -> Flask:
    """Perfetto's side, on an origin of its own."""
    app = Flask("perfetto")
    app.add_url_rule("/", "ui", lambda: PERFETTO)
    app.add_url_rule("/favicon.ico", "icon", lambda: "")
    return app


def test_the_trace_arrives_as_the_file_it_is(page: Page, serving: Callable[[Any], str], tmp_path: Path) -> None:
    write_sample(tmp_path, torch=True)
    ui = serving(perfetto())
    viewer = serving(create_app(Config(tmp_path, perfetto_url=ui)))
    page.goto(f"{viewer}/runs/{RECORDING_ID}")
    row = page.get_by_role("row", name="rank1.pt.trace.json.gz")
    with page.expect_popup() as popup:
        row.get_by_role("button", name="Open in Perfetto").click()
    received = popup.value.wait_for_function("window.received").json_value()
    assert base64.b64decode(received["data"]) == torch_trace("1")
    assert received["fileName"] == received["title"] == f"{ENGINES[0]}/rank1.pt.trace.json.gz"
    assert received["origin"] == viewer
    assert received["pings"] > 3
    api.expect(row.get_by_role("status")).to_have_text("opened")


def test_a_window_that_is_closed_is_told_with_the_way_out(
    page: Page, serving: Callable[[Any], str], tmp_path: Path
) -> None:
    write_sample(tmp_path, torch=True)
    ui = serving(Flask("deaf"))
    page.goto(f"{serving(create_app(Config(tmp_path, perfetto_url=ui)))}/runs/{RECORDING_ID}")
    row = page.get_by_role("row", name="rank0.pt.trace.json.gz")
    with page.expect_popup() as popup:
        row.get_by_role("button", name="Open in Perfetto").click()
    popup.value.close()
    api.expect(row.get_by_role("status")).to_have_text(f"the window was closed; download it and open it at {ui}")
