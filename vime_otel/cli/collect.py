"""`vime-otel collect`: record some steps on every engine and write a run."""

from __future__ import annotations

import asyncio
import shlex
import ssl
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from collector.client import Client
from collector.forwarding.forwarder import Forwarder
from collector.recordings.messages import (
    MOST_REQUESTS,
    MOST_SECONDS,
    MOST_STEPS,
    MOST_TEXT,
    MOST_TOKENS,
    RecordingRequest,
)
from collector.server import Collector, CollectorConfig

from ..data import settings
from ..data.errors import UsageError
from ..data.find_runs import runs_root
from ..data.recording import KINDS
from ..data.run_files import HEADER_FILE
from ..data.rundir import RunDirectory
from .collect_torch import Profiled, TorchProfile, torch_options
from .collector_options import OWN_COLLECTOR_ONLY, collector_options
from .options import Seconds, Text, clean_url, engine_options, json_option
from .output import Failure, console, print_json, unfailing
from .profile_tables import print_traces
from .progress import View, progress_view
from .signals import Interrupts
from .tables import print_summary

_ASK_EVERY_S = 0.2
_EXPLAIN_AFTER_S = 5.0
_FRAMES_SHOWN = 15
_INTERRUPTED = 130
_FORWARDING_S = 60.0


@click.command()
@engine_options
@click.option(
    "--collector",
    "collector_url",
    type=clean_url,
    metavar="URL",
    help="Ask a running collector (`vime-otel serve`).",
)
@click.option(
    "--steps", type=click.IntRange(1, MOST_STEPS), default=20, show_default=True, help="Steps on each engine."
)
@click.option("--kind", type=click.Choice(KINDS), help="Count only steps of this kind.")
@click.option(
    "--timing",
    type=click.Choice(settings.TIMINGS),
    help=f"How spans are timed (default: ${settings.TIMING.name}, or {settings.TIMING.default}); see the README.",
)
@click.option(
    "--force-eager",
    is_flag=True,
    help="Set compiled code and CUDA graphs aside meanwhile, to see every module: other kernels run than usual.",
)
@click.option("--per-layer", is_flag=True, help="Tell the model's layers apart.")
@click.option(
    "--wait", type=Seconds(0, MOST_SECONDS), default=60, show_default=True, help="Seconds to wait for recorders."
)
@click.option(
    "--timeout", type=Seconds(1, MOST_SECONDS), default=300, show_default=True, help="Seconds to make the steps in."
)
@click.option(
    "--requests",
    type=click.IntRange(0, MOST_REQUESTS),
    default=0,
    metavar="N",
    help="Send N completions to each engine, so that it has work.",
)
@click.option("--prompt", type=Text(MOST_TEXT), metavar="TEXT", help="Their prompt.")
@click.option("--max-tokens", type=click.IntRange(1, MOST_TOKENS), default=64, show_default=True, help="Their length.")
@click.option("--label", type=Text(MOST_TEXT), metavar="TEXT", help="A name for the run.")
@torch_options
@collector_options
@json_option
@click.pass_context
def collect(
    ctx: click.Context,
    router: str | None,
    workers: tuple[str, ...],
    limit: int | None,
    collector_url: str | None,
    steps: int,
    kind: str | None,
    timing: str | None,
    force_eager: bool,
    per_layer: bool,
    wait: float,
    timeout: float,
    requests: int,
    prompt: str | None,
    max_tokens: int,
    label: str | None,
    torch: TorchProfile | None,
    config: CollectorConfig,
    as_json: bool,
) -> int:
    """Record N steps on every engine behind a router and write a run.

    Without --router and --worker all recorders that call are recorded.
    """
    request = RecordingRequest(
        steps=steps,
        kind=kind,
        timing=timing or settings.timing(),
        force_eager=force_eager,
        per_layer=per_layer,
        label=label,
        router=router,
        workers=workers,
        limit=limit,
        wait_seconds=wait,
        timeout_seconds=timeout,
        requests=requests,
        prompt=prompt,
        max_tokens=max_tokens,
    )
    if torch:
        torch.check(request)
    if not requests:
        _refuse(ctx, ("prompt", "max_tokens"), "is of --requests; say --requests N, too")
    if collector_url:
        why = "is for collect's own collector; with --collector, `vime-otel serve` takes it"
        _refuse(ctx, OWN_COLLECTOR_ONLY, why)
        followed = asyncio.run(_ask(collector_url, request))
    else:
        followed = asyncio.run(_run_own(config, request))
    recording = followed.recording
    if not recording["run"] and not followed.interrupted:
        raise Failure(followed.message, recording)
    if followed.interrupted:
        what = "every engine was told to disarm" if recording["engines"] else "nothing was armed"
        click.echo(f"interrupted; {what}", file=unfailing(sys.stderr))
    profiled = None
    if torch and recording["run"] and not followed.interrupted:
        profiled = torch.profile(request, Path(recording["run"]))
    if as_json:
        print_json({**recording, "torch": profiled.manifest} if profiled else recording)
    elif recording["run"]:
        _print_run(Path(recording["run"]), profiled)
    if followed.interrupted:
        return _INTERRUPTED
    return 0 if recording["complete"] and (profiled is None or profiled.result.ok) else 1


