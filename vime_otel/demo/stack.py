"""Real vLLM engines on the CPU behind the real vllm-router, for the demo and for tests."""

from __future__ import annotations

import json
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ..data.errors import VimeOtelError
from .ports import free_port
from .processes import LoggedProcess, stop_all
from .tiny_model import write_tiny_model

_POLL_S = 0.5
_REPORT_S = 10.0
_ENGINE_START_S = 400.0
_ROUTER_START_S = 60.0
# A proxy must stand between nobody here; one OpenMP thread each keeps engines off each other's cores.
_ENGINE_ENV = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "NO_PROXY": "127.0.0.1,localhost",
    "no_proxy": "127.0.0.1,localhost",
}
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class EngineStack:
    """`engines` vLLM servers and a router; a context manager, inside which all are healthy.

    `engine_args(n)` gives further arguments of engine n, `env` further variables of all engines,
    `say` gets progress lines. Model and logs lie in `directory`. A failed start raises
    VimeOtelError with the log's last lines; whatever was started is stopped again.
    """

    def __init__(
        self,
        directory: Path,
        engines: int = 2,
        engine_args: Callable[[int], Sequence[str]] = lambda n: (),
        env: Mapping[str, str] | None = None,
        say: Callable[[str], None] = lambda line: None,
        model: Path | None = None,
    ):
        self.directory = directory
        self.model = model
        self.worker_urls: list[str] = []
        self.router_url = ""
        self._count = engines
        self._engine_args = engine_args
        self._env = dict(env or {})
        self._say = say
        self._processes: list[LoggedProcess] = []

    def __enter__(self) -> EngineStack:
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop router and engines with all their children; harmless when nothing runs."""
        processes, self._processes = self._processes, []
        stop_all(processes)

    def _start(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        model = self.model or write_tiny_model(self.directory / "model")
        *ports, router_port, metrics_port = (free_port() for _ in range(self._count + 2))
        self.worker_urls = [f"http://127.0.0.1:{port}" for port in ports]
        self._say(f"starting {self._count} vLLM engines on the CPU (logs in {self.directory})")
        for number, port in enumerate(ports):
            self._spawn(f"engine-{number}", self._engine_command(model, number, port))
        self._await(self.worker_urls, _ENGINE_START_S)
        self.router_url = f"http://127.0.0.1:{router_port}"
        self._spawn("router", self._router_command(router_port, metrics_port))
        self._await([self.router_url], _ROUTER_START_S)
        self._await_workers()
        self._say(f"router on {self.router_url}, engines on {', '.join(self.worker_urls)}")

    def _spawn(self, name: str, command: Sequence[str]) -> None:
        env = {**_ENGINE_ENV, **self._env}
        self._processes.append(LoggedProcess(name, command, self.directory / f"{name}.log", env))

    def _engine_command(self, model: Path, number: int, port: int) -> list[str]:
        return [
            *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
            *("--model", str(model), "--load-format", "dummy", "--enforce-eager"),
            *("--max-model-len", "512", "--max-num-seqs", "8", "--gpu-memory-utilization", "0.2"),
            *("--host", "127.0.0.1", "--port", str(port)),
            *self._engine_args(number),
        ]

    def _router_command(self, port: int, metrics_port: int) -> list[str]:
        return [
            *(sys.executable, "-m", "vllm_router.launch_router"),
            *("--host", "127.0.0.1", "--port", str(port)),
            *("--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics_port)),
            *("--policy", "round_robin", "--worker-startup-timeout-secs", str(int(_ROUTER_START_S))),
            *("--worker-urls", *self.worker_urls),
        ]

    def _await(self, urls: Sequence[str], timeout_s: float) -> None:
        self._poll(lambda: all(_get(f"{url}/health") is not None for url in urls), ", ".join(urls), timeout_s)

    def _await_workers(self) -> None:
        def all_listed() -> bool:
            body = _get(f"{self.router_url}/workers")
            workers = json.loads(body)["workers"] if body else []
            return sum(bool(worker["is_healthy"]) for worker in workers) == self._count

        self._poll(all_listed, f"the workers of {self.router_url}", _ROUTER_START_S)

    def _poll(self, ready: Callable[[], bool], what: str, timeout_s: float) -> None:
        start = told = time.monotonic()
        while not ready():
            for process in self._processes:
                if process.exit_status() is not None:
                    raise _failed(process, f"ended with status {process.exit_status()}")
            now = time.monotonic()
            if now - start > timeout_s:
                raise _failed(self._processes[-1], f"was not ready after {timeout_s:.0f} s ({what})")
            if now - told > _REPORT_S:
                told = now
                self._say(f"waiting for {what}: {now - start:.0f} s")
            time.sleep(_POLL_S)


def _failed(process: LoggedProcess, what: str) -> VimeOtelError:
    return VimeOtelError(f"{process.name} {what}; its log is {process.log}, which ends:\n{process.log_tail()}")


def _get(url: str) -> bytes | None:
    """The body of a 200 answer, else None."""
    try:
        with _OPENER.open(url, timeout=5) as response:
            return bytes(response.read())
    except (OSError, urllib.error.URLError):
        return None


__all__ = ["EngineStack"]
