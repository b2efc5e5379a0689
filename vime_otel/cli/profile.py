"""`vime-otel profile`: the torch profiler on every worker."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import click
from click.core import ParameterSource

from collector.http_client import new_session
from collector.router import Worker, find_workers
from collector.torch_profiles.bounded_start import start_bounded
from collector.torch_profiles.profile_session import ProfilePlan, ProfileResult, Teller, run_profile, stop_running
from collector.torch_profiles.torch_profiler import Outcome, ProfileOptions
from collector.torch_profiles.trace_run import write_profile_run
from collector.worker_filter import PassedOver, WorkerFilter, select_workers

from ..data import settings
from ..data.errors import UsageError
from ..data.find_runs import find_run, runs_root
from ..data.urls import shown
from ..data.write_run import check_writable
from ..version import __version__
from .options import FOLDER, Seconds, Text, engine_arguments, engine_options, json_option, named_log, runs_option
from .output import Failure, print_json
from .profile_options import (
    MOST_SECONDS,
    filter_arguments,
    filter_options,
    start_options,
    stop_timeout_option,
    trace_prefix,
)
from .profile_tables import first_reasons, print_chosen, print_outcomes, print_profile
from .signals import Interrupts
from .status import status_line

_T = TypeVar("_T")
_QUIET_S = 1.0
"""How long an interrupted command may take to end before it says why."""


@click.group()
def profile() -> None:
    """Run vLLM's torch profiler on every worker at once.

    The workers write their traces where their own --profiler-config says.
    """


@profile.command()
@engine_options
@filter_options
@start_options
@click.option("--prefix", type=trace_prefix, metavar="TEXT", help="What the traces' names begin with.")
@click.option("--unbounded", is_flag=True, help="Let it run until it is stopped: traces grow by megabytes a step.")
@json_option
def start(
    router: str | None,
    workers: tuple[str, ...],
    wanted: WorkerFilter,
    dry_run: bool,
    iterations: int,
    delay_iterations: int | None,
    profiler_kwargs: dict[str, Any] | None,
    max_seconds: float,
    restart: bool,
    timeout: float,
    stop_timeout: float,
    prefix: str | None,
    unbounded: bool,
    as_json: bool,
) -> int:
    """Start the torch profiler on every worker.

    Where vLLM is too old to end it after --iterations by itself, this command waits --max-seconds and stops it.
    """
    if unbounded:
        _refuse_bounds()
    options = ProfileOptions(prefix, delay_iterations, 0 if unbounded else iterations, profiler_kwargs)

    async def ask(session: aiohttp.ClientSession, chosen: list[Worker], tell: Teller) -> list[Outcome]:
        urls = [worker.url for worker in chosen]
        bound = None if unbounded else max_seconds
        return await start_bounded(session, urls, options, timeout, stop_timeout, restart, bound, tell)

    return _ask_all("start", router, workers, wanted, dry_run, as_json, ask)


@profile.command()
@engine_options
@filter_options
@stop_timeout_option
@json_option
def stop(
    router: str | None,
    workers: tuple[str, ...],
    wanted: WorkerFilter,
    dry_run: bool,
    stop_timeout: float,
    as_json: bool,
) -> int:
    """Stop the torch profiler on every worker; harmless where none runs."""

    async def ask(session: aiohttp.ClientSession, chosen: list[Worker], tell: Teller) -> list[Outcome]:
        return await stop_running(session, [worker.url for worker in chosen], stop_timeout, tell)

    return _ask_all("stop", router, workers, wanted, dry_run, as_json, ask)


@profile.command()
@engine_options
@filter_options
@start_options
@click.option(
    "--requests", type=click.IntRange(0, 1000), default=0, metavar="N", help="Send N completions to each worker."
)
@click.option(
    "--files-timeout",
    type=Seconds(0, MOST_SECONDS),
    default=30.0,
    show_default=True,
    help="Seconds to wait for the files after that; a shared folder may show them late.",
)
@click.option(
    "--trace-dir",
    type=FOLDER,
    metavar="DIR",
    help="The workers' torch_profiler_dir as this machine sees it (default: what --log says).",
)
@click.option("--run", "into", metavar="RUN", help="Put the traces into this run instead of a new one.")
@click.option("--copy", is_flag=True, help="Copy the traces instead of linking them.")
@click.option("--label", type=Text(100), metavar="TEXT", help="A name for the new run.")
@runs_option
@json_option
def run(
    router: str | None,
    workers: tuple[str, ...],
    wanted: WorkerFilter,
    dry_run: bool,
    iterations: int,
    delay_iterations: int | None,
    profiler_kwargs: dict[str, Any] | None,
    max_seconds: float,
    restart: bool,
    timeout: float,
    stop_timeout: float,
    requests: int,
    files_timeout: float,
    trace_dir: str | None,
    into: str | None,
    copy: bool,
    label: str | None,
    runs: str | None,
    as_json: bool,
) -> int:
    """Profile some steps on every worker, wait for the traces, and gather them into a run.

    Without --requests it waits for the work that comes anyway. It is done when every worker has left a whole trace.
    """
    root = runs_root(runs)
    target = find_run(root, into).path if into else None
    check_writable(target or root, "--runs")
    plan = ProfilePlan(
        session=new_session_id(),
        trace_dir=trace_folder(trace_dir),
        iterations=iterations,
        delay_iterations=delay_iterations,
        profiler_kwargs=profiler_kwargs,
        requests=requests,
        max_seconds=max_seconds,
        start_timeout_s=timeout,
        stop_timeout_s=stop_timeout,
        files_timeout_s=files_timeout,
        restart=restart,
    )
    result = profile_workers(plan, router, workers, wanted, dry_run, as_json)
    if result is None:
        return 0
    path, manifest = write_profile_run(target, root, plan, result, __version__, label, copy)
    if path is None:
        raise Failure(f"no trace came: {first_reasons(result.missing)}", {"run": None, "ok": False, **manifest})
    if as_json:
        print_json({"run": str(path), "ok": result.ok, **manifest})
    else:
        print_profile(path, root, result, manifest)
    return 0 if result.ok else 1


def profile_workers(
    plan: ProfilePlan,
    router: str | None,
    worker_urls: tuple[str, ...],
    wanted: WorkerFilter,
    dry_run: bool = False,
    as_json: bool = False,
) -> ProfileResult | None:
    """Carry a plan out on the workers that are meant; None after a dry run, which is printed."""

    async def work(tell: Teller) -> ProfileResult | None:
        async with new_session() as session:
            chosen, others = await _choose(session, router, worker_urls, wanted)
            if dry_run:
                _print_dry(chosen, others, as_json)
                return None
            return await run_profile(session, chosen, plan, tell)

    return _run_async(work)


def _refuse_bounds() -> None:
    """Raise UsageError where --unbounded comes with a bound."""
    source = click.get_current_context().get_parameter_source
    for name in ("iterations", "max_seconds"):
        if source(name) == ParameterSource.COMMANDLINE:
            raise UsageError(f"--unbounded and --{name.replace('_', '-')} contradict each other: leave one out")


def new_session_id() -> str:
    """Tells a profile's files from all others."""
    return os.urandom(8).hex()


