"""Which worker wrote which trace."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from ..addresses import host_and_port, is_this_machine
from ..router import Worker
from .trace_files import TraceContent, rank_of, read_trace

_SESSION_PREFIX = re.compile(r"vime-[0-9a-f]+-\d+_")


def session_prefix(session: str, number: int) -> str:
    """What the names of the n-th worker's files begin with in a session, whose id is hex digits."""
    return f"vime-{session}-{number}"


@dataclass(frozen=True)
class FoundTrace:
    """A trace, its worker (None where that can't be told) and what it holds."""

    path: Path
    worker: Worker | None
    rank: int | None
    content: TraceContent


@dataclass(frozen=True)
class Owners:
    """The workers that may have written traces.

    `prefixes` are of all, and what begins with one is its worker's; what begins with another session's is nobody's.
    `others` may have read none: theirs are known by the process that wrote them where it runs here, or since there
    is one such worker only.
    """

    prefixes: Mapping[str, Worker]
    others: Sequence[Worker]

    def all_wrote(self, paths: Sequence[Path]) -> bool:
        """Whether there is a trace for everyone, as far as names tell."""
        marked = {prefix for path in paths if (prefix := self._prefix(path))}
        unmarked = sum(self._may_be_others(path) for path in paths)
        return len(marked) + min(unmarked, len(self.others)) >= len(self.prefixes)

    def assign(self, paths: Sequence[Path]) -> list[FoundTrace]:
        """Read traces and tell whose they are; those that are another profile's are left out."""
        local = {host_and_port(each.url)[1]: each for each in self.others if _is_here(each)}
        only = self.others[0] if len(self.others) == 1 else None
        found = []
        for path in paths:
            prefix = self._prefix(path)
            if not prefix and not self._may_be_others(path):
                continue
            content = read_trace(path)
            worker = self.prefixes[prefix] if prefix else _by_process(content.pid, local) or only
            found.append(FoundTrace(path, worker, rank_of(path.name), content))
        return found

    def _may_be_others(self, path: Path) -> bool:
        """Whether a worker that read no prefix may have written it."""
        return bool(self.others) and not _SESSION_PREFIX.match(path.name)

    def _prefix(self, path: Path) -> str:
        return next((prefix for prefix in self.prefixes if path.name.startswith(f"{prefix}_")), "")


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
