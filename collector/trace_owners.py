"""Which worker wrote which trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from .addresses import host_and_port, is_this_machine
from .router import Worker
from .trace_files import TraceContent, rank_of, read_trace


@dataclass(frozen=True)
class FoundTrace:
    """A trace, its worker (None where that can't be told) and what it holds."""

    path: Path
    worker: Worker | None
    rank: int | None
    content: TraceContent


def assign(paths: Sequence[Path], prefixes: Mapping[str, Worker], others: Sequence[Worker]) -> list[FoundTrace]:
    """Read traces and tell whose they are; those that are another profile's are left out.

    `prefixes` are of the workers that were told one, and these are known by it. `others` read none: theirs
    are known by the process that wrote them where it runs here, or since there is one such worker only.
    """
    local = {host_and_port(each.url)[1]: each for each in others if _is_here(each)}
    only = others[0] if len(others) == 1 else None
    found = []
    for path in paths:
        worker = _by_prefix(path.name, prefixes)
        if worker is None and not others:
            continue
        content = read_trace(path)
        worker = worker or _by_process(content.pid, local) or only
        found.append(FoundTrace(path, worker, rank_of(path.name), content))
    return found


def _by_prefix(name: str, prefixes: Mapping[str, Worker]) -> Worker | None:
    return next((worker for prefix, worker in prefixes.items() if name.startswith(f"{prefix}_")), None)


def _is_here(worker: Worker) -> bool:
    return is_this_machine(host_and_port(worker.url)[0])


def _by_process(pid: int | None, local: Mapping[int, Worker]) -> Worker | None:
    """The worker at whose port the process, or one that it descends from, listens."""
    if pid is None or not local:
        return None
    try:
        process = psutil.Process(pid)
        for each in (process, *process.parents()):
            for connection in each.net_connections(kind="tcp"):
                if connection.status == psutil.CONN_LISTEN and connection.laddr.port in local:
                    return local[connection.laddr.port]
    except (psutil.Error, OSError):
        return None
    return None
