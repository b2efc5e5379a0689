"""The one module that touches vLLM's internals: where to hook, how to reach workers, what a step is.

Written against vLLM 0.32's V1 engine. Whatever may be laid out otherwise in other versions is
looked up by capability; what was not found is reported as a missing hook target.
"""

from __future__ import annotations

import functools
import inspect
import logging
import os
import socket
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib import import_module
from typing import Any

from vime_otel.data import settings
from vime_otel.data.errors import VimeOtelError
from vime_otel.version import __version__

from .engine import EngineRecorder
from .eventlog import EventLog
from .patches import Patches
from .process import api_server, host_addresses
from .window import Clock, StepCounts
from .worker import WorkerRecorder

logger = logging.getLogger("vllm.vime_otel")

_MARK = "__vime_otel__"
_FUSED_MOE = "vllm.model_executor.layers.fused_moe"

# (module, class, method, frame). A method is wrapped on the class that defines it.
_PHASES = (
    (f"{_FUSED_MOE}.router.base_router", "BaseRouter", "select_experts", "moe.route"),
    (f"{_FUSED_MOE}.modular_kernel", "FusedMoEKernelModularImpl", "_prepare", "moe.dispatch"),
    (f"{_FUSED_MOE}.modular_kernel", "FusedMoEKernelModularImpl", "_fused_experts", "moe.experts"),
    (f"{_FUSED_MOE}.modular_kernel", "FusedMoEKernelModularImpl", "_finalize", "moe.combine"),
)

# vLLM's own scopes in the model runner become frames, but for the one around the model's forward:
# the model's own frame stands there already.
_SCOPE_PREFIX = "gpu_model_runner: "
_SKIPPED_SCOPES = ("forward",)


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
    worker_base.vime_otel_arm = _arm_worker
    worker_base.vime_otel_take = _take_worker


def _wrap(cls: Any, name: str, wrapper: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    original = vars(cls).get(name)
    if original is None or getattr(original, _MARK, False):
        return
    wrapped = functools.wraps(original)(wrapper(original))
    setattr(wrapped, _MARK, True)
    setattr(cls, name, wrapped)


# -- the engine process ----------------------------------------------------------------------


def wrap_step(original: Callable[..., Any]) -> Callable[..., Any]:
    """An engine's step function with the recorder's two looks around it."""

    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        recorder = self.__dict__.get("_vime_otel") or _recorder_of(self)
        if recorder.due:
            recorder.run_due()
        result = original(self, *args, **kwargs)
        if recorder.window_over:
            recorder.finish_window()
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
            recorder = EngineRecorder(EnginePort(engine))
            from .doors import open_doors

            engine._vime_otel_doors = open_doors(recorder)
        except VimeOtelError as error:
            logger.warning("vime-otel is off: %s", error)
            recorder = EngineRecorder.idle()
        except Exception:
            logger.warning("vime-otel could not start; the engine runs without it", exc_info=True)
            recorder = EngineRecorder.idle()
        engine._vime_otel = recorder
    return recorder


class EnginePort:
    """The recorder's view of one EngineCore."""

    def __init__(self, engine: Any):
        self._engine = engine
        self._config = engine.vllm_config
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

    def watch_scheduler(self, patches: Patches, watcher: EngineRecorder) -> None:
        """Have `watcher` told of every scheduler output made and processed."""
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

    def count(self, scheduler_output: Any) -> StepCounts:
        """Kind and tokens of a scheduler output, by the scheduler's own numbers; right after schedule().

        A request prefills while tokens that it already has (its prompt, or, resumed after a
        preemption, what it had generated) are not computed up to the last one.
        """
        requests = self._engine.scheduler.requests
        context = generation = prefilling = 0
        scheduled = scheduler_output.num_scheduled_tokens
        for request in scheduler_output.scheduled_new_reqs:
            context += scheduled[request.req_id]
            prefilling += 1
        cached = scheduler_output.scheduled_cached_reqs
        for request_id, computed in zip(cached.req_ids, cached.num_computed_tokens, strict=True):
            request = requests[request_id]
            if computed < max(request.num_prompt_tokens, request.num_tokens - 1):
                context += scheduled[request_id]
                prefilling += 1
            else:
                generation += scheduled[request_id]
        kind = "prefill" if prefilling else "decode"
        if self._decode_tokens is not None:
            kind = "prefill" if context + generation > self._decode_tokens else "decode"
        return StepCounts(kind, bool(prefilling and generation), context, generation, len(scheduled))

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
            "ranks": parallel.world_size,
            "vllm_version": _vllm_version(),
            "vime_otel_version": __version__,
            "execution": _execution(self._config),
            "decode_tokens": self._decode_tokens,
        }
        return self._description

    def clock(self) -> Clock:
        """This process's clocks now."""
        return _clock_now()

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


def _clock_now() -> Clock:
    return Clock(_boot_of_this_host(), time.perf_counter_ns(), time.time_ns())


@functools.cache
def _boot_of_this_host() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return socket.gethostname()


# -- the workers -----------------------------------------------------------------------------


def _arm_worker(worker: Any, limit: int | None, timing: str) -> dict[str, Any]:
    """RPC method of every worker: open a window. Never raises."""
    try:
        recorder = worker.__dict__.get("_vime_otel_worker")
        if recorder is None:
            recorder = worker._vime_otel_worker = WorkerRecorder(WorkerHooks(worker))
        answer: dict[str, Any] = recorder.arm(limit, timing)
    except Exception as error:  # noqa: BLE001 - see recorder.worker
        return {"errors": [f"arming failed: {error!r}"]}
    return answer


