"""The phases of MoE layers over the layouts that vLLM has had, on stand-ins for its modules."""

from __future__ import annotations

import sys
import types
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from vime_otel.recorder.eventlog import EventLog
from vime_otel.recorder.patches import HookTargets, Patches
from vime_otel.recorder.vllm_phases import hook_moe_phases, hook_scopes
from vime_otel.recorder.vllm_targets import AROUND_FORWARD, GPU_V2, MOE_PHASES, RUNNER_METHODS

MOE = "vllm.model_executor.layers.fused_moe"

Install = Callable[..., None]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """`install(module, name=value, …)` makes a module of vLLM; those that no test makes do not exist."""
    for target in (*MOE_PHASES, *RUNNER_METHODS, *AROUND_FORWARD):
        for place in target.places:
            monkeypatch.setitem(sys.modules, place.module, None)

    def install(module: str, **content: Any) -> None:
        made = types.ModuleType(module)
        vars(made).update(content)
        monkeypatch.setitem(sys.modules, module, made)

    return install


class Recorded:
    """The frames that calls leave inside `with recorded:`; the hooks are gone afterwards."""

    def __init__(self) -> None:
        self.log = EventLog(pytest.fail)
        self.patches = Patches()
        self.targets = HookTargets()

    def __enter__(self) -> Recorded:
        hook_moe_phases(self.log, self.patches, self.targets)
        return self

    def __exit__(self, *_: object) -> None:
        self.patches.restore()

    @property
    def frames(self) -> dict[str, int]:
        return dict(Counter(self.log.frames[number].name for number in self.log.entries[::3]))


class Order:
    """An enum's member, as far as it is looked at."""

    def __init__(self, name: str):
        self.name = name


NOW, LATER, AHEAD = Order("NO_OVERLAP"), Order("MK_INTERNAL_OVERLAPPED"), Order("MULTI_STREAM_OVERLAPPED")


def modular_kernel() -> type:
    class FusedMoEKernelModularImpl:
        def _prepare(self, x: int) -> int:
            return x + 1

        def _fused_experts(self, x: int) -> int:
            return x * 2

        def _finalize(self, x: int) -> int:
            return x - 1

        def apply(self, x: int) -> int:
            return self._finalize(self._fused_experts(self._prepare(x)))

    return FusedMoEKernelModularImpl


def test_a_modular_kernel_shows_all_its_phases_and_what_is_missing_is_named(install: Install) -> None:
    class FusedMoERouter:
        def select_experts(self, x: int) -> int:
            return x

    class BaseRouter(FusedMoERouter):
        pass

    kernel = modular_kernel()
    before = dict(vars(kernel)), dict(vars(FusedMoERouter)), dict(vars(BaseRouter))
    install(f"{MOE}.router.base_router", BaseRouter=BaseRouter)
    install(f"{MOE}.modular_kernel", FusedMoEKernelModularImpl=kernel)
    with Recorded() as recorded:
        assert kernel().apply(BaseRouter().select_experts(3)) == 7
    assert recorded.frames == {"moe.route": 1, "moe.dispatch": 1, "moe.experts": 1, "moe.combine": 1}
    assert recorded.targets.found == ["moe.route", "moe.dispatch", "moe.experts", "moe.combine"]
    needed = {target.name for target in MOE_PHASES if not target.optional}
    assert set(recorded.targets.missing) == needed - set(recorded.targets.found)
    assert (dict(vars(kernel)), dict(vars(FusedMoERouter)), dict(vars(BaseRouter))) == before
    kernel().apply(3)
    assert sum(recorded.frames.values()) == 4, "nothing is recorded once the hooks are gone"


def test_hooks_that_go_on_again_record_each_call_once(install: Install) -> None:
    kernel = modular_kernel()
    install(f"{MOE}.modular_kernel", FusedMoEKernelModularImpl=kernel)
    recorded = Recorded()
    for _ in range(3):
        with recorded:
            kernel().apply(1)
    assert recorded.frames == {"moe.dispatch": 3, "moe.experts": 3, "moe.combine": 3}


