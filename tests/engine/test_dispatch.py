"""How a step's execution is read from what is dispatched, and forced eager there.

Neither CUDA graphs nor the V2 runner run on a CPU: runners that stand for them are driven through vLLM's real
forward context, and the real runners' signatures are looked at.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from vime_otel.recorder.eventlog import EventLog
from vime_otel.recorder.patches import Patches
from vime_otel.recorder.vllm_worker import WorkerHooks
from vime_otel.recorder.window import WorkerOrder

pytestmark = pytest.mark.engine

V2_MODULE = "a_module_that_stands_for_the_v2_runners"


class FakeV1Runner:
    """Chooses a CUDA graph as the V1 runner does, and enters vLLM's real forward context with it."""

    def __init__(self, mode: str) -> None:
        from vllm.config import CUDAGraphMode

        self.mode = CUDAGraphMode[mode]
        self.none = CUDAGraphMode.NONE
        self.seen: list[tuple[str, bool]] = []
        self.modules: list[Any] = []

    def get_model(self) -> Any:
        return SimpleNamespace(named_modules=lambda: iter(self.modules))

    def _determine_batch_execution_and_padding(self, num_tokens: int, force_eager: bool = False) -> tuple[Any, int]:
        return (self.none if force_eager else self.mode), num_tokens

    def execute_model(self, scheduler_output: Any) -> None:
        from vllm.config import VllmConfig
        from vllm.forward_context import get_forward_context, set_forward_context

        mode, _ = self._determine_batch_execution_and_padding(8)
        with set_forward_context(None, VllmConfig(), cudagraph_runtime_mode=mode):
            context = get_forward_context()
            self.seen.append((context.cudagraph_runtime_mode.name, context.skip_compiled))

    def sample_tokens(self, grammar_output: Any) -> None:
        """Nothing to sample."""


class FakeV2Runner(FakeV1Runner):
    """Chooses a CUDA graph by a function of its module; a full graph is replayed without a forward context."""

    _determine_batch_execution_and_padding = None  # type: ignore[assignment]

    def execute_model(self, scheduler_output: Any) -> None:
        from vllm.config import VllmConfig
        from vllm.forward_context import get_forward_context, set_forward_context

        description, _ = sys.modules[V2_MODULE].dispatch_cg_and_sync_dp(self, 1, 8)
        if description.cg_mode.name == "FULL":
            self.seen.append(("FULL", False))
            return
        with set_forward_context(None, VllmConfig(), cudagraph_runtime_mode=description.cg_mode):
            context = get_forward_context()
            self.seen.append((context.cudagraph_runtime_mode.name, context.skip_compiled))


@pytest.fixture
def v2_module(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    module = ModuleType(V2_MODULE)

    def dispatch_cg_and_sync_dp(manager: Any, num_reqs: int, num_tokens: int, need_eager: bool = False) -> Any:
        return SimpleNamespace(cg_mode=manager.none if need_eager else manager.mode), None

    module.dispatch_cg_and_sync_dp = dispatch_cg_and_sync_dp  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, V2_MODULE, module)
    monkeypatch.setattr(FakeV2Runner, "__module__", V2_MODULE)
    yield module
    assert module.dispatch_cg_and_sync_dp is dispatch_cg_and_sync_dp, "put back"


class Told:
    """Stands for the rank's recorder: what it is told of how steps are run."""

    def __init__(self) -> None:
        self.executions: list[str] = []

    def executed(self, execution: str) -> None:
        self.executions.append(execution)


def run(runner: FakeV1Runner, compiled: bool, force_eager: bool) -> str:
    """One step under the hooks, one without; the answer is how the first was run, by its own account."""
    worker = SimpleNamespace(
        model_runner=runner, vllm_config=SimpleNamespace(compilation_config=SimpleNamespace(mode=3 if compiled else 0))
    )
    told, patches = Told(), Patches()
    log = EventLog(lambda error: None)
    hooks = WorkerHooks(worker)
    hooks.install_in_step(log, patches, told, WorkerOrder(1, force_eager=force_eager))  # type: ignore[arg-type]
    try:
        runner.execute_model(None)
    finally:
        patches.restore()
    runner.execute_model(None)
    assert runner.seen[1] == (runner.mode.name, False), "afterwards it runs as before"
    return told.executions[0]


CASES = [
    ("NONE", False, False, "eager", ("NONE", False)),
    ("NONE", True, False, "compiled", ("NONE", False)),
    ("PIECEWISE", True, False, "piecewise", ("PIECEWISE", False)),
    ("FULL", True, False, "full_graph", ("FULL", False)),
    ("NONE", True, True, "forced_eager", ("NONE", True)),
    ("PIECEWISE", True, True, "forced_eager", ("NONE", True)),
    ("FULL", True, True, "forced_eager", ("NONE", True)),
]


@pytest.mark.parametrize(("mode", "compiled", "force_eager", "execution", "seen"), CASES)
def test_a_fake_v1_runner(mode: str, compiled: bool, force_eager: bool, execution: str, seen: tuple[str, bool]) -> None:
    runner = FakeV1Runner(mode)
    assert run(runner, compiled, force_eager) == execution
    assert runner.seen[0] == seen


@pytest.mark.parametrize(("mode", "compiled", "force_eager", "execution", "seen"), CASES)
def test_a_fake_v2_runner(
    v2_module: ModuleType, mode: str, compiled: bool, force_eager: bool, execution: str, seen: tuple[str, bool]
) -> None:
    runner = FakeV2Runner(mode)
    assert run(runner, compiled, force_eager) == execution
    assert runner.seen[0] == seen


def test_a_runner_that_can_not_be_told_to_run_eagerly_is_not_armed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeV1Runner, "_determine_batch_execution_and_padding", lambda self, num_tokens: None)
    with pytest.raises(TypeError, match="has no parameter force_eager"):
        run(FakeV1Runner("FULL"), True, True)


def test_the_real_runners_have_the_parameters_that_force_eager() -> None:
    from vllm.v1.worker.gpu.dp_utils import dispatch_cg_and_sync_dp
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    chooses = inspect.signature(GPUModelRunner._determine_batch_execution_and_padding)
    assert "force_eager" in chooses.parameters
    assert "need_eager" in inspect.signature(dispatch_cg_and_sync_dp).parameters
