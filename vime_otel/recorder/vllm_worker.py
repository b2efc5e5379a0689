"""One rank of vLLM: the RPC methods that a worker gets, and where it is hooked while a window is open."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

from .clock import clock_now
from .device_clock import DeviceClock, torch_device_clock
from .eventlog import EventLog
from .patches import HookTargets, Patches
from .vllm_phases import hook_moe_phases, hook_scopes
from .window import Clock, WorkerOrder
from .worker import WorkerRecorder

_GRAPHS = {"FULL": "full_graph", "PIECEWISE": "piecewise"}


def check_worker(worker: Any, timing: str, force_eager: bool, min_free_mib: float) -> dict[str, Any]:
    """RPC method of every worker: whether it could be armed so. Never raises."""
    try:
        answer: dict[str, Any] = _recorder_of(worker).check(timing, force_eager, min_free_mib)
    except Exception as error:  # noqa: BLE001 - see recorder.worker
        return {"errors": [f"checking failed: {error!r}"]}
    return answer


def arm_worker(worker: Any, order: WorkerOrder) -> dict[str, Any]:
    """RPC method of every worker: open a window. Never raises."""
    try:
        answer: dict[str, Any] = _recorder_of(worker).arm(order)
    except Exception as error:  # noqa: BLE001 - see recorder.worker
        return {"errors": [f"arming failed: {error!r}"]}
    return answer


def take_worker(worker: Any) -> dict[str, Any]:
    """RPC method of every worker: close the window and answer its log. Never raises."""
    try:
        answer: dict[str, Any] = _recorder_of(worker).take()
    except Exception as error:  # noqa: BLE001 - see recorder.worker
        return {"log": None, "errors": [f"taking the log failed: {error!r}"]}
    return answer


def _recorder_of(worker: Any) -> WorkerRecorder:
    recorder: WorkerRecorder | None = worker.__dict__.get("_vime_otel_worker")
    if recorder is None:
        recorder = worker._vime_otel_worker = WorkerRecorder(WorkerHooks(worker))
    return recorder


class WorkerHooks:
    """Where a rank is hooked while a window is open."""

    def __init__(self, worker: Any):
        self._worker = worker
        self.targets = HookTargets()

    def free_memory_mib(self) -> float | None:
        """Free memory of this rank's device; None on the CPU."""
        if self.device_sync() is None:
            return None
        import torch

        query = getattr(torch.accelerator, "get_memory_info", torch.cuda.mem_get_info)
        return float(query()[0]) / 2**20

    def device_sync(self) -> Callable[[], None] | None:
        """Waits for this rank's device; None on the CPU."""
        import torch

        device = getattr(self._worker, "device", None)
        if device is None or device.type == "cpu":
            return None
        synchronize: Callable[[], None] = torch.accelerator.synchronize
        return synchronize

    def device_clock(self) -> DeviceClock:
        """Event times of this rank's device. Raises RuntimeError on the CPU."""
        return torch_device_clock()

    def place(self) -> tuple[int, int]:
        """(rank, pipeline stage)."""
        parallel = self._worker.vllm_config.parallel_config
        per_stage = parallel.world_size // parallel.pipeline_parallel_size
        rank = self._worker.rank % parallel.world_size
        return rank, rank // per_stage

    def clock(self) -> Clock:
        """This process's clocks now."""
        return clock_now()

    # -- for the whole window --------------------------------------------------------------------

    def install_on_runner(self, log: EventLog, patches: Patches, recorder: WorkerRecorder) -> None:
        """Find where steps begin, and keep warm-ups and dummy batches out."""
        self.targets = HookTargets(["execute_model"])
        runner = self._worker.model_runner
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
        dummy = getattr(self._worker, "execute_dummy_batch", None)
        if dummy is not None:
            patches.set(self._worker, "execute_dummy_batch", recorder.keeping_company(dummy))

    # -- for the steps that are recorded ---------------------------------------------------------

    def install_in_step(self, log: EventLog, patches: Patches, recorder: WorkerRecorder, order: WorkerOrder) -> None:
        """Hook every module of the runner's models, the MoE phases, vLLM's own scopes, and what is dispatched."""
        runner = self._worker.model_runner
        self.targets = HookTargets(["execute_model"])
        for model in _models(runner):
            for path, module in model.named_modules():
                frame = module_frame(path, type(module).__name__, order.per_layer)
                patches.set(module, "forward", log.timed(module.forward, frame, path))
        hook_moe_phases(log, patches, self.targets)
        hook_scopes(log, patches, self.targets)
        self._hook_dispatch(runner, patches, recorder, order.force_eager)
        patches.set(runner, "sample_tokens", log.timed(runner.sample_tokens, "sample_tokens"))
        self.targets.found.append("sample_tokens")

    def _hook_dispatch(self, runner: Any, patches: Patches, recorder: WorkerRecorder, force_eager: bool) -> None:
        """See how each step is run; with `force_eager` have it run without compiled code and graphs.

        Three places: the forward context, which compiled models look into; and where the V1 and the
        V2 runner choose a CUDA graph.
        """
        plain = "compiled" if _is_compiled(self._worker.vllm_config) else "eager"
        uncompiled = "forced_eager" if force_eager else "eager"

        def name(mode: Any, skips_compiled: bool = False) -> str:
            return _GRAPHS.get(getattr(mode, "name", ""), uncompiled if skips_compiled else plain)

        context_module = import_module("vllm.forward_context")
        create = getattr(context_module, "create_forward_context", None)
        if create is None:
            self.targets.missing.append("forward_context")
        else:

            def create_forward_context(*args: Any, **kwargs: Any) -> Any:
                context = create(*args, **kwargs)
                try:
                    if force_eager:
                        context.skip_compiled = True
                    recorder.executed(name(context.cudagraph_runtime_mode, context.skip_compiled))
                except Exception as error:  # noqa: BLE001 - never into the engine
                    recorder.fault(error)
                return context

            patches.set(context_module, "create_forward_context", create_forward_context)
            self.targets.found.append("forward_context")
        choose = getattr(runner, "_determine_batch_execution_and_padding", None)
        if choose is not None and force_eager:
            patches.set(runner, "_determine_batch_execution_and_padding", _eagerly(choose, "force_eager"))
            self.targets.found.append("cudagraph dispatch")
        runner_module = sys.modules[type(runner).__module__]
        dispatch = getattr(runner_module, "dispatch_cg_and_sync_dp", None)
        if dispatch is not None:
            eager = _eagerly(dispatch, "need_eager") if force_eager else dispatch

            def dispatch_cg_and_sync_dp(*args: Any, **kwargs: Any) -> Any:
                chosen = eager(*args, **kwargs)
                try:
                    mode = chosen[0].cg_mode
                    if getattr(mode, "name", "") == "FULL":  # is replayed without a forward context
                        recorder.executed(name(mode))
                except Exception as error:  # noqa: BLE001 - never into the engine
                    recorder.fault(error)
                return chosen

            patches.set(runner_module, "dispatch_cg_and_sync_dp", dispatch_cg_and_sync_dp)
            self.targets.found.append("cudagraph dispatch")