def test_a_class_that_overrides_a_hooked_method_and_calls_it_makes_one_frame(install: Install) -> None:
    class BaseRouter:
        def select_experts(self) -> str:
            return "base"

    class Grouped(BaseRouter):
        def select_experts(self) -> str:
            return "grouped on " + super().select_experts()

    class Biased(Grouped):
        def select_experts(self) -> str:
            raise ValueError("no such expert")

    install(f"{MOE}.router.base_router", BaseRouter=BaseRouter)
    with Recorded() as recorded:
        assert Grouped().select_experts() == "grouped on base"
        assert recorded.frames == {"moe.route": 1}
        assert BaseRouter().select_experts() == "base"
        with pytest.raises(ValueError, match="no such expert"):
            Biased().select_experts()
        assert Grouped().select_experts() == "grouped on base"
    assert recorded.frames == {"moe.route": 4}


def test_a_monolithic_kernel_shows_its_phases_and_the_routing_inside(install: Install) -> None:
    cpu_moe = f"{MOE}.experts.cpu_moe"

    def select_experts() -> int:
        return 5

    install(cpu_moe, select_experts=select_experts)

    class FusedMoEExpertsMonolithic(ABC):
        @abstractmethod
        def apply(self) -> int: ...

    class CPUExperts(FusedMoEExpertsMonolithic):
        def apply(self) -> int:
            return int(sys.modules[cpu_moe].select_experts())

    class FusedMoEPrepareAndFinalizeMonolithic(ABC):
        @abstractmethod
        def prepare(self) -> int: ...

        @abstractmethod
        def finalize(self) -> int: ...

    class NoParallel(FusedMoEPrepareAndFinalizeMonolithic):
        def prepare(self) -> int:
            return 1

        def finalize(self) -> int:
            return 2

    install(
        f"{MOE}.modular_kernel",
        FusedMoEExpertsMonolithic=FusedMoEExpertsMonolithic,
        FusedMoEPrepareAndFinalizeMonolithic=FusedMoEPrepareAndFinalizeMonolithic,
    )
    with Recorded() as recorded:
        assert (NoParallel().prepare(), CPUExperts().apply(), NoParallel().finalize()) == (1, 5, 2)
    assert recorded.frames == {"moe.dispatch": 1, "moe.experts": 1, "moe.combine": 1, "moe.route": 1}
    assert sys.modules[cpu_moe].select_experts is select_experts


def test_a_quantisation_method_counts_as_experts_only_with_a_kernel_of_its_own(install: Install) -> None:
    class FusedMoEMethodBase(ABC):
        moe_kernel: Any = None

        @abstractmethod
        def apply(self) -> int: ...

    class Marlin(FusedMoEMethodBase):
        def apply(self) -> int:
            return 9

    install(f"{MOE}.fused_moe_method_base", FusedMoEMethodBase=FusedMoEMethodBase)
    method = Marlin()
    with Recorded() as recorded:
        assert method.apply() == 9
        assert recorded.frames == {"moe.experts": 1}
        method.moe_kernel = types.SimpleNamespace(impl="modular")
        assert method.apply() == 9
    assert recorded.frames == {"moe.experts": 1}


def test_gathering_and_scattering_are_shown_where_tokens_move(install: Install) -> None:
    class MoERunner:
        do_naive_dispatch_combine = False
        moe_config = types.SimpleNamespace(pcp_size=1)

        def _maybe_dispatch(self, x: int) -> int:
            return x

        def _maybe_combine(self, x: int) -> int:
            return x

    module = f"{MOE}.runner.moe_runner"
    install(module, MoERunner=MoERunner, tensor_model_parallel_all_reduce=abs)
    runner = MoERunner()
    with Recorded() as recorded:
        runner._maybe_combine(runner._maybe_dispatch(1))
        assert recorded.frames == {}
        runner.do_naive_dispatch_combine = True
        runner._maybe_combine(runner._maybe_dispatch(1))
        assert recorded.frames == {"moe.dispatch": 1, "moe.combine": 1}
        assert sys.modules[module].tensor_model_parallel_all_reduce(-4) == 4
        assert recorded.frames == {"moe.dispatch": 1, "moe.combine": 1, "moe.reduce": 1}
        del MoERunner.moe_config, MoERunner.do_naive_dispatch_combine, runner.do_naive_dispatch_combine
        assert runner._maybe_dispatch(6) == 6, "a condition that fails is no reason to fail a call"


