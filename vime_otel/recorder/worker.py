"""The recorder of one rank: hooks on its modules while a window is open, a flat log, nothing else.

Its three entry points are called by RPC. They answer with errors instead of raising: an exception
on one rank leaves the others' answers in vLLM's queue for the next, innocent caller.
"""

from __future__ import annotations

import array
import logging
import os
from collections.abc import Callable
from typing import Any, Protocol

from . import eventlog
from .eventlog import EventLog
from .patches import HookTargets, Patches
from .window import Clock, RankLog

logger = logging.getLogger("vllm.vime_otel")

MAX_ENTRIES = 30_000_000
"""Integers a log may hold (10 million spans, about 1 GB); a window that exceeds it ends early."""


class Hooks(Protocol):
    """What the recorder needs of a worker; `vllm_worker` has the real one."""

    targets: HookTargets

    def install(self, log: EventLog, patches: Patches, recorder: WorkerRecorder) -> None: ...
    def device_sync(self) -> Callable[[], None] | None: ...
    def place(self) -> tuple[int, int]: ...
    def clock(self) -> Clock: ...


class WorkerRecorder:
    """Records windows of steps on one rank."""

    def __init__(self, hooks: Hooks):
        self._hooks = hooks
        self._patches = Patches()
        self._log: EventLog | None = None
        self._limit: int | None = None
        self._starts: list[int] = []
        self._errors: list[str] = []

    def arm(self, limit: int | None, timing: str) -> dict[str, Any]:
        """Open a window of `limit` steps (None: until taken). Answers {"errors": [text]}."""
        try:
            self._uninstall()
            self._limit, self._starts, self._errors = limit, [], []
            self._log = EventLog(self._fault, self._hooks.device_sync() if timing == "sync" else None)
            self._hooks.install(self._log, self._patches, self)
            eventlog.activate(self._log)
        except Exception as error:  # noqa: BLE001 - see the module's docstring
            self._fault(error)
        return {"errors": list(self._errors)}

    def take(self) -> dict[str, Any]:
        """Close the window. Answers its log (or None) with errors and hook targets."""
        answer: dict[str, Any] = {"log": None, "errors": self._errors, "hooks_found": [], "hooks_missing": []}
        try:
            self._uninstall()
            log, self._log = self._log, None
            if log is not None:
                answer["hooks_found"], answer["hooks_missing"] = self._hooks.targets.found, self._hooks.targets.missing
                rank, stage = self._hooks.place()
                answer["log"] = RankLog(
                    rank,
                    stage,
                    os.getpid(),
                    self._hooks.clock(),
                    [(frame.name, frame.module) for frame in log.frames],
                    array.array("q", log.entries).tobytes(),
                    self._starts,
                )
        except Exception as error:
            answer["errors"] = [*self._errors, f"taking the log failed: {error!r}"]
            logger.warning("vime-otel could not fetch this rank's log", exc_info=True)
        return answer

    def begin_step(self) -> bool:
        """A step's execute_model is about to run; False once the window has its steps."""
        log = self._log
        if log is None:
            return False
        if len(self._starts) == self._limit:
            self._uninstall()
            return False
        if len(log.entries) > MAX_ENTRIES:
            self._uninstall()
            self._errors.append(f"the log is full after {len(self._starts)} steps; ask for fewer steps")
            return False
        self._starts.append(len(log.entries))
        return True

    def discarding(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function` with what it records thrown away: warm-ups and dummy batches are no steps."""

        def discarded(*args: Any, **kwargs: Any) -> Any:
            log = self._log
            mark = len(log.entries) if log is not None else 0
            try:
                return function(*args, **kwargs)
            finally:
                if log is not None:
                    del log.entries[mark:]

        return discarded

    def _fault(self, error: BaseException) -> None:
        if self._errors:
            return  # calls that were under way when the hooks went fail the same way once more
        self._errors.append(f"recording failed and was given up: {error!r}")
        logger.warning("vime-otel gave a recording up; the engine goes on", exc_info=error)
        self._uninstall()

    def _uninstall(self) -> None:
        eventlog.activate(None)
        self._patches.restore()
