"""What an engine test is told of the engines that run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

PROFILED_STEPS = 3


@dataclass(frozen=True)
class RunningStack:
    """The engines, where their recorders look for a collector, and where each writes its torch traces."""

    router_url: str
    worker_urls: list[str]
    collector_port: int
    torch_dirs: dict[str, Path]
    directory: Path
    trigger: Path
    """VIME_OTEL_DIR of both engines."""

    @property
    def collector_url(self) -> str:
        """What VIME_OTEL_COLLECTOR says in the engines' environment; nothing listens there at first."""
        return f"http://127.0.0.1:{self.collector_port}"
