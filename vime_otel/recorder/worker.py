"""The recorder of one rank: hooks on its modules while a window is open, a flat log, nothing else.

Its entry points are called by RPC. They answer with errors instead of raising: an exception on one
rank leaves the others' answers in vLLM's queue for the next, innocent caller.
"""

from __future__ import annotations

import array
import logging
import os
import time
from collections.abc import Callable
from typing import Any, Protocol

from vime_otel.data.spans import ENTRY, fold, rebuild

from . import eventlog
from .device_clock import DeviceClock
from .eventlog import EventLog
from .patches import HookTargets, Patches
from .window import Clock, RankLog, WorkerOrder

logger = logging.getLogger("vllm.vime_otel")

RECORDER_FRAME = "vime_otel"
"""What the recorder itself does at the beginning of a step: fold the last one, or take its place for this one."""

_SYNCS_TRIED = 20


class Hooks(Protocol):
    """What the recorder needs of a worker; `vllm_worker` has the real one."""

    targets: HookTargets

    def free_memory_mib(self) -> float | None: ...
    def device_sync(self) -> Callable[[], None] | None: ...
    def device_clock(self) -> DeviceClock: ...
    def place(self) -> tuple[int, int]: ...
    def clock(self) -> Clock: ...
    def install_on_runner(self, log: EventLog, patches: Patches, recorder: WorkerRecorder) -> None: ...
    def install_in_step(
        self, log: EventLog, patches: Patches, recorder: WorkerRecorder, order: WorkerOrder
    ) -> None: ...


