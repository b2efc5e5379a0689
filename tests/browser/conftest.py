"""A real Chromium on pages of a real server; skipped where there is no Chromium."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from graphs import LAYERED, SLOWER
from samples import WORKER_STACKS, by_layer, sample_recording, write_sample
from werkzeug.serving import WSGIRequestHandler, make_server

from viewer.app import Config, create_app

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


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium, for the tests of a file: while it runs, no other event loop can in this thread."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if not CHROMIUM.exists():
        pytest.skip(f"no Chromium at {CHROMIUM}")
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=list(ARGUMENTS))
        yield chromium
        chromium.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page that must neither fail, nor complain, nor ask anything of another machine; nothing moves on it."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
    tab = context.new_page()
    complaints: list[str] = []
    hosts: set[str | None] = set()
    tab.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    tab.on("request", lambda request: hosts.add(urlsplit(request.url).hostname))
    yield tab
    context.close()
    assert complaints == []
    assert hosts <= {"127.0.0.1", None}


@pytest.fixture
def serving() -> Iterator[Callable[[Any], str]]:
    """A function that puts a WSGI application on a free port and gives its URL."""
    with ExitStack() as stack:
        yield lambda app: stack.enter_context(_served(app))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A viewer of the sample run, of one by layer with notes, and of one whose moe.experts is slower."""
    root = tmp_path_factory.mktemp("runs")
    write_sample(root, sample_recording(trace_link="http://127.0.0.1:9/trace/{trace_id}"))
    write_sample(root, by_layer(sample_recording(id=LAYERED, label="by layer", notes=["this is to be known"])))
    slower = {stack: (us * 2, calls) for stack, (us, calls) in WORKER_STACKS.items() if stack.endswith("moe.experts")}
    write_sample(root, sample_recording(slower, id=SLOWER, label="slower experts"))
    scratch = tmp_path_factory.mktemp("scratch")
    with _served(create_app(Config(root, scratch=scratch))) as url:
        yield url


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


class _Quiet(WSGIRequestHandler):
    def log_request(self, *args: Any) -> None:
        """The requests of a page are of no use in a test's report."""
