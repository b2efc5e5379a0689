"""Faults planted into a worker's recorder, by collective_rpc; rank 1 alone gets them."""

from __future__ import annotations

from typing import Any


def plant_in_wrapper(worker: Any) -> None:
    """The clock that module wrappers read fails in the middle of a step, on rank 1."""
    if worker.rank != 1:
        return
    import vime_otel.recorder.worker as recorder

    class FailingLog(recorder.EventLog):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            real, calls = self.clock, iter(range(10**9))

            def clock() -> int:
                if next(calls) >= 301:
                    raise RuntimeError("planted in a wrapper")
                return real()

            self.clock = clock

    worker._planted = recorder.EventLog
    recorder.EventLog = FailingLog  # type: ignore[misc]


def plant_in_arm(worker: Any) -> None:
    """Arming raises on rank 1, after some modules were hooked."""
    if worker.rank != 1:
        return
    import vime_otel.recorder.vllm_worker as internals

    def fail(*args: Any) -> None:
        raise RuntimeError("planted in arm")

    worker._planted = internals.WorkerHooks._hook_dispatch
    internals.WorkerHooks._hook_dispatch = fail  # type: ignore[method-assign]


def plant_in_take(worker: Any) -> None:
    """Taking raises on rank 1."""
    if worker.rank != 1:
        return
    import vime_otel.recorder.worker as recorder

    class FailingRankLog:
        def __init__(self, *args: Any) -> None:
            raise RuntimeError("planted in take")

    worker._planted = recorder.RankLog
    recorder.RankLog = FailingRankLog  # type: ignore[misc,assignment]


def pull_out(worker: Any) -> None:
    """Undo what was planted."""
    import vime_otel.recorder.vllm_worker as internals
    import vime_otel.recorder.worker as recorder

    planted = vars(worker).pop("_planted", None)
    if planted is None:
        return
    if getattr(planted, "__name__", "") == "_hook_dispatch":
        internals.WorkerHooks._hook_dispatch = planted  # type: ignore[method-assign]
    else:
        setattr(recorder, planted.__name__, planted)
