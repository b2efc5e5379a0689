"""Phases inside a step that are no modules: those of MoE layers, parts of the runner, and vLLM's own scopes."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from importlib import import_module
from threading import get_ident
from typing import Any
from weakref import WeakKeyDictionary

from .eventlog import EventLog
from .patches import HookTargets, Patches
from .vllm_targets import AROUND_FORWARD, GPU_V2, MOE_PHASES, RUNNER_METHODS, Place, Target

# vLLM's own scopes in the model runner become frames, but for the one around the model's forward:
# the model's own frame stands there already.
_SCOPE_PREFIX = "gpu_model_runner: "
_SKIPPED_SCOPES = ("forward",)


def hook_moe_phases(log: EventLog, patches: Patches, targets: HookTargets) -> None:
    """Record the phases of every MoE layer, by whatever of vLLM's layouts is there.

    `moe.pad`, `moe.route`, `moe.dispatch`, `moe.experts`, `moe.combine`, `moe.shared_experts`, `moe.reduce`.
    """
    _hook("moe", MOE_PHASES, log, patches, targets)


def hook_scopes(log: EventLog, patches: Patches, targets: HookTargets) -> None:
    """Record the parts of the model runner: preprocess, sample, draft, bookkeep and the like.

    The V1 runners have scopes of vLLM's own for them, the V2 runner has methods; around the model's forward
    there are parts with neither.
    """
    _hook("forward", AROUND_FORWARD, log, patches, targets)
    if GPU_V2 in sys.modules:
        _hook("runner", RUNNER_METHODS, log, patches, targets)
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


class _TimedEnds:
    """A context manager of which entering and leaving are a span each, its body is not."""

    __slots__ = ("_frame", "_inner", "_log")

    def __init__(self, log: EventLog, frame: str, inner: Any):
        self._log = log
        self._frame = frame
        self._inner = inner

    def __enter__(self) -> Any:
        with self._log.span(self._frame):
            return self._inner.__enter__()

    def __exit__(self, *exc: Any) -> Any:
        with self._log.span(self._frame):
            return self._inner.__exit__(*exc)


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


# -- targets as hooks --------------------------------------------------------------------------------


_Replacement = tuple[Any, str, Callable[..., Any]]
"""(module or class, attribute, function)."""

# Made once for a log: hooks go on and off with every step that is recorded.
_made: WeakKeyDictionary[EventLog, dict[str, list[tuple[str, list[_Replacement]]]]] = WeakKeyDictionary()


def _hook(group: str, wanted: Iterable[Target], log: EventLog, patches: Patches, targets: HookTargets) -> None:
    made = _made.setdefault(log, {})
    if group not in made:
        made[group] = list(_phases(wanted, log))
    for name, phases in made[group]:
        for holder, attribute, phase in phases:
            patches.set(holder, attribute, phase)
        (targets.found if phases else targets.missing).append(name)


def _phases(wanted: Iterable[Target], log: EventLog) -> Iterator[tuple[str, list[_Replacement]]]:
    """Each target's name and the functions that record it."""
    open_frames: set[str] = set()
    for target in wanted:
        condition = _CONDITIONS.get(target.name)
        found = [
            (
                holder,
                attribute,
                _context(log, function, target.frame)
                if target.is_context
                else _phase(log, function, target.frame, open_frames, condition),
            )
            for place in target.places
            for holder, attribute, function in _holders(place, target.optional)
        ]
        if found or not target.optional:
            yield target.name, found


def _holders(place: Place, only_if_loaded: bool) -> list[_Replacement]:
    """The functions as vLLM has them that are to be replaced."""
    try:
        module = sys.modules.get(place.module) if only_if_loaded else import_module(place.module)
    except ImportError:
        return []
    class_name, _, name = place.path.rpartition(".")
    if not class_name:
        function = getattr(module, name, None)
        return [] if function is None else [(module, name, function)]
    cls = getattr(module, class_name, None)
    if cls is None:
        return []
    if name == "forward":
        # While a window is open a torch module has a `forward` of its own, past which the class's is never called.
        return [(cls, "__call__", cls.__call__)]
    owners = [base for base in cls.__mro__ if name in vars(base)][:1]
    owners += [sub for sub in _below(cls) if name in vars(sub)]
    found = [(owner, name, vars(owner)[name]) for owner in owners]
    return [each for each in found if not getattr(each[2], "__isabstractmethod__", False)]


def _below(cls: type) -> set[type]:
    """Its subclasses, theirs, and so on."""
    found: set[type] = set(cls.__subclasses__())
    return found.union(*(_below(sub) for sub in found))


def _phase(
    log: EventLog,
    function: Callable[..., Any],
    frame: str,
    open_frames: set[str],
    condition: Callable[..., bool] | None,
) -> Callable[..., Any]:
    """`function`, recorded as `frame` where the condition holds and no call above it is recorded as the same."""
    timed, thread = log.timed(function, frame), log.thread

    def phase(*args: Any, **kwargs: Any) -> Any:
        if frame in open_frames or get_ident() != thread or not (condition is None or _holds(condition, args, kwargs)):
            return function(*args, **kwargs)
        open_frames.add(frame)
        try:
            return timed(*args, **kwargs)
        finally:
            open_frames.discard(frame)

    return functools.wraps(function)(phase)


def _context(log: EventLog, function: Callable[..., Any], frame: str) -> Callable[..., Any]:
    """`function`, whose context managers record as `frame` how long entering and leaving take."""

    def context(*args: Any, **kwargs: Any) -> _TimedEnds:
        return _TimedEnds(log, frame, function(*args, **kwargs))

    return functools.wraps(function)(context)


def _holds(condition: Callable[..., bool], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    try:
        return condition(*args, **kwargs)
    except Exception:  # noqa: BLE001 - rather a frame too many than a failed request
        return True


# -- whether a call does anything --------------------------------------------------------------------


def _moves_tokens(runner: Any, *_: Any, **__: Any) -> bool:
    return bool(runner.do_naive_dispatch_combine or runner.moe_config.pcp_size > 1)


def _has_own_kernel(quant_method: Any, *_: Any, **__: Any) -> bool:
    return getattr(getattr(quant_method, "moe_kernel", None), "impl", None) is None


# Asking for the order costs more than a span. Without a stream it is the layer's own, whatever the batch.
_orders: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()


def _runs_now(shared: Any, shared_experts_input: Any, order: Any) -> bool:
    actual = _orders.get(shared)
    if actual is None:
        actual = shared._determine_shared_experts_order(shared_experts_input)
        if not _has_stream(shared):
            _orders[shared] = actual
    return bool(order == actual)


def _has_stream(shared: Any) -> bool:
    return getattr(shared, "_stream", shared) is not None


def _runs_ahead(shared: Any, shared_experts_input: Any) -> bool:
    if not _has_stream(shared):
        return False
    return bool(shared._determine_shared_experts_order(shared_experts_input).name == "MULTI_STREAM_OVERLAPPED")


_CONDITIONS: dict[str, Callable[..., bool]] = {
    "moe.dispatch (runner)": _moves_tokens,
    "moe.combine (runner)": _moves_tokens,
    "moe.experts (own kernel)": _has_own_kernel,
    "moe.shared_experts": _runs_now,
    "moe.shared_experts (own stream)": _runs_ahead,
}
