"""A real Chromium on pages of a real server; skipped where there is no Chromium."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from werkzeug.serving import WSGIRequestHandler, make_server

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = Path("/usr/bin/chromium")
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)


@pytest.fixture
def browser() -> Iterator[Browser]:
    """Chromium, for this one test."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if not CHROMIUM.exists():
        pytest.skip(f"no Chromium at {CHROMIUM}")
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=list(ARGUMENTS))
        yield chromium
        chromium.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page that must neither fail, nor complain, nor ask anything of another machine."""
    tab = browser.new_page(viewport={"width": 1280, "height": 900})
    complaints: list[str] = []
    hosts: set[str | None] = set()
    tab.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    tab.on("request", lambda request: hosts.add(urlsplit(request.url).hostname))
    yield tab
    assert complaints == []
    assert hosts <= {"127.0.0.1"}


@pytest.fixture
def serving() -> Iterator[Callable[[Any], str]]:
    """A function that puts a WSGI application on a free port and gives its URL."""
    with ExitStack() as stack:
        yield lambda app: stack.enter_context(_served(app))


class _Quiet(WSGIRequestHandler):
    def log_request(self, *args: Any) -> None:
        """The requests of a page are of no use in a test's report."""


@contextmanager
def _served(app: Any) -> Iterator[str]:
    server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=_Quiet)
    thread = threading.Thread(target=server.serve_forever, name="test server")
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
