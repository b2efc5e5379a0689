"""Which traces are ranks of one engine, and which are of different ones."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .summary import TraceSummary

RANK_NAMES = ("dp", "pp", "tp", "dcp", "pcp", "ep", "rank")
_MISMATCH_NS = 10**9
_RANKS = 10**9
"""A rank beyond this is none."""


@dataclass
class Engine:
    """The traces of one engine: of one data-parallel rank of one server, ordered by rank."""

    label: str
    traces: list[TraceSummary]
    dp: int = 0
    frontend: bool = False
    server: int = 0
    """Engines of one server have the same."""

    @property
    def id(self) -> str:
        """16 hex digits that the same traces always get."""
        files = [Path(trace.path).absolute() for trace in self.traces]
        named = "/".join(f"{f.parent.name}/{f.name}:{t.pid}" for f, t in zip(files, self.traces, strict=True))
        return hashlib.sha256(named.encode()).hexdigest()[:16]


@dataclass
class _Server:
    traces: list[TraceSummary] = field(default_factory=list)


def rank_of(trace: TraceSummary) -> int:
    """The trace's rank: from its name, else from its own metadata, else 0."""
    told = trace.name.ranks
    for name in ("rank", "tp"):
        if name in told:
            return told[name]
    distributed = trace.header.get("distributedInfo")
    rank = distributed.get("rank") if isinstance(distributed, dict) else None
    return rank if isinstance(rank, int) and 0 <= rank < _RANKS else 0


def stage_of(trace: TraceSummary) -> int:
    """Its pipeline stage."""
    return trace.name.ranks.get("pp", 0)


def rank_label(trace: TraceSummary) -> str:
    """`rank 1 (pp0 tp1)`: what a rank is called in reports."""
    parts = [f"{name}{trace.name.ranks[name]}" for name in RANK_NAMES[1:-1] if trace.name.ranks.get(name)]
    return f"rank {rank_of(trace)}{f' ({chr(32).join(parts)})' if parts else ''}"


def group(traces: Iterable[TraceSummary]) -> list[Engine]:
    """The engines that wrote these traces, in the order of their files.

    Traces of one folder and prefix that claim the same rank are of different servers. Their other ranks go where steps
    are alike and lie closest in time: ranks of an engine take every step together.
    """
    together: dict[tuple[str, str, int | None, bool], list[TraceSummary]] = {}
    for trace in traces:
        key = (str(Path(trace.path).parent), trace.name.prefix, _world_size(trace), trace.name.frontend)
        together.setdefault(key, []).append(trace)
    engines: list[Engine] = []
    several_folders = len({folder for folder, _, _, _ in together}) > 1
    number = 0
    for (folder, prefix, _, frontend), found in together.items():
        label = "/".join(filter(None, (Path(folder).name if several_folders else "", prefix)))
        servers = [_Server([trace]) for trace in found] if frontend else _servers(found)
        for position, server in enumerate(servers):
            numbered = f"{label} #{position + 1}" if len(servers) > 1 else label
            engines += _engines(server, numbered.strip(), frontend, number)
            number += 1
    for position, engine in enumerate(engines):
        engine.label = engine.label or f"engine {position}"
    return engines


def _world_size(trace: TraceSummary) -> int | None:
    distributed = trace.header.get("distributedInfo")
    size = distributed.get("world_size") if isinstance(distributed, dict) else None
    return size if isinstance(size, int) else None


def _position(trace: TraceSummary) -> tuple[int, int]:
    return trace.name.ranks.get("dp", 0), rank_of(trace)


def _servers(traces: Sequence[TraceSummary]) -> list[_Server]:
    by_position: dict[tuple[int, int], list[TraceSummary]] = {}
    for trace in traces:
        by_position.setdefault(_position(trace), []).append(trace)
    order = sorted(by_position, key=lambda position: (-len(by_position[position]), position))
    seeds = sorted(by_position[order[0]], key=_begin)
    servers = [_Server([seed]) for seed in seeds]
    for position in order[1:]:
        pairs = sorted(
            (_distance(seed, trace), number, index)
            for number, seed in enumerate(seeds)
            for index, trace in enumerate(by_position[position])
        )
        taken: set[int] = set()
        placed: set[int] = set()
        for _, number, index in pairs:
            if number not in taken and index not in placed:
                servers[number].traces.append(by_position[position][index])
                taken.add(number)
                placed.add(index)
    return servers


def _begin(trace: TraceSummary) -> int:
    return trace.unix_ns(trace.begin)


def _distance(one: TraceSummary, other: TraceSummary) -> int:
    """How far two traces are from being of one engine, in nanoseconds; a step that differs counts a second."""
    alike = [(a, b) for a, b in zip(one.steps, other.steps, strict=False) if a.signature == b.signature]
    different = max(len(one.steps), len(other.steps)) - len(alike)
    apart = sorted(abs(one.unix_ns(a.start) - other.unix_ns(b.start)) for a, b in alike)
    return different * _MISMATCH_NS + (apart[len(apart) // 2] if apart else abs(_begin(one) - _begin(other)))


def _engines(server: _Server, label: str, frontend: bool, number: int) -> list[Engine]:
    by_dp: dict[int, list[TraceSummary]] = {}
    for trace in server.traces:
        by_dp.setdefault(trace.name.ranks.get("dp", 0), []).append(trace)
    engines = []
    for dp, traces in sorted(by_dp.items()):
        traces.sort(key=lambda trace: (stage_of(trace), rank_of(trace)))
        named = f"{label} dp{dp}".strip() if len(by_dp) > 1 else label
        engines.append(Engine(named, traces, dp, frontend, number))
    return engines
