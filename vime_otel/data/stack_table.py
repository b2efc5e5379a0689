"""Stacks as a table for other programs: CSV for spreadsheets, JSON for scripts. Both carry self times and calls."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from .errors import VimeOtelError
from .folded import inclusive, unescape_frame
from .profile import MICROSECONDS, Profile, count_of, unit_of

FORMAT = "vime-otel stacks"
VERSION = 1
_CSV_COLUMNS = ("stack", "frame", "self", "total", "calls", "steps", "unit")


def dump_csv(profile: Profile) -> str:
    """A line a stack, sorted: the stack and its last frame, self and total value, calls, and what they are sums of."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
    writer.writerow(_CSV_COLUMNS)
    for stack, total in sorted(inclusive(profile.self_values).items()):
        own, calls = profile.self_values.get(stack, 0), profile.calls.get(stack, 0)
        frame = unescape_frame(stack.rpartition(";")[2])
        writer.writerow((stack, frame, own, total, calls, profile.steps, profile.unit))
    return out.getvalue()


def load_csv(lines: Iterable[str]) -> Profile:
    """Read what `dump_csv` wrote; needs the columns stack and self. Lines that don't fit are skipped and counted."""
    reader = csv.DictReader(lines)
    if not {"stack", "self"} <= set(reader.fieldnames or ()):
        raise VimeOtelError("the table has no columns `stack` and `self`")
    profile = Profile({})
    for row in _rows(reader):
        try:
            stack, own, calls = row["stack"], count_of(row["self"]), count_of(row.get("calls") or 0)
            profile.steps = max(count_of(row.get("steps") or 1), 1)
            profile.unit = unit_of(row.get("unit") or MICROSECONDS)
        except (TypeError, ValueError):
            profile.invalid_lines += 1
            continue
        profile.self_values[stack] = profile.self_values.get(stack, 0) + own
        if calls:
            profile.calls[stack] = profile.calls.get(stack, 0) + calls
    return profile


def _rows(reader: csv.DictReader[str]) -> Iterator[dict[str, str]]:
    try:
        yield from reader
    except csv.Error as error:
        raise VimeOtelError(f"the table can't be read from line {reader.line_num} on ({error})") from error


def dump_json(profile: Profile) -> dict[str, Any]:
    """The stacks in columns that run parallel."""
    stacks = sorted(profile.self_values)
    return {
        "format": FORMAT,
        "version": VERSION,
        "kind": profile.kind,
        "steps": profile.steps,
        "unit": profile.unit,
        "stacks": stacks,
        "self": [profile.self_values[stack] for stack in stacks],
        "calls": [profile.calls.get(stack, 0) for stack in stacks],
    }


def load_json(document: Mapping[str, Any]) -> Profile:
    """Read what `dump_json` wrote; raises VimeOtelError for anything else."""
    if document.get("version") != VERSION:
        raise VimeOtelError(f"the file has version {document.get('version')!r:.60}, this reads {VERSION}")
    try:
        profile = Profile({}, kind=str(document["kind"]), steps=max(count_of(document["steps"]), 1))
        profile.unit = unit_of(document["unit"])
        for stack, own, calls in zip(document["stacks"], document["self"], document["calls"], strict=True):
            if not isinstance(stack, str):
                raise TypeError("a stack is no text")
            profile.self_values[stack] = profile.self_values.get(stack, 0) + count_of(own)
            if calls:
                profile.calls[stack] = profile.calls.get(stack, 0) + count_of(calls)
    except (LookupError, TypeError, ValueError) as error:
        raise VimeOtelError(f"the file is not what `vime-otel export --format json` writes: {error}") from error
    return profile
