"""A collector in a thread of its own, for tests that talk to it over sockets."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import requests

from collector.recordings.patience import Patience
from collector.server import Collector, CollectorConfig

QUICK = Patience(
    tick=0.01, look=0.05, relist=0.1, settle=0.0, silent=20.0, exporting=20.0, disarming=10.0, late=1.0, forget=10.0
)


def config(runs_root: Path, **changes: Any) -> CollectorConfig:
    """A collector on free ports that waits for nothing longer than tests can."""
    return CollectorConfig(
        **{"runs_root": runs_root, "version": "test", "grpc_port": 0, "http_port": 0, "patience": QUICK} | changes
    )


class RunningCollector:
    """A collector and the loop that it runs in."""

    def __init__(self, collector: Collector, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.collector = collector

    @property
    def url(self) -> str:
        """Where it listens."""
        return self.collector.url

    def stop(self) -> None:
        """Stop it before its time."""
        asyncio.run_coroutine_threadsafe(self.collector.stop(), self._loop).result()


@contextmanager
def running(of: CollectorConfig) -> Iterator[RunningCollector]:
    """The collector, started; stopped at the end."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="collector")
    thread.start()

    def run(coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result()

    try:
        collector = Collector(of)
        run(collector.start())
        try:
            yield RunningCollector(collector, loop)
        finally:
            run(collector.stop())
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


class ControlClient:
    """The control routes, called as any HTTP client would."""

    def __init__(self, url: str, token: str = "") -> None:
        self._url = f"{url}/control/v1"
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Status and JSON of an answer."""
        answer = requests.request(method, f"{self._url}{path}", json=body, headers=self._headers, timeout=10)
        return answer.status_code, answer.json()

    def start(self, **body: Any) -> str:
        """Begin a recording; returns its id."""
        status, answer = self.call("POST", "/recordings", {"wait_seconds": 10, "timeout_seconds": 60} | body)
        assert status == 201, answer
        return str(answer["id"])

    def show(self, recording: str) -> dict[str, Any]:
        """How a recording stands."""
        status, answer = self.call("GET", f"/recordings/{recording}")
        assert status == 200, answer
        return dict(answer)

    def finish(self, recording: str) -> dict[str, Any]:
        """How a recording ended."""

        def over() -> dict[str, Any] | None:
            return found if (found := self.show(recording))["state"] in ("done", "failed") else None

        return dict(until(over, 120, lambda: self.show(recording)))

    def record(self, **body: Any) -> dict[str, Any]:
        """Begin a recording and wait for its end."""
        return self.finish(self.start(**body))

    def recorders(self) -> list[dict[str, Any]]:
        """Everyone that polls."""
        return list(self.call("GET", "/recorders")[1]["recorders"])


def until(look: Callable[[], Any], seconds: float = 60.0, stands: Callable[[], Any] = str) -> Any:
    """What `look` gives once it is true; fails when that takes too long, and tells how it `stands` then."""
    deadline = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < deadline, f"it took too long {stands()}"
        time.sleep(0.01)
    return found
