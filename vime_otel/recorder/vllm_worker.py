"""One rank of vLLM: the RPC methods that a worker gets, and where it is hooked while a window is open."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .clock import clock_now
from .eventlog import EventLog
from .patches import HookTargets, Patches
from .vllm_phases import hook_moe_phases, hook_scopes
from .window import Clock
from .worker import WorkerRecorder


def arm_worker(worker: Any, limit: int | None, timing: str) -> dict[str, Any]:
    """RPC method of every worker: open a window. Never raises."""
    try:
        recorder = worker.__dict__.get("_vime_otel_worker")
        if recorder is None:
            recorder = worker._vime_otel_worker = WorkerRecorder(WorkerHooks(worker))
        answer: dict[str, Any] = recorder.arm(limit, timing)
    except Exception as error:  # noqa: BLE001 - see recorder.worker
        return {"errors": [f"arming failed: {error!r}"]}
    return answer


def take_worker(worker: Any) -> dict[str, Any]:
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
        self.targets = HookTargets()

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
        return clock_now()

    def install(self, log: EventLog, patches: Patches, recorder: WorkerRecorder) -> None:
        """Hook the runner, every module of its models, the MoE phases and vLLM's own scopes."""
        self.targets = HookTargets()
        runner = self._worker.model_runner
        for model in _models(runner):
            for path, module in model.named_modules():
                attribute = path.rpartition(".")[2]
                name = type(module).__name__
                frame = name if not attribute or attribute.isdigit() else f"{attribute}:{name}"
                patches.set(module, "forward", log.timed(module.forward, frame, path))
        hook_moe_phases(log, patches, self.targets)
        hook_scopes(log, patches, self.targets)
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
        self.targets.found += ["execute_model", "sample_tokens"]
        dummy = getattr(self._worker, "execute_dummy_batch", None)
        if dummy is not None:
            patches.set(self._worker, "execute_dummy_batch", recorder.discarding(dummy))


def _models(runner: Any) -> list[Any]:
    """The runner's model and, with speculative decoding, its drafter's."""
    models = [runner.get_model()]
    for holder in ("drafter", "speculator"):
        model = getattr(getattr(runner, holder, None), "model", None)
        if hasattr(model, "named_modules"):
            models.append(model)
    return models
