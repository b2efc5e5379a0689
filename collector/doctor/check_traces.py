"""Whether a folder has the traces that a profile should have left."""

from __future__ import annotations

from pathlib import Path

from vime_otel.data.errors import VimeOtelError
from vime_otel.data.summary import counted
from vime_otel.data.texts import printable

from ..torch_profiles.trace_files import NO_EVENTS, UNREADABLE, find_traces, read_trace
from .findings import Finding, from_error, listed, mend, ok

_WHY_NONE = (
    "a trace is written when max_iterations steps are over and one more has come, or at the stop: send another request,"
    " or `vime-otel profile stop`; look also whether the engines write on another host, and for `Failed to start"
    " profiler` in their log"
)
_WHY_BROKEN = (
    "the engine ended, or was killed, while it was written, or it is being written now: profile again, with fewer"
    " --iterations"
)
_WHY_WITHOUT_EVENTS = "send requests while it runs: `vime-otel profile run --requests 3`"


def check_traces(directory: Path) -> list[Finding]:
    """Read every trace below a folder to its end."""
    try:
        traces = sorted(find_traces(directory))
    except VimeOtelError as error:
        return [from_error("traces", error)]
    if not traces:
        return [mend("traces", f"none in {directory}", _WHY_NONE)]
    broken: dict[str, list[str]] = {}
    for path in traces:
        if why := read_trace(path).why:
            broken.setdefault(why, []).append(printable(path.name))
    whole = len(traces) - sum(map(len, broken.values()))
    found = [ok("traces", f"{counted(whole, 'whole trace')} in {directory}")] if whole else []
    return found + [mend("traces", f"{listed(names)}: {why}", _fix(why)) for why, names in broken.items()]


def _fix(why: str) -> str:
    if why.startswith(UNREADABLE):
        return "let this user read it"
    return _WHY_WITHOUT_EVENTS if why == NO_EVENTS else _WHY_BROKEN