class WorkerRecorder:
    """Records windows of steps on one rank.

    Two layers of hooks: those on the runner, which find where a step begins, stay for the whole
    window; those on modules and phases only for the steps that are recorded.
    """

    def __init__(self, hooks: Hooks):
        self._hooks = hooks
        self._runner_patches = Patches()
        self._step_patches = Patches()
        self._log: EventLog | None = None
        self._errors: list[str] = []
        self._forget()

    def _forget(self) -> None:
        self._order = WorkerOrder(0)
        self._seen = 0
        self._packed = array.array("q")
        self._starts: list[int] = []
        self._folded: dict[int, list[tuple[tuple[int, ...], int, int]]] = {}
        self._paths: dict[tuple[int, ...], tuple[int, ...]] = {}
        self._executions: list[str] = []
        self._device: DeviceClock | None = None
        self._sync_ns = 0.0
        self._discarding = False
        self._in_step = False

    def check(self, timing: str, force_eager: bool, min_free_mib: float) -> dict[str, Any]:
        """Whether this rank could be armed so. Answers {"errors": [text]}."""
        errors = []
        try:
            if timing == "events" and self._hooks.device_sync() is None:
                errors.append(
                    "timing `events` needs a GPU, and this rank runs on the CPU; record with `sync` or `host`"
                )
            free = self._hooks.free_memory_mib() if force_eager else None
            if free is not None and free < min_free_mib:
                errors.append(
                    f"{free:.0f} MiB of device memory are free, a forced eager run is refused below"
                    f" {min_free_mib:.0f} (VIME_OTEL_MIN_FREE_MIB)"
                )
        except Exception as error:  # noqa: BLE001 - see the module's docstring
            errors.append(f"checking failed: {error!r}")
        return {"errors": errors}

    def arm(self, order: WorkerOrder) -> dict[str, Any]:
        """Open a window. Answers {"errors": [text]}."""
        try:
            self._uninstall()
            self._forget()
            self._errors = []
            self._order = order
            self._discarding = order.force_eager
            sync = self._hooks.device_sync()
            mark = None
            if order.timing == "events":
                self._device = self._hooks.device_clock()
                mark = self._device.mark
            if order.timing == "sync" and sync is not None:
                self._sync_ns = _cost(sync)
            self._log = EventLog(self.fault, sync if order.timing == "sync" else None, mark=mark)
            self._hooks.install_on_runner(self._log, self._runner_patches, self)
            if order.every == 1:
                self._install_in_step()
        except Exception as error:  # noqa: BLE001 - see the module's docstring
            self.fault(error)
        return {"errors": list(self._errors)}

    def take(self) -> dict[str, Any]:
        """Close the window. Answers its log (or None) with errors and hook targets."""
        answer: dict[str, Any] = {"log": None, "errors": self._errors, "hooks_found": [], "hooks_missing": []}
        try:
            self._uninstall()
            if self._log is not None:
                self._close_step()
                targets = self._hooks.targets
                answer["hooks_found"], answer["hooks_missing"] = targets.found, targets.missing
                answer["log"] = self._rank_log(self._log)
            self._log = None
            self._forget()
        except Exception as error:
            answer["errors"] = [*self._errors, f"taking the log failed: {error!r}"]
            logger.warning("vime-otel could not fetch this rank's log", exc_info=True)
        return answer

    def _rank_log(self, log: EventLog) -> RankLog:
        rank, stage = self._hooks.place()
        device = self._device.ticks(log.marks).tobytes() if self._device is not None else b""
        return RankLog(
            rank,
            stage,
            os.getpid(),
            self._hooks.clock(),
            [(frame.name, frame.module) for frame in log.frames],
            self._packed.tobytes(),
            self._starts,
            device,
            self._folded,
            self._executions,
            self._sync_ns,
        )

    # -- called by the hooks on the runner ------------------------------------------------------

    def begin_step(self) -> bool:
        """A step's execute_model is about to run; whether it is recorded. Never raises."""
        try:
            return self._begin_step()
        except Exception as error:  # noqa: BLE001 - the step must run whatever fails here
            self.fault(error)
            return False

    def _begin_step(self) -> bool:
        log, order = self._log, self._order
        if log is None:
            return False
        if self._discarding:
            # The first eager step of a compiled engine compiles kernels of its own.
            self._discarding = False
            return False
        number, self._seen = self._seen, self._seen + 1
        self._close_step()
        if len(self._starts) == order.limit:
            self._uninstall()
        if not self._runner_patches:
            return False
        if order.every > 1:
            if (number + 1) % order.every:  # the first steps after arming wait for others to be over
                if self._step_patches:
                    self._step_patches.suspend()
                    eventlog.activate(None)
                return False
            with log.span(RECORDER_FRAME):
                self._install_in_step()
        self._starts.append(len(self._packed))
        self._executions.append("")
        self._in_step = True
        return True

    def executed(self, execution: str) -> None:
        """How the step under way runs; the first word counts (a drafter may run otherwise)."""
        if self._executions and not self._executions[-1]:
            self._executions[-1] = execution

    def keeping_company(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A dummy batch, made for the rank's lockstep group: no step, though the group counts it as one."""
        discarded = self.discarding(function)

        def dummy(*args: Any, **kwargs: Any) -> Any:
            self._discarding = False
            return discarded(*args, **kwargs)

        return dummy

    def discarding(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function` with what it records thrown away: warm-ups and dummy batches are no steps."""

        def discarded(*args: Any, **kwargs: Any) -> Any:
            log = self._log
            length = (len(log.entries), len(log.marks)) if log is not None else (0, 0)
            try:
                return function(*args, **kwargs)
            finally:
                if log is not None:
                    log.cut(*length)

        return discarded

    # -- the log -----------------------------------------------------------------------------------

    def _close_step(self) -> None:
        """Move what the last step wrote out of the way: packed, or folded once the log is full."""
        log = self._log
        if log is None:
            return
        if not self._in_step:
            log.cut(0, 2 * len(self._packed) // ENTRY)  # the marks of what is packed stay
            return
        self._in_step = False
        spans = (len(self._packed) + len(log.entries)) // ENTRY
        if spans > self._order.max_spans:
            if self._device is not None:
                self._uninstall()
                self._errors.append(
                    f"the log is full after {len(self._starts)} steps (VIME_OTEL_MAX_SPANS); ask for fewer"
                    " steps, or for another timing than `events`"
                )
            else:
                self._fold_step(log)
                return
        self._packed.extend(log.entries)
        log.entries.clear()

    def _fold_step(self, log: EventLog) -> None:
        started = log.clock()
        outermost = rebuild(log.entries)
        self._folded[len(self._starts) - 1] = [
            (self._paths.setdefault(path, path), *totals) for path, totals in fold(outermost).items()
        ]
        for node in outermost:
            self._packed.extend((node.frame, node.start, node.end))
        log.entries.clear()
        # The next step begins with it.
        log.entries.extend((log.frame_number(RECORDER_FRAME), started, log.clock()))

    def _install_in_step(self) -> None:
        if self._log is not None and not self._step_patches:
            if not self._step_patches.resume():
                self._hooks.install_in_step(self._log, self._step_patches, self, self._order)
            eventlog.activate(self._log)

    def fault(self, error: BaseException) -> None:
        """Recording failed: take every hook away and answer why."""
        if self._errors:
            return  # calls that were under way when the hooks went fail the same way once more
        self._errors.append(f"recording failed and was given up: {error!r}")
        logger.warning("vime-otel gave a recording up; the engine goes on", exc_info=error)
        self._uninstall()

    def _uninstall(self) -> None:
        eventlog.activate(None)
        self._step_patches.restore()
        self._runner_patches.restore()


def _cost(sync: Callable[[], None]) -> float:
    """Nanoseconds of a synchronisation when the device has nothing to do: the best of some."""
    sync()
    costs = []
    for _ in range(_SYNCS_TRIED):
        start = time.perf_counter_ns()
        sync()
        costs.append(time.perf_counter_ns() - start)
    return float(min(costs))
