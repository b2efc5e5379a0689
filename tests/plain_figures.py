"""The figures of a torch trace counted anew, by other means: plain json, exact decimals, a sweep."""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any

DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
RUNTIME = ("cuda_runtime", "cuda_driver", "hip_runtime")
NOT_HOST = (*DEVICE, "Trace", "gpu_user_annotation", "cuda_sync", "overhead")
VLLM_STEP = re.compile(r"execute_context_(\d+)\((\d+)\)_generation_(\d+)\((\d+)\)$")


class PlainFigures:
    """One trace. Times in nanoseconds."""

    def __init__(self, path: Path) -> None:
        packed = path.read_bytes()
        text = gzip.decompress(packed) if path.suffix == ".gz" else packed
        content = json.loads(text, parse_float=Decimal)
        events = content["traceEvents"] if isinstance(content, dict) else content
        self.count = len(events)
        self.events = [event for event in events if event.get("ph") == "X" and "dur" in event]
        self.device = [event for event in self.events if event.get("cat") in DEVICE]
        self.host = [event for event in self.events if event.get("cat", "") not in NOT_HOST]

    def named(self, wanted: Callable[[str], bool]) -> list[dict[str, Any]]:
        """The device's events whose name fits."""
        return [event for event in self.device if wanted(event["name"])]

    def sums(self) -> dict[str, tuple[int, int]]:
        """Kernel or copy → (count, time)."""
        counts: Counter[str] = Counter()
        times: Counter[str] = Counter()
        for event in self.device:
            counts[event["name"]] += 1
            times[event["name"]] += ns(event["dur"])
        return {name: (counts[name], times[name]) for name in counts}

    def own_times(self) -> dict[str, tuple[int, int]]:
        """Host event → (count, time in which none inside of it ran), thread by thread."""
        counts: Counter[str] = Counter()
        own: Counter[str] = Counter()
        for thread in self.threads().values():
            for name, count, time in _own(thread):
                counts[name] += count
                own[name] += time
        return {name: (counts[name], own[name]) for name in counts}

    def threads(self) -> dict[tuple[Any, Any], list[dict[str, Any]]]:
        """The host's events by (process, thread)."""
        threads = defaultdict(list)
        for event in self.host:
            threads[event["pid"], event["tid"]].append(event)
        return threads

    def steps(self) -> list[tuple[int, int, tuple[int, ...]]]:
        """(begin, length, what vLLM's annotation says) in order; only those with tokens."""
        found = []
        for event in self.events:
            told = VLLM_STEP.match(event["name"])
            if told and event["cat"] == "user_annotation":
                numbers = tuple(map(int, told.groups()))
                if numbers[1] + numbers[3]:
                    found.append((ns(event["ts"]), ns(event["dur"]), numbers))
        return sorted(found)


def ns(microseconds: Decimal | int) -> int:
    """Whole nanoseconds."""
    return round(Decimal(microseconds) * 1000)


def covered(events: Iterable[dict[str, Any]]) -> int:
    """The time in which at least one of the events runs."""
    edges: list[tuple[int, int]] = []
    for event in events:
        begin, end = ns(event["ts"]), ns(event["ts"]) + ns(event["dur"])
        if end > begin:
            edges += [(begin, 1), (end, -1)]
    running, total, since = 0, 0, 0
    for time, change in sorted(edges):
        if running:
            total += time - since
        running += change
        since = time
    return total


def span(events: Iterable[dict[str, Any]]) -> int:
    """From the first begin to the last end."""
    events = list(events)
    return max(ns(e["ts"]) + ns(e["dur"]) for e in events) - min(ns(e["ts"]) for e in events) if events else 0


def _own(events: list[dict[str, Any]]) -> list[tuple[str, int, int]]:
    """(name, 1, own time): each event's length less that of those whose smallest container it is."""
    ordered = sorted(events, key=lambda e: (ns(e["ts"]), -ns(e["dur"])))
    open_now: list[list[Any]] = []
    found: list[list[Any]] = []
    for event in ordered:
        begin, length = ns(event["ts"]), ns(event["dur"])
        open_now = [each for each in open_now if each[0] > begin]
        entry = [begin + length, event["name"], length]
        if open_now:
            open_now[-1][2] -= length
        open_now.append(entry)
        found.append(entry)
    return [(name, 1, own) for _, name, own in found]
