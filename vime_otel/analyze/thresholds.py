"""From where on something is a finding: one table, each line an option of the command."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..data.errors import UsageError


@dataclass(frozen=True)
class Threshold:
    """A limit and what it limits. Shares are of 1."""

    name: str
    value: float
    meaning: str


TABLE = (
    Threshold("idle", 0.20, "share of the device's span in which nothing ran on it"),
    Threshold("exposed-communication", 0.10, "share of the device's span in which only communication ran"),
    Threshold("straggler", 0.02, "share of the steps in which the other ranks waited for one rank alone"),
    Threshold("wait-skew", 0.10, "share of its communication time in which a rank waited for the last one to come"),
    Threshold("synchronisation", 0.05, "share of the steps that the host spent in calls that wait for the device"),
    Threshold("launch-bound", 0.50, "share of the steps that the host spent in launching kernels"),
    Threshold(
        "tiny-kernels", 0.25, "share of the busy time in kernels shorter than 10 µs on average, run without CUDA graphs"
    ),
    Threshold("one-kernel", 0.30, "share of the busy time in a single kernel"),
    Threshold("copies", 0.05, "share of the busy time in copies between host and device"),
    Threshold("elementwise", 0.20, "share of the busy time in unfused elementwise kernels"),
    Threshold("uneven-steps", 2.0, "how many times the median of its kind the slowest tenth of the steps takes"),
    Threshold(
        "between-operators", 0.30, "share of the steps in which no operator was running on the host, on CPU-only traces"
    ),
    Threshold("step-kinds", 0.10, "share of the time in steps that mix prefill and decode"),
)


def parse(settings: Iterable[str]) -> dict[str, float]:
    """The table with what `NAME=VALUE` texts change. Raises UsageError for an unknown name or a bad value."""
    values = {threshold.name: threshold.value for threshold in TABLE}
    for setting in settings:
        name, _, text = setting.partition("=")
        if name not in values:
            raise UsageError(f"no threshold {name!r}; there are {', '.join(values)}")
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not 0 <= value < float("inf"):
            raise UsageError(f"{setting!r} sets no threshold; write {name}={values[name]}, say")
        values[name] = value
    return values
