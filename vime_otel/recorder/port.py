"""What the recorder needs of an engine: the line between what knows vLLM and what does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from vime_otel.data.lockstep import Position

from .patches import Patches
from .window import Clock, StepCounts

if TYPE_CHECKING:
    from .engine import EngineRecorder


class Port(Protocol):
    """What the recorder needs of an engine; `vllm_engine` has the real one."""

    max_spans: int
    min_free_mib: int
    sample_every: int | None

    def workers_have_plugin(self) -> bool: ...
    def call_workers(self, method: str, *args: Any) -> list[Any]: ...
    def call_workers_later(self, method: str, *args: Any) -> Callable[[], list[Any] | None]: ...
    def watch_steps(self, patches: Patches, watcher: EngineRecorder) -> None: ...
    def lockstep(self) -> Position | None: ...
    def count(self, scheduler_output: Any) -> StepCounts: ...
    def describe(self) -> dict[str, Any]: ...
    def refresh(self) -> dict[str, Any]: ...
    def clock(self) -> Clock: ...
    def wake(self) -> None: ...


class NoPort:
    """Of a recorder that never gets an order."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("this recorder is attached to no engine")