def test_shared_experts_as_a_module_are_shown_when_they_run(install: Install) -> None:
    """They are asked twice a layer and run once; while a window is open their `forward` is shadowed."""

    class Module:
        def __call__(self, *args: Any) -> Any:
            return self.forward(*args)  # type: ignore[attr-defined]

    class SharedExperts(Module):
        def _determine_shared_experts_order(self, x: int) -> Order:
            return AHEAD if x > 100 else NOW

        def forward(self, x: int, order: Order) -> int | None:
            return x if order is self._determine_shared_experts_order(x) else None

        def maybe_forward_async(self, x: int) -> bool:
            return self._determine_shared_experts_order(x) is AHEAD

    install(f"{MOE}.runner.shared_experts", SharedExperts=SharedExperts)
    shared = SharedExperts()
    shared.forward = shared.forward  # type: ignore[method-assign]
    with Recorded() as recorded:
        assert [shared(7, LATER), shared(7, NOW)] == [None, 7]
        assert not shared.maybe_forward_async(7)
        assert recorded.frames == {"moe.shared_experts": 1}
        assert shared.maybe_forward_async(101)
    assert recorded.frames == {"moe.shared_experts": 2}
    assert "__call__" not in vars(SharedExperts)


def test_shared_experts_that_are_no_module_are_shown_too(install: Install) -> None:
    class SharedExperts:
        def _determine_shared_experts_order(self, x: int) -> Order:
            return AHEAD

        def apply(self, shared_experts_input: int, order: Order) -> int:
            return shared_experts_input

    install(f"{MOE}.runner.shared_experts", SharedExperts=SharedExperts)
    with Recorded() as recorded:
        assert SharedExperts().apply(shared_experts_input=1, order=NOW) == 1
        assert recorded.frames == {}
        assert SharedExperts().apply(2, AHEAD) == 2
    assert recorded.frames == {"moe.shared_experts": 1}


def test_the_parts_of_the_v2_runner_are_shown_beside_vllms_scopes(install: Install) -> None:
    class GPUModelRunner:
        def prepare_inputs(self) -> int:
            return 1

        def sample(self) -> int:
            return 2

    install(GPU_V2, GPUModelRunner=GPUModelRunner)
    install("vllm.v1.utils")
    log, patches, targets = EventLog(pytest.fail), Patches(), HookTargets()
    hook_scopes(log, patches, targets)
    assert GPUModelRunner().prepare_inputs() + GPUModelRunner().sample() == 3
    patches.restore()
    assert [log.frames[number].name for number in log.entries[::3]] == ["prepare_inputs", "sample"]
    assert targets.found == ["runner.prepare_inputs", "runner.sample"]
    assert targets.missing == ["runner.update_states", "runner.prepare_attn", "runner.postprocess", "scopes"]


def test_entering_and_leaving_the_forward_context_are_spans_and_its_body_is_not(install: Install) -> None:
    class Context:
        def __enter__(self) -> str:
            return "entered"

        def __exit__(self, *exc: Any) -> bool:
            return exc[0] is KeyError

    module = "vllm.v1.worker.gpu_model_runner"
    install(module, set_forward_context=lambda metadata: Context())
    install("vllm.v1.utils")
    log, patches, targets = EventLog(pytest.fail, clock=iter(range(9)).__next__), Patches(), HookTargets()
    hook_scopes(log, patches, targets)
    with sys.modules[module].set_forward_context("metadata") as entered:
        log.clock()
        raise KeyError("the context takes it")
    patches.restore()
    assert entered == "entered"
    frame = log.frame_number("forward_context")
    assert log.entries == [frame, 0, 1, frame, 3, 4]
    assert "runner.forward_context" in targets.found


def test_the_order_of_shared_experts_without_a_stream_is_asked_for_once(install: Install) -> None:
    asked = []

    class SharedExperts:
        _stream = None

        def _determine_shared_experts_order(self, x: int) -> Order:
            asked.append(x)
            return NOW

        def apply(self, shared_experts_input: int, order: Order) -> None:
            pass

        def maybe_forward_async(self, shared_experts_input: int) -> bool:
            return False

    install(f"{MOE}.runner.shared_experts", SharedExperts=SharedExperts)
    shared = SharedExperts()
    with Recorded() as recorded:
        for batch in range(3):
            shared.maybe_forward_async(batch)
            shared.apply(batch, LATER)
            shared.apply(batch, NOW)
    assert asked == [0]
    assert recorded.frames == {"moe.shared_experts": 3}
