"""vLLM's engine process: where it is hooked, how its workers are reached, what a step is."""

from __future__ import annotations

import functools
import hashlib
import inspect
import logging
import os
import socket
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

from vime_otel.data import settings
from vime_otel.data.errors import VimeOtelError
from vime_otel.data.lockstep import Position
from vime_otel.version import __version__

from .clock import clock_now
from .engine import EngineRecorder
from .patches import Patches
from .process import api_server, host_addresses
from .vllm_steps import count_step
from .vllm_worker import arm_worker, check_worker, take_worker
from .window import Clock, StepCounts

logger = logging.getLogger("vllm.vime_otel")

_MARK = "__vime_otel__"


def attach() -> None:
    """Wrap the engine's step and give workers the recorder's RPC methods. Idempotent."""
    core = import_module("vllm.v1.engine.core")
    for name in ("step", "step_with_batch_queue"):
        _wrap(core.EngineCore, name, wrap_step)
    _wrap(core.EngineCoreProc, "_handle_client_request", _wrap_request)
    for cls in (core.EngineCoreProc, core.DPEngineCoreProc):
        _wrap(cls, "run_busy_loop", _wrap_busy_loop)
    _wrap(core.EngineCore, "shutdown", _wrap_shutdown)
    worker_base = import_module("vllm.v1.worker.worker_base").WorkerBase
    worker_base.vime_otel_check = check_worker
    worker_base.vime_otel_arm = arm_worker
    worker_base.vime_otel_take = take_worker


