"""A vLLM plugin for tests: what the CPU lacks for data parallel MoE models, and a look into the engine process.

A run has it with the folder of this file on its PYTHONPATH.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed


def register() -> None:
    """Called by vLLM in each of its processes, perhaps several times."""
    from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator
    from vllm.v1.engine.core import EngineCore

    CpuCommunicator.all_gatherv = all_gatherv
    CpuCommunicator.reduce_scatterv = reduce_scatterv
    EngineCore.vime_test_look = look


def all_gatherv(communicator: Any, tensors: Any, dim: int = 0, sizes: list[int] | None = None) -> Any:
    """Every rank's rows in the order of the ranks, for one tensor or for each of a list; `sizes` are their numbers."""
    assert dim == 0
    if isinstance(tensors, list):
        return [all_gatherv(communicator, tensor, dim, sizes) for tensor in tensors]
    rows = sizes or [len(tensors)] * communicator.world_size
    # gloo gathers only what is of one size.
    padded = tensors.new_zeros((max(rows), *tensors.shape[1:]))
    padded[: len(tensors)] = tensors
    gathered = [torch.empty_like(padded) for _ in rows]
    torch.distributed.all_gather(gathered, padded, group=communicator.device_group)
    return torch.cat([part[:number] for part, number in zip(gathered, rows, strict=True)])


def reduce_scatterv(communicator: Any, tensor: Any, dim: int = 0, sizes: list[int] | None = None) -> Any:
    """This rank's rows of the sum over all ranks."""
    assert dim == 0
    rows = sizes or [len(tensor) // communicator.world_size] * communicator.world_size
    total = tensor.contiguous()
    torch.distributed.all_reduce(total, group=communicator.device_group)
    own = communicator.rank_in_group
    return total[sum(rows[:own]) : sum(rows[: own + 1])].clone()


def look(engine: Any) -> dict[str, Any]:
    """A utility call of the engine: whether it runs, and how its recorder stands."""
    recorder = engine._vime_otel
    return {
        "running": getattr(engine, "engines_running", None),
        "wave": getattr(engine, "current_wave", None),
        "armed": recorder._window is not None,
        "phase": recorder.status.phase,
        "recording": recorder.status.recording,
        "reason": recorder.status.reason,
    }