def module_frame(path: str, class_name: str, per_layer: bool = False) -> str:
    """`attr:Class`, or where attr is a layer's number `Class`; by layer `layers.3:Class`."""
    above, _, attribute = path.rpartition(".")
    if not attribute:
        return class_name
    if not attribute.isdigit():
        return f"{attribute}:{class_name}"
    return f"{above.rpartition('.')[2]}.{attribute}:{class_name}" if per_layer else class_name


def _is_compiled(config: Any) -> bool:
    mode = getattr(config.compilation_config, "mode", None)
    return mode is not None and int(mode) != 0


def _eagerly(function: Callable[..., Any], parameter: str) -> Callable[..., Any]:
    """`function` with the parameter that asks for no graph set; raises TypeError where it has none."""
    signature = inspect.signature(function)
    if parameter not in signature.parameters:
        raise TypeError(f"{getattr(function, '__name__', function)} of this vLLM has no parameter {parameter}")

    def eagerly(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.arguments[parameter] = True
        return function(*bound.args, **bound.kwargs)

    return eagerly


def _models(runner: Any) -> list[Any]:
    """The runner's model and, with speculative decoding, its drafter's."""
    models = [runner.get_model()]
    for holder in ("drafter", "speculator"):
        model = getattr(getattr(runner, holder, None), "model", None)
        if hasattr(model, "named_modules"):
            models.append(model)
    return models
