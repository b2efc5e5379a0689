"""What the name of a trace file tells: vLLM's names of all its versions, and those of torch's own handler."""

from __future__ import annotations

import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from ..data.errors import VimeOtelError
from ..data.folders import files_below

TRACE_SUFFIXES = (".json", ".json.gz")
_TRACE_SUFFIX = re.compile(r"(?:\.pt)?(?:\.trace)?\.json(?:\.gz)?\Z")
_TIMESTAMP = re.compile(r"\.(\d{10,20})\Z")
_PARALLEL = re.compile(r"(?:\A|[_.-])((?:(?:dp|pp|tp|dcp|pcp|ep|rank)\d{1,9}_?)+)\Z")
_PART = re.compile(r"(dp|pp|tp|dcp|pcp|ep|rank)(\d{1,9})")
_OLD_RANK = re.compile(r"(?:\A|[_.-])rank[_-]?(\d{1,9})(?=[._-]|\Z)")
_FRONTEND = re.compile(r"async_llm")
# Files of ours and of others that lie beside traces and end in .json.
_NO_TRACES = frozenset({"recording.json", "steps.json", "manifest.json", "config.json", "package.json"})


@dataclass(frozen=True)
class TraceName:
    """What a file's name tells. `ranks` maps `dp`, `pp`, `tp`, `dcp`, `ep` and `rank` to numbers."""

    prefix: str = ""
    ranks: dict[str, int] = field(default_factory=dict)
    timestamp_ns: int | None = None
    frontend: bool = False


def parse_name(file_name: str) -> TraceName:
    """Read a file name; what it doesn't tell is left out."""
    stem = _TRACE_SUFFIX.sub("", file_name)
    timestamp = _TIMESTAMP.search(stem)
    stem = stem[: timestamp.start()] if timestamp else stem
    time_ns = int(timestamp.group(1)) if timestamp else None
    if _FRONTEND.search(stem):
        return TraceName(stem, timestamp_ns=time_ns, frontend=True)
    parallel = _PARALLEL.search(stem)
    if parallel:
        ranks = {name: int(number) for name, number in _PART.findall(parallel.group(1))}
        return TraceName(stem[: parallel.start()].strip("_.-"), ranks, time_ns)
    old = _OLD_RANK.search(stem)
    if old:
        return TraceName(stem[: old.start()].strip("_.-"), {"rank": int(old.group(1))}, time_ns)
    return TraceName(stem, timestamp_ns=time_ns)


def _once(paths: Iterable[Path]) -> Iterator[Path]:
    """Those that are files, each once: runs hold links to the traces that were taken with them."""
    seen: set[tuple[int, int]] = set()
    for path in paths:
        with suppress(OSError):
            status = path.stat()
            identity = status.st_dev, status.st_ino
            if stat.S_ISREG(status.st_mode) and identity not in seen:
                seen.add(identity)
                yield path


def find_traces(directory: Path) -> list[Path]:
    """The trace files at or below a path, each once. Raises VimeOtelError where there is none."""
    if directory.is_file():
        return [directory]
    if not directory.is_dir():
        raise VimeOtelError(f"{directory} is no folder and no file; name the folder that torch_profiler_dir was set to")
    named = sorted(
        path
        for path in files_below(directory)
        if path.name.endswith(TRACE_SUFFIXES) and path.name not in _NO_TRACES and path.name[0] != "."
    )
    found = list(_once(named))
    if not found:
        raise VimeOtelError(
            f"no traces (*.json, *.json.gz) in {directory} or below; vLLM writes them when one more step comes"
            " after max_iterations, or at `vime-otel profile stop`"
        )
    return found
