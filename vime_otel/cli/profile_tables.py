"""What `vime-otel profile` prints for people."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from rich.table import Table

from collector.router import Worker
from collector.torch_profiles.profile_session import ProfileResult
from collector.torch_profiles.torch_profiler import Outcome
from collector.torch_profiles.trace_manifest import summary_lines
from collector.worker_filter import PassedOver

from ..data.find_runs import runs_root
from ..data.summary import counted
from ..data.texts import printable
from ..data.urls import shown
from .output import console

_REASONS_TOLD = 3


def print_chosen(chosen: Sequence[Worker], others: Sequence[PassedOver]) -> None:
    """Who would be asked."""
    table = _table("worker", "type", "model", "")
    for worker in chosen:
        table.add_row(shown(worker.url), worker.worker_type, worker.model, "would be asked")
    _add_others(table, others)
    console().print(table)


def print_outcomes(action: str, outcomes: Sequence[Outcome], others: Sequence[PassedOver], named: str) -> None:
    """What became of each worker, and what to type next."""
    out = console()
    table = _table("worker", "outcome", "vLLM", "")
    for outcome in outcomes:
        table.add_row(
            outcome.url, outcome.state, outcome.version, "; ".join(filter(None, (outcome.detail, *outcome.notes)))
        )
    _add_others(table, others)
    out.print(table)
    good = [outcome for outcome in outcomes if outcome.ok]
    out.print(f"{action}: {len(good)} of {counted(len(outcomes), 'worker')}")
    if action == "start" and any(outcome.may_run for outcome in good):
        out.print(
            "A trace is written once the iterations are done and one more step has come: send some requests."
            if all(outcome.bounded for outcome in good if outcome.may_run)
            else "It runs, and its traces grow, until it is stopped.",
            soft_wrap=True,
        )
        out.print(f"next: vime-otel profile stop {named}", soft_wrap=True)


def print_profile(path: Path, root: Path, result: ProfileResult, manifest: dict[str, Any]) -> None:
    """The traces that were gathered, what is missing, and what to type next."""
    print_traces(result, manifest)
    out = console()
    here = Path.cwd()
    out.print(f"run: {path.relative_to(here) if path.is_relative_to(here) else path}", soft_wrap=True)
    if manifest["traces"]:
        named = "" if root.absolute() == runs_root().absolute() else f" --runs {shlex.quote(str(root))}"
        out.print(f"next: vime-otel view{named}", soft_wrap=True)


def print_traces(result: ProfileResult, manifest: dict[str, Any]) -> None:
    """The traces that were gathered, and what is missing."""
    out = console()
    table = _table("worker", "rank", "trace", "MB", "status")
    for entry in manifest["traces"]:
        rank = "" if entry["rank"] is None else str(entry["rank"])
        size = f"{entry['bytes'] / 1e6:.1f}"
        table.add_row(entry["worker"] or "?", rank, printable(Path(entry["file"]).name), size, entry["status"])
    if manifest["traces"]:
        out.print(table)
    for outcome in result.started:
        for note in outcome.notes:
            out.print(f"{outcome.url}: {note}", soft_wrap=True)
    for line in summary_lines(manifest):
        out.print(line, soft_wrap=True)
    whole = sum(entry["status"] == "whole" for entry in manifest["traces"])
    having = len(result.workers) - len(manifest["missing"])
    out.print(f"{counted(whole, 'whole trace')}; {having} of {counted(len(result.workers), 'worker')} left one")


def first_reasons(missing: Mapping[str, str]) -> str:
    """What keeps the first workers' traces away, and how many workers there are besides."""
    told = [f"{worker}: {why}" for worker, why in islice(missing.items(), _REASONS_TOLD)]
    more = len(missing) - len(told)
    return "; ".join([*told, f"and {counted(more, 'worker')} more (--json tells of each)"] if more else told)


def _table(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in headings[:-1]:
        table.add_column(heading, no_wrap=True)
    table.add_column(headings[-1], overflow="fold")
    return table


def _add_others(table: Table, others: Sequence[PassedOver]) -> None:
    blank = [""] * (len(table.columns) - 3)
    for each in others:
        table.add_row(shown(each.worker.url), "passed over", *blank, each.reason)
