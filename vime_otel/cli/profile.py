"""`vime-otel profile`: the torch profiler on every worker."""

from __future__ import annotations

import asyncio

import click
from rich.table import Table

from collector.http_client import new_session
from collector.router import find_workers
from collector.torch_profiler import Action, Outcome, profile_all
from vime_otel.data.summary import counted

from ..data import settings
from .options import Seconds, engine_arguments, engine_options, json_option
from .output import console, print_json

_MOST_SECONDS = 86_400


@click.group()
def profile() -> None:
    """Start or stop vLLM's torch profiler on every worker at once.

    The workers write their traces where their own --profiler-config says.
    """


@profile.command()
@engine_options
@click.option(
    "--timeout", type=Seconds(0.1, _MOST_SECONDS), default=60.0, show_default=True, help="Seconds per worker."
)
@json_option
def start(router: str | None, workers: tuple[str, ...], limit: int | None, timeout: float, as_json: bool) -> int:
    """Start the torch profiler on every worker."""
    return _run("start", router, workers, limit, timeout, as_json)


@profile.command()
@engine_options
@click.option(
    "--timeout",
    type=Seconds(0.1, _MOST_SECONDS),
    default=1800.0,
    show_default=True,
    help="Seconds per worker; writing a long trace takes minutes.",
)
@json_option
def stop(router: str | None, workers: tuple[str, ...], limit: int | None, timeout: float, as_json: bool) -> int:
    """Stop the torch profiler on every worker; harmless where none runs."""
    return _run("stop", router, workers, limit, timeout, as_json)


def _run(
    action: Action,
    router: str | None,
    workers: tuple[str, ...],
    limit: int | None,
    timeout_s: float,
    as_json: bool,
) -> int:
    outcomes = asyncio.run(_ask(action, router, workers, limit, timeout_s))
    if as_json:
        print_json({"action": action, "workers": [outcome.as_dict() for outcome in outcomes]})
    else:
        _print(action, outcomes, engine_arguments(router, workers, limit))
    return 0 if all(outcome.ok for outcome in outcomes) else 1


async def _ask(
    action: Action, router: str | None, worker_urls: tuple[str, ...], limit: int | None, timeout_s: float
) -> list[Outcome]:
    async with new_session() as session:
        api_key = settings.secret(settings.ROUTER_KEY) or None
        found = await find_workers(session, router, worker_urls, limit, api_key)
        return await profile_all(session, action, [worker.url for worker in found], timeout_s)


def _print(action: Action, outcomes: list[Outcome], named: str) -> None:
    out = console()
    table = Table(box=None, pad_edge=False)
    table.add_column("worker", no_wrap=True)
    table.add_column("outcome", no_wrap=True)
    table.add_column("", overflow="fold")
    for outcome in outcomes:
        table.add_row(outcome.url, outcome.state, outcome.detail)
    out.print(table)
    good = [outcome for outcome in outcomes if outcome.ok]
    out.print(f"{action}: {len(good)} of {counted(len(outcomes), 'worker')}")
    if action == "start" and good:
        out.print(
            "A trace is written once max_iterations steps are done and one more step has come: send some requests.",
            soft_wrap=True,
        )
        out.print(f"next: vime-otel profile stop {named}", soft_wrap=True)
