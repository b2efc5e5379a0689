"""Whether a folder has the traces that a profile should have left."""

from __future__ import annotations

from pathlib import Path

from vime_otel.data.errors import VimeOtelError
from vime_otel.data.summary import counted
from vime_otel.data.texts import printable

from ..torch_profiles.trace_files import UNREADABLE, find_traces, read_trace
from .findings import Finding, from_error, mend, ok

_WHY_NONE = (
    "a trace is written when max_iterations steps are over and one more has come, or at the stop: send another request,"
    " or `vime-otel profile stop`; look also whether the engines write on another host, and for `Failed to start"
    " profiler` in their log"
)
_WHY_BROKEN = (
    "the engine ended, or was killed, while it was written, or it is being written now: profile again, with fewer"
    " --iterations"
)


def check_traces(directory: Path) -> list[Finding]:
    """Read every trace below a folder to its end."""
    try:
        traces = sorted(find_traces(directory))
    except VimeOtelError as error:
        return [from_error("traces", error)]
    if not traces:
        return [mend("traces", f"none in {directory}", _WHY_NONE)]
    broken = [(path, content.why) for path in traces if not (content := read_trace(path)).whole]
    if not broken:
        return [ok("traces", f"{counted(len(traces), 'whole trace')} in {directory}")]
    return [mend("traces", f"{printable(path.name)}: {why}", _fix(why)) for path, why in broken]


def _fix(why: str) -> str:
    return "let this user read it" if why.startswith(UNREADABLE) else _WHY_BROKEN
