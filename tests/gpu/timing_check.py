"""Checks the timings `sync` and `events` on a GPU with plain torch modules and a CUDA graph.

Usage, from a clone, with nothing but torch installed: python tests/gpu/timing_check.py

It prints what it measured, takes well under a minute of GPU time, and exits 0 when every check held,
1 when one did not. Without a GPU it says so and exits 0.
"""

from __future__ import annotations

import array
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from vime_otel.data.spans import Node, rebuild
from vime_otel.recorder.device_clock import DeviceClock, torch_device_clock
from vime_otel.recorder.eventlog import EventLog
from vime_otel.recorder.patches import Patches

STEPS = 20
WIDTH = 4096
LAYERS = 4
MATMULS = 4


def unavailable() -> str | None:
    """Why nothing can be checked here; None where it can."""
    try:
        import torch
    except ImportError:
        return "torch is not installed"
    if not torch.cuda.is_available():
        return "torch sees no CUDA device"
    return None


def make_model() -> Any:
    """Layers of some matrix products each: long on the device, short to launch."""
    import torch

    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(WIDTH, WIDTH, device="cuda") / WIDTH**0.5)

        def forward(self, x: Any) -> Any:
            for _ in range(MATMULS):
                x = x @ self.weight
            return x

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList(Block() for _ in range(LAYERS))

        def forward(self, x: Any) -> Any:
            for layer in self.layers:
                x = layer(x)
            return x

    return Model()


class Recording:
    """`function`, run STEPS times with the modules recorded: the trees of the steps, and how long it all took."""

    def __init__(self, model: Any, timing: str, function: Callable[[], Any]) -> None:
        import torch

        clock: DeviceClock | None = torch_device_clock() if timing == "events" else None
        log = EventLog(_fail, torch.cuda.synchronize if timing == "sync" else None, mark=clock and clock.mark)
        patches = Patches()
        for path, module in model.named_modules():
            patches.set(module, "forward", log.timed(module.forward, type(module).__name__, path))
        step = log.timed(function, "step")
        torch.cuda.synchronize()
        start = time.perf_counter_ns()
        try:
            for _ in range(STEPS):
                step()
            self.launched_ns = time.perf_counter_ns() - start
            torch.cuda.synchronize()
            self.wall_ns = time.perf_counter_ns() - start
        finally:
            patches.restore()
        device = clock.ticks(log.marks) if clock is not None else array.array("q")
        self.frames = [frame.name for frame in log.frames]
        self.steps = rebuild(log.entries, device)

    def total_ns(self, name: str) -> int:
        """Time of all spans of that name."""
        return sum(node.end - node.start for node in self.all_nodes() if self.frames[node.frame] == name)

    def count(self, name: str) -> int:
        """How many spans have that name."""
        return sum(self.frames[node.frame] == name for node in self.all_nodes())

    def all_nodes(self) -> list[Node]:
        """Every span."""
        nodes, todo = [], list(self.steps)
        while todo:
            nodes.append(todo.pop())
            todo.extend(nodes[-1].children)
        return nodes


def _fail(error: BaseException) -> None:
    raise error


def device_ns(function: Callable[[], Any]) -> int:
    """Device time of STEPS calls, by a pair of events of torch's own."""
    import torch

    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(STEPS):
        function()
    end.record()
    torch.cuda.synchronize()
    return int(begin.elapsed_time(end) * 1e6)


def check_all() -> list[tuple[str, bool]]:
    """(what was measured, whether it is as it must be) of every check."""
    import torch

    torch.manual_seed(0)
    model, x = make_model(), torch.randn(WIDTH, WIDTH, device="cuda")
    results: list[tuple[str, bool]] = []

    def check(text: str, held: bool) -> None:
        results.append((text, held))

    with torch.inference_mode():
        for _ in range(3):
            model(x)
        torch.cuda.synchronize()
        reference = device_ns(lambda: model(x))
        check(f"reference: {STEPS} steps take the device {reference / 1e6:.2f} ms", reference > 0)

        sync = Recording(model, "sync", lambda: model(x))
        ratio = sync.total_ns("Model") / reference
        check(f"sync: spans of the model ÷ reference {ratio:.3f} (0.95 to 1.25)", 0.95 < ratio < 1.25)
        share = sync.total_ns("Block") / sync.total_ns("Model")
        check(f"sync: blocks are {share:.1%} of the model (over 85 %)", share > 0.85)

        events = Recording(model, "events", lambda: model(x))
        ratio = events.total_ns("Model") / reference
        check(f"events: spans of the model ÷ reference {ratio:.3f} (0.95 to 1.05)", 0.95 < ratio < 1.05)
        share = events.total_ns("Block") / events.total_ns("Model")
        check(f"events: blocks are {share:.1%} of the model (over 95 %)", share > 0.95)
        check(
            f"events: {STEPS} steps were launched in {events.launched_ns / 1e6:.2f} ms of {events.wall_ns / 1e6:.2f}"
            " (under half: nothing waits for the device)",
            events.launched_ns < events.wall_ns / 2,
        )
        outside = sum(
            child.start < node.start or child.end > node.end for node in events.all_nodes() for child in node.children
        )
        check(f"events: {outside} children reach out of their parents on the device (none)", outside == 0)
        host = sum(node.host[1] - node.host[0] for node in events.steps if node.host)
        check(f"events: both times are kept, host {host / 1e6:.2f} ms", 0 < host < events.total_ns("step"))
        late = events.steps[-1].end - events.steps[0].start
        check(
            f"events: the last step ends {late / 1e6:.2f} ms after the first began, wall {events.wall_ns / 1e6:.2f} ms",
            abs(late - events.wall_ns) < 0.1 * events.wall_ns,
        )

        graph, output = torch.cuda.CUDAGraph(), None
        with torch.cuda.graph(graph):
            output = model(x)
        graph.replay()
        torch.cuda.synchronize()
        replayed = device_ns(graph.replay)
        for timing in ("sync", "events"):
            recording = Recording(model, timing, graph.replay)
            check(
                f"graph, {timing}: {recording.count('Block')} blocks are seen inside (none)",
                not recording.count("Block"),
            )
            ratio = recording.total_ns("step") / replayed
            check(f"graph, {timing}: steps ÷ the replays' device time {ratio:.3f} (0.95 to 1.25)", 0.95 < ratio < 1.25)
        check("graph: the output is there", output is not None and bool(torch.isfinite(output).all()))
    return results


def main() -> int:
    """Run it as a script."""
    reason = unavailable()
    if reason is not None:
        print(f"skipped: {reason}")
        return 0
    import torch

    print(f"on {torch.cuda.get_device_name()}, torch {torch.__version__}")
    results = check_all()
    for text, held in results:
        print(f"{'ok  ' if held else 'FAIL'} {text}")
    return 0 if all(held for _, held in results) else 1


if __name__ == "__main__":
    sys.exit(main())
