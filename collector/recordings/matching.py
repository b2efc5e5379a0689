"""Which recorder belongs to which of the router's workers, and why one may be missing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vime_otel.data.errors import VimeOtelError

from ..addresses import addresses_of, host_and_port, is_loopback
from ..router import Worker
from .refused import why_refused


@dataclass(frozen=True)
class Recorder:
    """A recorder as it introduced itself: one engine (data-parallel rank) of a vLLM server."""

    engine: str
    label: str
    addresses: tuple[str, ...]
    api_ports: tuple[int, ...]
    model: str = ""
    vllm_version: str = ""
    phase: str = ""

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> Recorder:
        """One entry of a collector's `/control/v1/recorders`; raises VimeOtelError for anything else."""
        try:
            return cls(
                engine=str(entry["engine"]),
                label=str(entry.get("label") or entry["engine"]),
                addresses=tuple(str(address) for address in entry["addresses"]),
                api_ports=tuple(int(port) for port in entry["api_ports"]),
                model=str(entry.get("model") or ""),
                vllm_version=str(entry.get("vllm_version") or ""),
                phase=str(entry.get("phase") or ""),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise VimeOtelError(f"the collector listed a recorder that can't be read ({error!r})") from error


@dataclass(frozen=True)
class Match:
    """A worker and its recorders: none, one, or one for each data-parallel rank."""

    worker: Worker
    recorders: tuple[Recorder, ...]


@dataclass(frozen=True)
class Matching:
    """Every worker, in the order given, and the recorders that belong to none of them."""

    matches: tuple[Match, ...]
    unmatched: tuple[Recorder, ...]


def match(
    workers: Sequence[Worker],
    recorders: Sequence[Recorder],
    router_host: str | None,
    lookup: Callable[[str], Collection[str]] = addresses_of,
) -> Matching:
    """Match by port and address. A worker on loopback is on the router's host.

    `router_host` is None where workers were named without a router: loopback is this machine then.
    """
    known: dict[str, Collection[str]] = {}

    def addresses(host: str) -> Collection[str]:
        if host not in known:
            known[host] = lookup(host)
        return known[host]

    matches = []
    for worker in workers:
        host, port = host_and_port(worker.url)
        where = addresses(router_host) if router_host and is_loopback(host) else addresses(host)
        fitting = (each for each in recorders if port in each.api_ports and _same_machine(where, each.addresses))
        matches.append(Match(worker, tuple(fitting)))
    taken = {recorder.engine for each in matches for recorder in each.recorders}
    return Matching(tuple(matches), tuple(each for each in recorders if each.engine not in taken))


def likely_reason(
    worker: Worker,
    unmatched: Sequence[Recorder],
    collector_url: str,
    refused: Collection[str] = (),
    lookup: Callable[[str], Collection[str]] = addresses_of,
) -> str:
    """Why a worker has no recorder, in one line with the way out; `refused` are addresses without the right token."""
    host, port = host_and_port(worker.url)
    if refused:
        return why_refused(refused, lookup(host))
    if worker.trouble:
        return f"nobody answers there ({worker.trouble}): is its engine up?"
    same_port = [recorder for recorder in unmatched if port in recorder.api_ports]
    if same_port:
        listed = ", ".join(sorted({address for each in same_port for address in each.addresses}))
        return f"a recorder with port {port} calls from other addresses ({listed}): name it with --worker"
    if worker.healthy is False:
        return "the worker is unhealthy: is its engine up?"
    return no_recorder(collector_url)


def no_recorder(collector_url: str) -> str:
    """What may be missing where no recorder calls, in one line."""
    return (
        f"vime-otel not installed in the engine's environment, VIME_OTEL_COLLECTOR={collector_url} not set there"
        " (under Ray: in env_vars of the runtime env), vime_otel missing in VLLM_PLUGINS, or a bad setting:"
        " the engine's log says why the recorder is off"
    )


def _same_machine(ours: Collection[str], theirs: Iterable[str]) -> bool:
    """Whether two sets of addresses share one; loopback counts only where both know nothing else."""
    if not ours:
        return False
    mine = {address for address in ours if not is_loopback(address)}
    other = {address for address in theirs if not is_loopback(address)}
    return bool(mine & other) or not (mine or other)
