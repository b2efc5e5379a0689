"""`vime-otel doctor`: why can't it be profiled or recorded?"""

from __future__ import annotations

import asyncio
from pathlib import Path
from urllib.parse import urlsplit

import click
from rich.table import Table

from collector.client import Client
from collector.doctor.check_fleet import check_fleet, look_at
from collector.doctor.check_log import check_log
from collector.doctor.check_traces import check_traces
from collector.doctor.findings import Finding, from_error, mend, note, ok
from collector.http_client import new_session
from collector.recordings.matching import Recorder, likely_reason, match
from collector.recordings.refused import addresses_in
from collector.router import Worker, find_workers

from ..data import settings
from ..data.errors import UsageError, VimeOtelError
from ..data.summary import counted
from ..data.urls import shown
from .options import DEFAULT_COLLECTOR, FOLDER, clean_url, collector_option, json_option, place_options, read_log
from .output import console, print_json

_MARKS = {"ok": "ok", "note": "note", "mend": "MEND"}


@click.command()
@place_options
@click.option("--log", type=FOLDER, metavar="FILE", help="A training log.")
@collector_option
@click.option(
    "--trace-dir", type=FOLDER, metavar="DIR", help="A torch_profiler_dir in which traces are missing or broken."
)
@json_option
def doctor(
    router: str | None,
    workers: tuple[str, ...],
    limit: int | None,
    log: str | None,
    collector: str | None,
    trace_dir: str | None,
    as_json: bool,
) -> int:
    """Say what keeps engines from being profiled or recorded, and how to mend it.

    --log checks a training log, --router and --worker the engines themselves, --trace-dir the traces. Nothing is
    started or changed. The exit status is 1 when something must be mended.
    """
    if log is None and not router and not workers and trace_dir is None:
        raise UsageError("what is to be looked at? name --log FILE, --router URL, --worker URL or --trace-dir DIR")
    findings = check_log(read_log(log)) if log else []
    if router or workers:
        collector_url = collector or settings.get(settings.COLLECTOR) or DEFAULT_COLLECTOR
        findings += asyncio.run(_check_engines(router, workers, limit, collector_url))
    if trace_dir is not None:
        findings += check_traces(Path(trace_dir))
    to_mend = [finding for finding in findings if finding.level == "mend"]
    if as_json:
        print_json({"findings": [finding.as_dict() for finding in findings], "to_mend": len(to_mend)})
    else:
        _print(findings, len(to_mend))
    return 1 if to_mend else 0


async def _check_engines(
    router: str | None, worker_urls: tuple[str, ...], limit: int | None, collector_url: str
) -> list[Finding]:
    async with new_session() as session:
        try:
            api_key = settings.secret(settings.ROUTER_KEY) or None
            found = await find_workers(session, router, worker_urls, limit, api_key)
        except UsageError:
            raise
        except VimeOtelError as error:
            return [from_error("router", error)]
        looks = await look_at(session, found)
    findings = [ok("router", f"{shown(router)} lists {counted(len(found), 'worker')}")] if router else []
    return [
        *findings,
        *check_fleet(looks),
        await _check_recorders([look.worker for look in looks], router, collector_url),
    ]


async def _check_recorders(workers: list[Worker], router: str | None, collector_url: str) -> Finding:
    try:
        collector_url = clean_url(collector_url)
    except UsageError as error:
        return note("recorders", f"unknown: {settings.COLLECTOR.name}: {error}")
    try:
        async with Client(collector_url, settings.secret(settings.TOKEN)) as client:
            listed = await client.recorders()
    except UsageError:
        raise
    except VimeOtelError as error:
        return note("recorders", f"unknown: {error}", "`vime-otel serve` shows them; torch profiles do without")
    attached = [Recorder.from_json(entry) for entry in listed["recorders"]]
    matching = match(workers, attached, urlsplit(router).hostname if router else None)
    without = [each.worker for each in matching.matches if not each.recorders]
    if not without:
        return ok("recorders", f"attached to {counted(len(workers), 'worker')}")
    refused = addresses_in(listed.get("refused", []))
    reason = likely_reason(without[0], matching.unmatched, shown(collector_url), refused)
    return mend("recorders", f"none at {shown(without[0].url)} ({len(without)} of {len(workers)} have none)", reason)


def _print(findings: list[Finding], to_mend: int) -> None:
    out = console()
    table = Table(box=None, pad_edge=False, show_header=False)
    for _ in range(2):
        table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        table.add_row(_MARKS[finding.level], finding.subject, finding.text)
        if finding.fix:
            table.add_row("", "", f"→ {finding.fix}")
    out.print(table)
    out.print(f"{counted(to_mend, 'thing')} to mend" if to_mend else "nothing to mend")