def _refuse(ctx: click.Context, names: Iterable[str], why: str) -> None:
    """Raise UsageError where one of these parameters was given."""
    for name in names:
        if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise UsageError(f"--{name.replace('_', '-')} {why}")


@dataclass(frozen=True)
class _Followed:
    """A recording at its end, as docs/formats.md has it; whether a signal ended it; and what was said on the way."""

    recording: dict[str, Any]
    interrupted: bool
    said: frozenset[str]

    @property
    def message(self) -> str:
        """Why there is no run, without repeating what was said already."""
        message = str(self.recording["message"])
        for reason in self.said:
            message = message.replace(reason, "why is said above")
        return message


async def _run_own(config: CollectorConfig, request: RecordingRequest) -> _Followed:
    """Drive a collector of our own, through the same routes as anybody's."""
    collector = Collector(replace(config, drain_seconds=_FORWARDING_S))
    await collector.start()
    forwarders = list(collector.forwarders)
    try:
        return await _ask(collector.local_url, request, collector.local_context)
    finally:
        await collector.stop()
        for forwarder in forwarders:
            if forwarder.counts.waiting_bytes:
                _tell_not_forwarded(forwarder)


def _tell_not_forwarded(forwarder: Forwarder) -> None:
    url, trouble = forwarder.endpoint.url, forwarder.trouble or f"not all went within {_FORWARDING_S:g} s"
    click.echo(
        f"not all spans were forwarded to {url} ({trouble}); `vime-otel replay latest --to {url}` sends the run's",
        file=unfailing(sys.stderr),
    )


async def _ask(url: str, request: RecordingRequest, context: ssl.SSLContext | None = None) -> _Followed:
    """Have a recording made, to its end or until a signal ends it."""
    with Interrupts() as interrupts, progress_view() as view:
        async with Client(url, settings.secret(settings.TOKEN), context) as client:
            return await _follow(client, request, interrupts, view)


async def _follow(client: Client, request: RecordingRequest, interrupts: Interrupts, view: View) -> _Followed:
    recording = await client.start(request)
    explain_after = time.monotonic() + _EXPLAIN_AFTER_S
    explained: set[str] = set()
    interrupted = False
    signal = asyncio.ensure_future(interrupts.wait())
    try:
        while recording["state"] not in ("done", "failed"):
            view.show(recording)
            if recording["state"] == "waiting" and time.monotonic() > explain_after:
                for worker in recording["unmatched_workers"]:
                    if worker["reason"] not in explained:
                        explained.add(worker["reason"])
                        view.note(f"{worker['url']} can't be recorded yet: {worker['reason']}")
            if interrupted:
                await asyncio.sleep(_ASK_EVERY_S)
            elif (await asyncio.wait({signal}, timeout=_ASK_EVERY_S))[0]:
                interrupted = True
                stopped = await client.stop(recording["id"])
                if stopped["engines"]:
                    view.note("disarming every engine; Ctrl-C again leaves at once")
            recording = await client.show(recording["id"])
        view.show(recording)
    finally:
        signal.cancel()
    return _Followed(recording, interrupted, frozenset(explained))


def _print_run(path: Path, profiled: Profiled | None) -> None:
    """What was recorded and profiled, where it lies, and what to type next."""
    screen = console()
    if not (path / HEADER_FILE).is_file():
        screen.print(f"run: {path} (on the collector's machine)", soft_wrap=True)
        return
    print_summary(screen, RunDirectory(path), _FRAMES_SHOWN)
    screen.print()
    if profiled:
        print_traces(profiled.result, profiled.manifest)
    here = Path.cwd()
    screen.print(f"run: {path.relative_to(here) if path.is_relative_to(here) else path}", soft_wrap=True)
    root = "" if path.parent == runs_root().absolute() else f" --runs {shlex.quote(str(path.parent))}"
    screen.print(f"next: vime-otel view{root}", soft_wrap=True)
