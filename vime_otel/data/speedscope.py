"""speedscope's JSON: written as a sampled profile, read as sampled and evented ones.

The format: https://www.speedscope.app/file-format-schema.json. Files, lines and columns of frames are not kept.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from .errors import VimeOtelError
from .folded import escape_frame, unescape_frame
from .profile import MICROSECONDS, Profile

SCHEMA = "https://www.speedscope.app/file-format-schema.json"
_US = {"nanoseconds": 1e-3, "microseconds": 1.0, "milliseconds": 1e3, "seconds": 1e6}
_NAMES = {MICROSECONDS: "microseconds", "samples": "none", "bytes": "bytes"}


def dump(self_values: Mapping[str, int], title: str, unit: str = MICROSECONDS) -> dict[str, Any]:
    """The stacks as a sampled profile, a sample each; calls can't be told there."""
    frames: dict[str, int] = {}
    samples, weights = [], []
    for stack, value in sorted(self_values.items()):
        if value:
            samples.append([frames.setdefault(frame, len(frames)) for frame in stack.split(";")])
            weights.append(value)
    return {
        "$schema": SCHEMA,
        "shared": {"frames": [{"name": unescape_frame(frame)} for frame in frames]},
        "profiles": [
            {
                "type": "sampled",
                "name": title,
                "unit": _NAMES[unit],
                "startValue": 0,
                "endValue": sum(weights),
                "samples": samples,
                "weights": weights,
            }
        ],
        "name": title,
        "exporter": "vime-otel",
    }


def load(document: Mapping[str, Any]) -> Profile:
    """All profiles of a file (threads, say) as one; raises VimeOtelError for what is none."""
    try:
        names = [escape_frame(str(frame["name"])) for frame in document["shared"]["frames"]]
        profiles = document["profiles"]
        units = {str(profile["unit"]) for profile in profiles}
        counted = {_counted(unit) for unit in units}
        if len(counted) > 1:
            raise VimeOtelError(f"the file's profiles count different things: {', '.join(sorted(units))}")
        unit = next(iter(counted), "samples")
        sums: defaultdict[str, float] = defaultdict(float)
        for profile in profiles:
            factor = _US.get(profile["unit"], 1.0)
            read = _evented if profile["type"] == "evented" else _sampled
            for stack, value in read(profile, names):
                sums[stack] += value * factor
        values = {stack: round(value) for stack, value in sums.items()}
    except _Unbalanced as error:
        raise VimeOtelError(f"the file is no speedscope profile: {error}") from error
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise VimeOtelError(f"the file is not as speedscope's schema has it ({SCHEMA})") from error
    if any(value < 0 for value in values.values()):
        raise VimeOtelError("the file has a profile whose time runs backwards")
    if any(value >= 2**63 for value in values.values()):
        raise VimeOtelError("the file has a value that is too large")
    return Profile(values, unit=unit)


class _Unbalanced(ValueError):
    """Events that close what is not open."""


def _counted(unit: str) -> str:
    """Which of our UNITS a profile's unit becomes."""
    return MICROSECONDS if unit in _US else "bytes" if unit == "bytes" else "samples"


def _sampled(profile: Mapping[str, Any], names: Sequence[str]) -> list[tuple[str, float]]:
    pairs = zip(profile["samples"], profile["weights"], strict=True)
    return [(_stack(frames, names), weight) for frames, weight in pairs if frames]


def _evented(profile: Mapping[str, Any], names: Sequence[str]) -> list[tuple[str, float]]:
    """Open and close events: what passes between two of them is self time of the innermost open frame."""
    found = []
    frames: list[int] = []
    before = profile["startValue"]
    for event in profile["events"]:
        if frames and event["at"] != before:
            found.append((_stack(frames, names), event["at"] - before))
        before = event["at"]
        if event["type"] == "O":
            frames.append(event["frame"])
        elif not frames or frames.pop() != event["frame"]:
            raise _Unbalanced(f"frame {event['frame']!r:.60} is closed but is not the innermost open one")
    return found


def _stack(frames: Sequence[int], names: Sequence[str]) -> str:
    if min(frames) < 0:
        raise IndexError("a frame's number is negative")
    return ";".join(names[frame] for frame in frames)