def _take_worker(worker: Any) -> dict[str, Any]:
    """RPC method of every worker: close the window and answer its log. Never raises."""
    try:
        answer: dict[str, Any] = worker._vime_otel_worker.take()
    except Exception as error:  # noqa: BLE001 - see recorder.worker
        return {"log": None, "errors": [f"taking the log failed: {error!r}"]}
    return answer


class WorkerHooks:
    """Where a rank is hooked while a window is open."""

    def __init__(self, worker: Any):
        self._worker = worker
        self.found: list[str] = []
        self.missing: list[str] = []

    def device_sync(self) -> Callable[[], None] | None:
        """Waits for this rank's device; None on the CPU."""
        import torch

        device = getattr(self._worker, "device", None)
        if device is None or device.type == "cpu":
            return None
        synchronize: Callable[[], None] = torch.accelerator.synchronize
        return synchronize

    def place(self) -> tuple[int, int]:
        """(rank, pipeline stage)."""
        parallel = self._worker.vllm_config.parallel_config
        per_stage = parallel.world_size // parallel.pipeline_parallel_size
        rank = self._worker.rank % parallel.world_size
        return rank, rank // per_stage

    def clock(self) -> Clock:
        """This process's clocks now."""
        return _clock_now()

    def install(self, log: EventLog, patches: Patches, recorder: WorkerRecorder) -> None:
        """Hook the runner, every module of its models, the MoE phases and vLLM's own scopes."""
        self.found, self.missing = [], []
        runner = self._worker.model_runner
        for model in _models(runner):
            for path, module in model.named_modules():
                attribute = path.rpartition(".")[2]
                name = type(module).__name__
                frame = name if not attribute or attribute.isdigit() else f"{attribute}:{name}"
                patches.set(module, "forward", log.timed(module.forward, frame, path))
        self._hook_phases(log, patches)
        self._hook_scopes(log, patches)
        self._hook_runner(runner, log, patches, recorder)

    def _hook_runner(self, runner: Any, log: EventLog, patches: Patches, recorder: WorkerRecorder) -> None:
        execute = runner.execute_model
        execute_timed = log.timed(execute, "execute_model")
        execute_discarded = recorder.discarding(execute)

        def execute_model(scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
            if not scheduler_output.total_num_scheduled_tokens or kwargs.get("dummy_run"):
                return execute_discarded(scheduler_output, *args, **kwargs)
            if not recorder.begin_step():
                return execute(scheduler_output, *args, **kwargs)
            return execute_timed(scheduler_output, *args, **kwargs)

        patches.set(runner, "execute_model", execute_model)
        patches.set(runner, "sample_tokens", log.timed(runner.sample_tokens, "sample_tokens"))
        self.found += ["execute_model", "sample_tokens"]
        dummy = getattr(self._worker, "execute_dummy_batch", None)
        if dummy is not None:
            patches.set(self._worker, "execute_dummy_batch", recorder.discarding(dummy))

    def _hook_phases(self, log: EventLog, patches: Patches) -> None:
        for module_name, class_name, method, frame in _PHASES:
            try:
                cls = getattr(import_module(module_name), class_name)
                owner = next(base for base in cls.__mro__ if method in vars(base))
            except (ImportError, AttributeError, StopIteration):
                self.missing.append(frame)
                continue
            patches.set(owner, method, _as_method(log, vars(owner)[method], frame))
            self.found.append(frame)

    def _hook_scopes(self, log: EventLog, patches: Patches) -> None:
        utils = import_module("vllm.v1.utils")
        try:
            utils.record_function_or_nullcontext("vime_otel")  # makes vLLM choose its own function
            before = utils._PROFILER_FUNC
        except AttributeError:
            self.missing.append("scopes")
            return

        def scope(name: str) -> AbstractContextManager[Any]:
            own: AbstractContextManager[Any] = before(name)
            short = name.removeprefix(_SCOPE_PREFIX)
            if short == name or short in _SKIPPED_SCOPES:
                return own
            return _Both(own, log.span(short))

        patches.set(utils, "_PROFILER_FUNC", scope)
        self.found.append("scopes")


class _Both:
    """Two context managers as one, the second inside the first."""

    __slots__ = ("_inner", "_outer")

    def __init__(self, outer: Any, inner: Any):
        self._outer = outer
        self._inner = inner

    def __enter__(self) -> Any:
        entered = self._outer.__enter__()
        self._inner.__enter__()
        return entered

    def __exit__(self, *exc: Any) -> Any:
        self._inner.__exit__(*exc)
        return self._outer.__exit__(*exc)


def _as_method(log: EventLog, function: Callable[..., Any], frame: str) -> Callable[..., Any]:
    timed = log.timed(function, frame)
    return functools.wraps(function)(timed)


def _models(runner: Any) -> list[Any]:
    """The runner's model and, with speculative decoding, its drafter's."""
    models = [runner.get_model()]
    for holder in ("drafter", "speculator"):
        model = getattr(getattr(runner, holder, None), "model", None)
        if hasattr(model, "named_modules"):
            models.append(model)
    return models
