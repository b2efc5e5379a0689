"""`make bench`: what a recorded span and an idle recorder cost, against peers in the same run.

Each contender wraps the same empty function. Rounds are interleaved and the medians compared, so
that a busy machine hurts all alike. A calling loop's own time is taken off every figure.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from opentelemetry.sdk.trace import TracerProvider

from vime_otel.recorder.engine import EngineRecorder
from vime_otel.recorder.eventlog import EventLog

CALLS = 20_000
OTEL_CALLS = 2_000
ROUNDS = 41


def nothing(value: object) -> object:
    """The function under measurement: the cheapest there is."""
    return value


def floor() -> Callable[..., Any]:
    """A pass-through wrapper with two clock reads and two appends: the least a recorder can do."""
    clock = time.perf_counter_ns
    log: list[int] = []
    append = log.append

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        append(clock())
        result = nothing(*args, **kwargs)
        append(clock())
        return result

    return wrapper


def ours() -> Callable[..., Any]:
    """A recorded call, as every module forward is."""
    return EventLog(on_fault=_raise).timed(nothing, "mlp:Qwen3MoeSparseMoeBlock", "model.layers.3.mlp")


def tree_on_the_fly() -> Callable[..., Any]:
    """Enter and exit as a single-file profiler does: a live stack, sums by stack of names."""
    clock = time.perf_counter
    open_spans: list[list[Any]] = []
    seconds: dict[tuple[str, ...], float] = {}
    calls: dict[tuple[str, ...], int] = {}

    def enter(frame: str) -> None:
        open_spans.append([frame, clock(), 0.0])

    def leave() -> None:
        frame, start, inside = open_spans.pop()
        took = clock() - start
        stack = (*(entry[0] for entry in open_spans), frame)
        seconds[stack] = seconds.get(stack, 0.0) + took - inside
        calls[stack] = calls.get(stack, 0) + 1
        if open_spans:
            open_spans[-1][2] += took

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        enter("mlp:Qwen3MoeSparseMoeBlock")
        try:
            return nothing(*args, **kwargs)
        finally:
            leave()

    return wrapper


def otel_sdk() -> Callable[..., Any]:
    """The OpenTelemetry SDK's own way, with no processor to hand the span to."""
    tracer = TracerProvider().get_tracer("bench")

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with tracer.start_as_current_span("mlp:Qwen3MoeSparseMoeBlock"):
            return nothing(*args, **kwargs)

    return wrapper


def _raise(error: BaseException) -> None:
    raise error


def _ns_per_call(function: Callable[..., Any], calls: int) -> float:
    rounds = range(calls)
    start = time.perf_counter_ns()
    for _ in rounds:
        function(None)
    return (time.perf_counter_ns() - start) / calls


def idle_step_costs() -> tuple[Callable[..., Any], Callable[..., Any]]:
    """(a step, the same step with an attached idle recorder)."""
    from vime_otel.recorder.vllm_engine import wrap_step

    class Engine:
        def step(self, _: object = None) -> object:
            return None

    class AttachedEngine(Engine):
        step = wrap_step(Engine.step)  # type: ignore[assignment]

    attached = AttachedEngine()
    attached.__dict__["_vime_otel"] = EngineRecorder.idle()
    return Engine().step, attached.step


def main() -> int:
    """Measure, print, end with the ratios."""
    plain_step, idle_step = idle_step_costs()
    contenders: dict[str, tuple[Callable[[], Callable[..., Any]], int]] = {
        "bare call": (lambda: nothing, CALLS),
        "floor": (floor, CALLS),
        "vime-otel": (ours, CALLS),
        "live stack (seed)": (tree_on_the_fly, CALLS),
        "OpenTelemetry SDK": (otel_sdk, OTEL_CALLS),
        "step": (lambda: plain_step, CALLS),
        "step, recorder idle": (lambda: idle_step, CALLS),
    }
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(ROUNDS):
        for name, (make, calls) in contenders.items():
            samples[name].append(_ns_per_call(make(), calls))
    medians = {name: statistics.median(values) for name, values in samples.items()}
    loop = medians["bare call"]
    print(
        f"Python {sys.version.split()[0]}, {ROUNDS} interleaved rounds of {CALLS} calls"
        f" ({OTEL_CALLS} for the SDK); medians"
    )
    for name, value in medians.items():
        print(f"  {name:22s} {value:8.0f} ns a call, {value - loop:8.0f} ns above a bare call")
    recorded = medians["vime-otel"]
    print(f"RATIO span_vs_floor_time {recorded / medians['floor']:.2f}")
    print(f"RATIO span_vs_seed_time {recorded / medians['live stack (seed)']:.2f}")
    print(f"RATIO span_vs_otel_sdk_time {recorded / medians['OpenTelemetry SDK']:.3f}")
    print(f"idle_added_us_per_step {(medians['step, recorder idle'] - medians['step']) / 1000:.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
