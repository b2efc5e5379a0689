"""Two real vLLM engines on the CPU behind the real vllm-router, shared by all engine tests of a run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from running_stack import PROFILED_STEPS, RunningStack
from scripts import give_weights

from vime_otel.demo.ports import free_port
from vime_otel.demo.stack import EngineStack
from vime_otel.demo.tiny_model import write_tiny_model


@pytest.fixture(scope="session")
def engine_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStack]:
    """Two idle engines; a test that starts something on them ends it, too."""
    directory = tmp_path_factory.mktemp("stack")
    collector_port = free_port()
    torch_dirs = [directory / f"torch-{number}" for number in range(2)]

    def engine_args(number: int) -> list[str]:
        config = {
            "profiler": "torch",
            "torch_profiler_dir": str(torch_dirs[number]),
            "max_iterations": PROFILED_STEPS,
            "ignore_frontend": True,
            # With stacks an idle worker's polling alone makes gigabytes in a minute.
            "torch_profiler_with_stack": False,
        }
        return ["--profiler-config", json.dumps(config)]

    trigger = directory / "trigger"
    env = {"VIME_OTEL_COLLECTOR": f"http://127.0.0.1:{collector_port}", "VIME_OTEL_DIR": str(trigger)}
    with EngineStack(directory, engine_args=engine_args, env=env) as stack:
        yield RunningStack(
            stack.router_url,
            stack.worker_urls,
            collector_port,
            dict(zip(stack.worker_urls, torch_dirs, strict=True)),
            directory,
            trigger,
        )


@pytest.fixture(scope="session")
def model_with_weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model that answers different prompts differently."""
    model = write_tiny_model(tmp_path_factory.mktemp("model"))
    give_weights(model)
    return model