def trace_folder(given: str | None) -> Path:
    """Where the traces will lie: as given, or as the training log says; raises UsageError."""
    log = named_log()
    found = given or (log.trace_dir if log else None)
    if not found:
        raise UsageError(
            "where do the workers write their traces? name their torch_profiler_dir, as this machine sees it, with"
            " --trace-dir DIR"
        )
    return Path(found)


def _ask_all(
    action: str,
    router: str | None,
    workers: tuple[str, ...],
    wanted: WorkerFilter,
    dry_run: bool,
    as_json: bool,
    ask: Callable[[aiohttp.ClientSession, list[Worker], Teller], Coroutine[Any, Any, list[Outcome]]],
) -> int:
    """Choose the workers, ask them, and tell what became of each."""

    async def work(tell: Teller) -> tuple[list[Outcome], list[PassedOver]] | None:
        async with new_session() as session:
            chosen, others = await _choose(session, router, workers, wanted)
            if dry_run:
                _print_dry(chosen, others, as_json)
                return None
            return await ask(session, chosen, tell), others

    found = _run_async(work)
    if found is None:
        return 0
    outcomes, others = found
    if as_json:
        print_json({"action": action, "workers": [outcome.as_dict() for outcome in outcomes], **_passed_over(others)})
    else:
        named = f"{engine_arguments(router, workers, wanted.limit)} {filter_arguments(wanted)}".rstrip()
        print_outcomes(action, outcomes, others, named)
    return 0 if all(outcome.ok for outcome in outcomes) else 1


async def _choose(
    session: aiohttp.ClientSession, router: str | None, worker_urls: tuple[str, ...], wanted: WorkerFilter
) -> tuple[list[Worker], list[PassedOver]]:
    api_key = settings.secret(settings.ROUTER_KEY) or None
    found = await find_workers(session, router, worker_urls, None, api_key)
    return await select_workers(session, found, wanted)


def _run_async(work: Callable[[Teller], Coroutine[Any, Any, _T]]) -> _T:
    """Run it; the first signal cancels it, so that it can stop what it started."""

    async def guarded() -> _T:
        with Interrupts() as interrupts, status_line() as tell:
            task = asyncio.ensure_future(work(tell))
            signal = asyncio.ensure_future(interrupts.wait())
            await asyncio.wait({task, signal}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                task.cancel()
                await asyncio.wait({task}, timeout=_QUIET_S)
                if not task.done():
                    tell.note(
                        "interrupted: the profiles are stopped first, which may take minutes; a second Ctrl-C leaves"
                        " at once, and what still runs must be ended with `vime-otel profile stop`"
                    )
                with contextlib.suppress(asyncio.CancelledError):
                    await task
                raise KeyboardInterrupt
            signal.cancel()
            return task.result()

    return asyncio.run(guarded())


def _print_dry(chosen: Sequence[Worker], others: Sequence[PassedOver], as_json: bool) -> None:
    if as_json:
        urls = [{"url": shown(worker.url), "type": worker.worker_type, "model": worker.model} for worker in chosen]
        print_json({"would_ask": urls, **_passed_over(others)})
    else:
        print_chosen(chosen, others)


def _passed_over(others: Sequence[PassedOver]) -> dict[str, Any]:
    return {"passed_over": [{"url": shown(each.worker.url), "reason": each.reason} for each in others]}
