"""Phases inside a step that are no modules: those of MoE layers, and vLLM's own scopes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib import import_module
from typing import Any

from .eventlog import EventLog
from .patches import HookTargets, Patches

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


def hook_moe_phases(log: EventLog, patches: Patches, targets: HookTargets) -> None:
    """Record the phases of every MoE layer: route, dispatch, experts, combine."""
    for module_name, class_name, method, frame in _PHASES:
        try:
            cls = getattr(import_module(module_name), class_name)
            owner = next(base for base in cls.__mro__ if method in vars(base))
        except (ImportError, AttributeError, StopIteration):
            targets.missing.append(frame)
            continue
        patches.set(owner, method, _as_method(log, vars(owner)[method], frame))
        targets.found.append(frame)


def hook_scopes(log: EventLog, patches: Patches, targets: HookTargets) -> None:
    """Record vLLM's own scopes in the model runner: preprocess, sample, draft, bookkeep and the like."""
    utils = import_module("vllm.v1.utils")
    try:
        utils.record_function_or_nullcontext("vime_otel")  # makes vLLM choose its own function
        before = utils._PROFILER_FUNC
    except AttributeError:
        targets.missing.append("scopes")
        return

    def scope(name: str) -> AbstractContextManager[Any]:
        own: AbstractContextManager[Any] = before(name)
        short = name.removeprefix(_SCOPE_PREFIX)
        if short == name or short in _SKIPPED_SCOPES:
            return own
        return _Both(own, log.span(short))

    patches.set(utils, "_PROFILER_FUNC", scope)
    targets.found.append("scopes")


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