def _wrap(cls: Any, name: str, wrapper: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    original = vars(cls).get(name)
    if original is None or getattr(original, _MARK, False):
        return
    wrapped = functools.wraps(original)(wrapper(original))
    setattr(wrapped, _MARK, True)
    setattr(cls, name, wrapped)


def wrap_step(original: Callable[..., Any]) -> Callable[..., Any]:
    """An engine's step function with the recorder's two looks around it."""

    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        recorder = self.__dict__.get("_vime_otel") or _recorder_of(self)
        if recorder.due:
            recorder.run_due(stepping=True)
        result = original(self, *args, **kwargs)
        if recorder.window_over:
            recorder.finish_window()
        try:
            if result[0]:
                recorder.pace.note(len(self.scheduler.running))
        except Exception as error:  # noqa: BLE001 - never into the engine
            recorder.watch_failed(error)
        return result

    return step


def _wrap_busy_loop(original: Callable[..., Any]) -> Callable[..., Any]:
    def run_busy_loop(self: Any) -> Any:
        _recorder_of(self)
        return original(self)

    return run_busy_loop


def _wrap_request(original: Callable[..., Any]) -> Callable[..., Any]:
    def _handle_client_request(self: Any, request_type: Any, request: Any) -> Any:
        result = original(self, request_type, request)
        recorder = self.__dict__.get("_vime_otel")
        if recorder is not None and recorder.due:
            recorder.run_due()
        return result

    return _handle_client_request


def _wrap_shutdown(original: Callable[..., Any]) -> Callable[..., Any]:
    def shutdown(self: Any) -> Any:
        for door in self.__dict__.pop("_vime_otel_doors", ()):
            door.close()
        return original(self)

    return shutdown


def _recorder_of(engine: Any) -> EngineRecorder:
    recorder: EngineRecorder | None = engine.__dict__.get("_vime_otel")
    if recorder is None:
        try:
            from .checks import check_settings
            from .doors import open_doors

            check_settings()
            recorder = EngineRecorder(EnginePort(engine))
            engine._vime_otel_doors = open_doors(recorder)
        except VimeOtelError as error:
            logger.warning("vime-otel is off: %s", error)
            recorder = EngineRecorder.idle()
        except Exception:
            logger.warning("vime-otel could not start; the engine runs without it", exc_info=True)
            recorder = EngineRecorder.idle()
        engine._vime_otel = recorder
    return recorder


# What changes the engine under a recording's feet, and is told there.
_EVENTS = (
    "sleep",
    "wake_up",
    "pause_scheduler",
    "resume_scheduler",
    "collective_rpc",
    "add_lora",
    "remove_lora",
    "reset_prefix_cache",
    "abort_requests",
)


class _Events:
    """Tells a recorder of calls from outside; those that they make among themselves are not told."""

    def __init__(self, watcher: EngineRecorder):
        self._watcher = watcher
        self._inside = False

    def telling(self, method: Callable[..., Any], name: str) -> Callable[..., Any]:
        """`method`, told of as `name`."""

        @functools.wraps(method)  # vLLM reads the signature to decode a remote call's arguments
        def told(*args: Any, **kwargs: Any) -> Any:
            if self._inside:
                return method(*args, **kwargs)
            try:
                self._watcher.on_event(_event_name(name, *args))
            except Exception as error:  # noqa: BLE001 - never into the engine
                self._watcher.watch_failed(error)
            self._inside = True
            try:
                return method(*args, **kwargs)
            finally:
                self._inside = False

        return told


def _event_name(name: str, first: Any = None, *others: Any) -> str:
    """`collective_rpc(update_weights)`: the call with what says most about it."""
    detail = getattr(first, "lora_name", None) or getattr(first, "__name__", first)
    if name == "abort_requests":
        detail = len(first or ())
    return f"{name}({'' if detail is None else str(detail)[:_LONGEST_DETAIL]})"


_LONGEST_DETAIL = 60


class EnginePort:
    """The recorder's view of one EngineCore."""

    def __init__(self, engine: Any):
        self._engine = engine
        self._config = engine.vllm_config
        self.max_spans = settings.whole_number(settings.MAX_SPANS)
        self.min_free_mib = settings.whole_number(settings.MIN_FREE_MIB)
        self.sample_every = settings.sample_every()
        self._decode_tokens = settings.decode_tokens()
        self._description: dict[str, Any] = {}

    def workers_have_plugin(self) -> bool:
        """Ask every worker; the question itself can't fail on one."""
        return all(self._engine.model_executor.collective_rpc(hasattr, args=("vime_otel_arm",)))

    def call_workers(self, method: str, *args: Any) -> list[Any]:
        """Every rank's answer, waited for without a timeout (a late answer would reach the next caller)."""
        answers: list[Any] = self._engine.model_executor.collective_rpc(method, args=args)
        return answers

    def call_workers_later(self, method: str, *args: Any) -> Callable[[], list[Any] | None]:
        """Queue a call in the order of the steps; the function gives the answers once they are there."""
        executor = self._engine.model_executor
        if "non_block" not in inspect.signature(executor.collective_rpc).parameters:
            answers = self.call_workers(method, *args)
            return lambda: answers
        future = executor.collective_rpc(method, args=args, non_block=True)
        return lambda: future.result() if future.done() else None

    def lockstep(self) -> Position | None:
        """Where the engine's data-parallel group stands, if its engines run in lockstep."""
        wave, step = getattr(self._engine, "current_wave", None), getattr(self._engine, "step_counter", None)
        return None if wave is None or step is None else (wave, step)

    def watch_steps(self, patches: Patches, watcher: EngineRecorder) -> None:
        """Have `watcher` told of every scheduler output made and processed, and of every dummy batch."""
        scheduler = self._engine.scheduler
        schedule, update = scheduler.schedule, scheduler.update_from_output
        clock = time.perf_counter_ns

        def watched_schedule(*args: Any, **kwargs: Any) -> Any:
            start = clock()
            output = schedule(*args, **kwargs)
            try:
                watcher.on_schedule(output, start, clock())
            except Exception as error:  # noqa: BLE001 - never into the engine
                watcher.watch_failed(error)
            return output

        def watched_update(scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
            start = clock()
            result = update(scheduler_output, *args, **kwargs)
            try:
                watcher.on_update(scheduler_output, start, clock())
            except Exception as error:  # noqa: BLE001 - never into the engine
                watcher.watch_failed(error)
            return result

        patches.set(scheduler, "schedule", watched_schedule)
        patches.set(scheduler, "update_from_output", watched_update)
        events = _Events(watcher)
        for name in _EVENTS:
            method = getattr(self._engine, name, None)
            if method is not None:
                patches.set(self._engine, name, events.telling(method, name))
        if self.lockstep() is None:
            return
        dummy = self._engine.execute_dummy_batch

        def watched_dummy(*args: Any, **kwargs: Any) -> Any:
            start = clock()
            result = dummy(*args, **kwargs)
            try:
                watcher.on_dummy(start, clock())
                if watcher.window_over:
                    watcher.finish_window()
            except Exception as error:  # noqa: BLE001 - never into the engine
                watcher.watch_failed(error)
            return result

        patches.set(self._engine, "execute_dummy_batch", watched_dummy)

    def count(self, scheduler_output: Any) -> StepCounts:
        """Kind and tokens of a scheduler output; right after schedule()."""
        return count_step(self._engine.scheduler.requests, scheduler_output, self._decode_tokens)

    def describe(self) -> dict[str, Any]:
        """The engine's introduction, as `refresh` last found it."""
        return self._description or self.refresh()

    def refresh(self) -> dict[str, Any]:
        """Look anew for what may change: the API server listens only after the engine is up. Takes milliseconds."""
        parallel = self._config.parallel_config
        addresses = host_addresses()
        server = api_server()
        dp_rank = getattr(parallel, "data_parallel_index", 0) or 0
        outward = next((a for a in addresses if not a.startswith("127.") and ":" not in a), "127.0.0.1")
        place = f"{server.address or outward}:{server.ports[0]}" if server.ports else f"{outward}:pid-{os.getpid()}"
        self._description = {
            "label": f"{place}/{dp_rank}",
            "addresses": addresses,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "api_ports": server.ports,
            "model": str(self._config.model_config.model),
            "dp_rank": dp_rank,
            "dp_group": self._dp_group(),
            "dp_size": parallel.data_parallel_size if self.lockstep() is not None else 1,
            "ranks": parallel.world_size,
            "vllm_version": _vllm_version(),
            "vime_otel_version": __version__,
            "execution": _execution(self._config),
            "decode_tokens": self._decode_tokens,
        }
        return self._description

    def _dp_group(self) -> str | None:
        """What the engines of one lockstep group have in common."""
        if self.lockstep() is None:
            return None
        parallel = self._config.parallel_config
        address = str(parallel.data_parallel_master_ip)
        # All engines are told the same by the server that starts them; a loopback address tells hosts not apart.
        host = socket.gethostname() if address.startswith("127.") else ""
        parts = (host, address, parallel.data_parallel_master_port, parallel.data_parallel_size)
        return hashlib.sha256("/".join(map(str, parts)).encode()).hexdigest()[:16]

    def clock(self) -> Clock:
        """This process's clocks now."""
        return clock_now()

    def wake(self) -> None:
        """Have an idle engine loop look at its orders; in-process engines look at their next step."""
        queue = getattr(self._engine, "input_queue", None)
        if queue is not None:
            from vllm.v1.engine import EngineCoreRequestType

            queue.put_nowait((EngineCoreRequestType.WAKEUP, None))


def _vllm_version() -> str:
    import vllm

    return str(vllm.__version__)


def _execution(config: Any) -> str:
    mode = getattr(config.compilation_config, "mode", None)
    return "compiled" if mode is not None and int(mode) != 0 else "eager"
