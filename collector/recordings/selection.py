"""Which engines a recording is to be made on, as things stand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from vime_otel.data.summary import counted
from vime_otel.data.urls import shown

from ..router import Worker
from . import matching
from .lockstep import PartialGroup, partial_groups
from .messages import Introduction, RecordingRequest

_NONE: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class Chosen:
    """An engine that can be recorded, and the URL at which it takes completions; empty where nobody knows it."""

    introduction: Introduction
    url: str


@dataclass(frozen=True)
class Unmatched:
    """A worker that can't be recorded, and why, for people. `awaited`: this may change."""

    url: str
    reason: str
    awaited: bool

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"url": self.url, "reason": self.reason}


@dataclass(frozen=True)
class Selection:
    """The engines, the workers that have none, and the lockstep groups that are there in part."""

    chosen: tuple[Chosen, ...] = ()
    unmatched: tuple[Unmatched, ...] = ()
    workers: int = 0
    partial: tuple[PartialGroup, ...] = ()

    @property
    def whole(self) -> bool:
        """Whether nothing more is to be waited for."""
        awaited = any(each.awaited for each in self.unmatched) or any(each.silent for each in self.partial)
        return bool(self.chosen) and not awaited

    @property
    def message(self) -> str:
        """How far it is, for people."""
        if self.workers:
            have = self.workers - len(self.unmatched)
            text = f"{have} of {counted(self.workers, 'worker')} with a recorder"
        else:
            text = f"{counted(len(self.chosen), 'recorder')} called"
        return "; ".join([text, *(f"{each.labels}: {each.explanation}" for each in self.partial if each.silent)])


def select(
    request: RecordingRequest,
    workers: Sequence[Worker],
    recorders: Sequence[Introduction],
    claimed: Mapping[str, str],
    collector_url: str,
    busy: Mapping[str, str] = _NONE,
    refused: Sequence[str] = (),
) -> Selection:
    """Match workers with recorders; without workers all recorders are meant. May resolve names, so it may block.

    `claimed` maps engines to the other recording that has them, `busy` those that still have to end another one
    to what it is; `refused` are the addresses of recorders without the right token.
    """
    if not workers:
        free = [each for each in recorders if each.engine not in claimed]
        first = free[: request.limit]
        meant = [*first, *_mates(first, free)]
        called = [Chosen(each, _url_of(each)) for each in meant if each.engine not in busy]
        taken = [each for each in recorders if each.engine in claimed]
        if request.limit:
            taken = taken[: max(request.limit - len(first), 0)]
        return Selection(
            tuple(called),
            (
                *(_busy(_url_of(each) or each.label, busy[each.engine]) for each in meant if each.engine in busy),
                *(_taken(_url_of(each) or each.label, claimed[each.engine]) for each in taken),
            ),
            partial=partial_groups([each.introduction for each in called], recorders),
        )
    known = {each.engine: each for each in recorders}
    found = matching.match(
        workers,
        [matching.Recorder(each.engine, each.label, each.addresses, each.api_ports) for each in recorders],
        urlsplit(request.router).hostname if request.router else None,
    )
    chosen: dict[str, Chosen] = {}
    unmatched = []
    for match in found.matches:
        url = match.worker.url
        free_engines = [each.engine for each in match.recorders if each.engine not in claimed]
        still_busy = [engine for engine in free_engines if engine in busy]
        chosen.update({engine: Chosen(known[engine], url) for engine in free_engines if engine not in busy})
        if not match.recorders:
            reason = matching.likely_reason(match.worker, found.unmatched, collector_url, refused)
            unmatched.append(Unmatched(shown(url), reason, awaited=match.worker.healthy is not False))
        elif still_busy:
            unmatched.append(_busy(shown(url), busy[still_busy[0]]))
        elif not free_engines:
            unmatched.append(_taken(shown(url), claimed[match.recorders[0].engine]))
    url_of_group = {each.introduction.dp_group: each.url for each in chosen.values()}
    for mate in _mates([each.introduction for each in chosen.values()], recorders):
        # One without an API server of its own is reached through another one's; else it was not asked for.
        if mate.engine not in claimed and mate.engine not in busy and (request.limit or not mate.api_ports):
            chosen[mate.engine] = Chosen(mate, _url_of(mate) or url_of_group[mate.dp_group])
    partial = partial_groups([each.introduction for each in chosen.values()], recorders)
    return Selection(tuple(chosen.values()), tuple(unmatched), len(workers), partial)


def _mates(of: Sequence[Introduction], recorders: Sequence[Introduction]) -> list[Introduction]:
    """Those of the recorders that run in lockstep with some of these, and are none of them."""
    engines = {each.engine for each in of}
    groups = {each.dp_group for each in of if each.dp_group}
    return [each for each in recorders if each.dp_group in groups and each.engine not in engines]


def _busy(url: str, what: str) -> Unmatched:
    return Unmatched(url, f"still busy with {what}; it was told to stop", awaited=True)


def _taken(url: str, recording: str) -> Unmatched:
    return Unmatched(url, f"recording {recording} runs on its engine", awaited=False)


def _url_of(recorder: Introduction) -> str:
    """Where an engine that no worker names takes completions (its label is `host:port/dp`); empty if unknown."""
    place = recorder.label.rpartition("/")[0]
    return f"http://{place}" if recorder.api_ports and place else ""
