"""Every place in vLLM that the recorder hooks or reads, as data.

`vllm_phases` takes the MoE phases and the runner's methods from here; `deploy/contract` checks all of it against the
source of many releases, without importing vLLM.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """One attribute: `Class.attribute`, or the name of a class or global of `module`.

    `parameters` are those of a function's parameters that the recorder gives or reads by name.
    """

    module: str
    path: str
    parameters: tuple[str, ...] = ()


@dataclass(frozen=True)
class Target:
    """Something the recorder needs, and where vLLM has it.

    What a recording's header lists as found or missing has the same `name` there, but for the `(V1)`, `(V2)` or `(CPU)`
    that tells which model runner a row is about.
    Any one of the `places` will do: layouts differ between releases and model runners. What is `optional` belongs to
    some releases or set-ups only; where it is absent, nothing is lost. `frame` is what its calls are recorded as;
    what `is_context` gives a context manager, and entering and leaving that are recorded.
    """

    name: str
    use: str
    places: tuple[Place, ...]
    optional: bool = False
    frame: str = ""
    is_context: bool = False


_CORE = "vllm.v1.engine.core"
_SCHEDULER = "vllm.v1.core.sched.scheduler"
_OUTPUT = "vllm.v1.core.sched.output"
_REQUEST = "vllm.v1.request"
_CONTEXT = "vllm.forward_context"
_GPU_V1 = "vllm.v1.worker.gpu_model_runner"
GPU_V2 = "vllm.v1.worker.gpu.model_runner"
_CPU_RUNNER = "vllm.v1.worker.cpu_model_runner"
_MODEL_STATE = "vllm.v1.worker.gpu.model_states.interface"
_MOE = "vllm.model_executor.layers.fused_moe"
_KERNEL = f"{_MOE}.modular_kernel"
_RUNNER = f"{_MOE}.runner.moe_runner"
_SHARED = f"{_MOE}.runner.shared_experts"


def _one(name: str, use: str, module: str, path: str, *parameters: str) -> Target:
    return Target(name, use, (Place(module, path, parameters),))


ENGINE = (
    _one("EngineCore.step", "a step of an engine", _CORE, "EngineCore.step"),
    _one("EngineCore.step_with_batch_queue", "a step with batches queued", _CORE, "EngineCore.step_with_batch_queue"),
    _one("EngineCore.shutdown", "an engine ends", _CORE, "EngineCore.shutdown"),
    _one("EngineCore.execute_dummy_batch", "steps without requests", _CORE, "EngineCore.execute_dummy_batch"),
    _one("EngineCore.scheduler", "the scheduler of an engine", _CORE, "EngineCore.scheduler"),
    _one("EngineCore.model_executor", "the way to the workers", _CORE, "EngineCore.model_executor"),
    _one(
        "EngineCoreProc._handle_client_request",
        "an idle engine obeys",
        _CORE,
        "EngineCoreProc._handle_client_request",
        "request_type",
        "request",
    ),
    _one("EngineCoreProc.run_busy_loop", "an engine process begins", _CORE, "EngineCoreProc.run_busy_loop"),
    _one("EngineCoreProc.input_queue", "an idle engine is woken", _CORE, "EngineCoreProc.input_queue"),
    _one("EngineCoreRequestType.WAKEUP", "what wakes it", "vllm.v1.engine", "EngineCoreRequestType.WAKEUP"),
    _one(
        "DPEngineCoreProc.run_busy_loop",
        "a data-parallel engine process begins",
        _CORE,
        "DPEngineCoreProc.run_busy_loop",
    ),
    _one("DPEngineCoreProc.step_counter", "the group's position", _CORE, "DPEngineCoreProc.step_counter"),
    _one("DPEngineCoreProc.current_wave", "the group's position", _CORE, "DPEngineCoreProc.current_wave"),
    _one(
        "Executor.collective_rpc",
        "workers are reached in the order of the steps",
        "vllm.v1.executor.abstract",
        "Executor.collective_rpc",
        "method",
        "args",
        "non_block",
    ),
    _one("Scheduler.schedule", "a step begins", _SCHEDULER, "Scheduler.schedule"),
    _one(
        "Scheduler.update_from_output",
        "a step ends",
        _SCHEDULER,
        "Scheduler.update_from_output",
        "scheduler_output",
    ),
    _one("Scheduler.requests", "the requests of a step", _SCHEDULER, "Scheduler.requests"),
    _one("Scheduler.running", "batch size", _SCHEDULER, "Scheduler.running"),
    *(
        _one(f"SchedulerOutput.{field}", "kind and size of a step", _OUTPUT, f"SchedulerOutput.{field}")
        for field in (
            "num_scheduled_tokens",
            "total_num_scheduled_tokens",
            "scheduled_new_reqs",
            "scheduled_cached_reqs",
            "scheduled_spec_decode_tokens",
        )
    ),
    *(
        _one(f"NewRequestData.{field}", "where a new request stands", _OUTPUT, f"NewRequestData.{field}")
        for field in ("req_id", "num_computed_tokens")
    ),
    *(
        _one(f"CachedRequestData.{field}", "where a known request stands", _OUTPUT, f"CachedRequestData.{field}")
        for field in ("req_ids", "num_computed_tokens", "resumed_req_ids")
    ),
    *(
        _one(f"Request.{field}", "prefill or decode", _REQUEST, f"Request.{field}")
        for field in ("num_prompt_tokens", "num_tokens", "num_preemptions")
    ),
)

CONFIGURATION = (
    *(
        _one(f"ParallelConfig.{field}", "ranks and groups", "vllm.config.parallel", f"ParallelConfig.{field}")
        for field in (
            "world_size",
            "pipeline_parallel_size",
            "data_parallel_size",
            "data_parallel_index",
            "data_parallel_master_ip",
            "data_parallel_master_port",
        )
    ),
    _one("CompilationConfig.mode", "compiled or eager", "vllm.config.compilation", "CompilationConfig.mode"),
)

# What is done around the model's forward and is in none of vLLM's scopes.
AROUND_FORWARD = (
    Target(
        "runner.forward_context",
        "layers are told of the batch",
        (Place(_GPU_V1, "set_forward_context"), Place(GPU_V2, "set_forward_context")),
        optional=True,
        frame="forward_context",
        is_context=True,
    ),
    Target(
        "runner.padding_mask",
        "tokens that only fill a batch up are marked (V1)",
        (Place(_GPU_V1, "GPUModelRunner._prepare_padding_mask"),),
        optional=True,
        frame="padding_mask",
    ),
)

WORKER = (
    _one("WorkerBase", "workers get the recorder's methods", "vllm.v1.worker.worker_base", "WorkerBase"),
    _one(
        "Worker.execute_dummy_batch",
        "dummy batches are left out",
        "vllm.v1.worker.gpu_worker",
        "Worker.execute_dummy_batch",
    ),
    *(
        _one(f"{method} ({label})", use, module, f"{cls}.{method}", *parameters)
        for label, module, cls in (
            ("V1", _GPU_V1, "GPUModelRunner"),
            ("V2", GPU_V2, "GPUModelRunner"),
            ("CPU", _CPU_RUNNER, "CPUModelRunner"),
        )
        for method, use, parameters in (
            ("execute_model", "a worker's step", ("scheduler_output",)),
            ("sample_tokens", "a worker's step, second half", ()),
            ("get_model", "the modules", ()),
        )
    ),
    _one("dummy_run (V2)", "dummy batches are left out", GPU_V2, "GPUModelRunner.execute_model", "dummy_run"),
    _one(
        "scopes",
        "vLLM's own scopes become frames",
        "vllm.v1.utils",
        "record_function_or_nullcontext",
        "name",
    ),
    _one("scopes: _PROFILER_FUNC", "where they are taken from", "vllm.v1.utils", "_PROFILER_FUNC"),
    *AROUND_FORWARD,
)

# Methods of the V2 runner, which has no scopes of vLLM's own.
RUNNER_METHODS = tuple(
    Target(f"runner.{frame}", "a part of a worker's step (V2)", places, frame=frame)
    for frame, places in (
        (
            "update_states",
            tuple(
                Place(GPU_V2, f"GPUModelRunner.{method}")
                for method in ("finish_requests", "free_states", "add_requests", "update_requests")
            ),
        ),
        (
            "prepare_inputs",
            (Place(GPU_V2, "GPUModelRunner.prepare_inputs"), Place(_MODEL_STATE, "ModelState.prepare_inputs")),
        ),
        (
            "prepare_attn",
            (Place(GPU_V2, "GPUModelRunner.prepare_attn"), Place(_MODEL_STATE, "ModelState.prepare_attn")),
        ),
        ("sample", (Place(GPU_V2, "GPUModelRunner.sample"),)),
        (
            "postprocess",
            (Place(GPU_V2, "GPUModelRunner.postprocess"), Place(GPU_V2, "GPUModelRunner.postprocess_sampled")),
        ),
    )
)

EAGER = (
    _one(
        "forward_context",
        "how a step is run",
        _CONTEXT,
        "create_forward_context",
    ),
    _one("ForwardContext.skip_compiled", "compiled code is passed by", _CONTEXT, "ForwardContext.skip_compiled"),
    _one(
        "ForwardContext.cudagraph_runtime_mode",
        "how a step is run",
        _CONTEXT,
        "ForwardContext.cudagraph_runtime_mode",
    ),
    _one(
        "cudagraph dispatch (V1)",
        "graphs are passed by",
        _GPU_V1,
        "GPUModelRunner._determine_batch_execution_and_padding",
        "force_eager",
    ),
    _one("cudagraph dispatch (V2)", "graphs are passed by", GPU_V2, "dispatch_cg_and_sync_dp", "need_eager"),
    _one(
        "BatchExecutionDescriptor.cg_mode",
        "how a step is run (V2)",
        "vllm.v1.worker.gpu.cudagraph_utils",
        "BatchExecutionDescriptor.cg_mode",
    ),
)

# A method is hooked on every class below the named one that defines it, too.
MOE_PHASES = (
    Target(
        "moe.route",
        "tokens choose their experts",
        (Place(f"{_MOE}.router.base_router", "BaseRouter.select_experts"),),
        frame="moe.route",
    ),
    Target(
        "moe.route (CPU)",
        "tokens choose their experts inside a monolithic kernel (CPU)",
        (
            Place(f"{_MOE}.cpu_fused_moe", "select_experts"),
            Place(f"{_MOE}.experts.cpu_moe", "select_experts"),
        ),
        optional=True,
        frame="moe.route",
    ),
    Target(
        "moe.pad",
        "hidden states are padded to what the kernel takes",
        (Place(_RUNNER, "MoERunner._maybe_pad_hidden_states"),),
        optional=True,
        frame="moe.pad",
    ),
    Target(
        "moe.dispatch",
        "tokens are quantised and sent to their experts",
        (Place(_KERNEL, "FusedMoEKernelModularImpl._prepare"),),
        frame="moe.dispatch",
    ),
    Target(
        "moe.experts",
        "the experts compute",
        (Place(_KERNEL, "FusedMoEKernelModularImpl._fused_experts"),),
        frame="moe.experts",
    ),
    Target(
        "moe.combine",
        "experts' outputs are weighted and sent back",
        (Place(_KERNEL, "FusedMoEKernelModularImpl._finalize"),),
        frame="moe.combine",
    ),
    Target(
        "moe.dispatch (monolithic)",
        "tokens are quantised and sent, before a monolithic kernel",
        (Place(_KERNEL, "FusedMoEPrepareAndFinalizeMonolithic.prepare"),),
        frame="moe.dispatch",
    ),
    Target(
        "moe.experts (monolithic)",
        "experts that route by themselves",
        (Place(_KERNEL, "FusedMoEExpertsMonolithic.apply"),),
        frame="moe.experts",
    ),
    Target(
        "moe.combine (monolithic)",
        "outputs are sent back, after a monolithic kernel",
        (Place(_KERNEL, "FusedMoEPrepareAndFinalizeMonolithic.finalize"),),
        frame="moe.combine",
    ),
    Target(
        "moe.experts (own kernel)",
        "experts of a quantisation method with a kernel of its own",
        (
            Place(f"{_MOE}.fused_moe_method_base", "FusedMoEMethodBase.apply"),
            Place(f"{_MOE}.fused_moe_method_base", "FusedMoEMethodBase.apply_monolithic"),
        ),
        frame="moe.experts",
    ),
    Target(
        "moe.dispatch (runner)",
        "tokens are gathered from all ranks",
        (Place(_RUNNER, "MoERunner._maybe_dispatch"),),
        frame="moe.dispatch",
    ),
    Target(
        "moe.combine (runner)",
        "outputs are scattered to their ranks",
        (Place(_RUNNER, "MoERunner._maybe_combine"),),
        frame="moe.combine",
    ),
    Target(
        "moe.reduce",
        "outputs are summed over the ranks",
        (Place(_RUNNER, "tensor_model_parallel_all_reduce"),),
        frame="moe.reduce",
    ),
    Target(
        "moe.shared_experts",
        "experts that every token passes",
        (
            Place(_SHARED, "SharedExperts.forward", ("shared_experts_input", "order")),
            Place(_SHARED, "SharedExperts.apply", ("shared_experts_input", "order")),
        ),
        frame="moe.shared_experts",
    ),
    Target(
        "moe.shared_experts (own stream)",
        "shared experts on a stream of their own",
        (Place(_SHARED, "SharedExperts.maybe_forward_async", ("shared_experts_input",)),),
        optional=True,
        frame="moe.shared_experts",
    ),
)

# What the conditions in `vllm_phases` read, which tell whether a call does anything.
MOE_CONDITIONS = (
    _one("MoERunner.do_naive_dispatch_combine", "whether tokens move", _RUNNER, "MoERunner.do_naive_dispatch_combine"),
    _one("MoERunner.moe_config", "whether tokens move", _RUNNER, "MoERunner.moe_config"),
    _one("FusedMoEKernel.impl", "whose kernel runs", _KERNEL, "FusedMoEKernel.impl"),
    _one(
        "FusedMoEMethodBase.moe_kernel",
        "whose kernel runs",
        f"{_MOE}.fused_moe_method_base",
        "FusedMoEMethodBase.moe_kernel",
    ),
    _one(
        "SharedExperts._determine_shared_experts_order",
        "when shared experts run",
        _SHARED,
        "SharedExperts._determine_shared_experts_order",
    ),
    _one(
        "SharedExpertsOrder.MULTI_STREAM_OVERLAPPED",
        "when shared experts run",
        _SHARED,
        "SharedExpertsOrder.MULTI_STREAM_OVERLAPPED",
    ),
)

TARGETS = (*ENGINE, *CONFIGURATION, *WORKER, *RUNNER_METHODS, *EAGER, *MOE_PHASES, *MOE_CONDITIONS)
