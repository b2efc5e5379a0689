"""`vime-otel replay`: send a run's spans to an OTLP endpoint."""

from __future__ import annotations

import time

import click

from collector.forwarding.endpoint import Endpoint, Later, parse_endpoint
from collector.forwarding.forward_journal import Cursor, ForwardedJournal
from collector.forwarding.selection import Choice

from ..data.errors import Unavailable, VimeOtelError
from ..data.find_runs import find_run, runs_root
from ..data.journal import MAGIC
from ..data.run_files import JOURNAL_FILE
from ..data.rundir import RunDirectory
from ..data.trace_link import PLACE, trace_link_of
from .collector_options import ALL_RANKS, ranks_option, sample_option
from .options import Seconds, json_option, run_argument, runs_option
from .output import console, print_json

_LONGEST_WAIT_S = 5.0


@click.command()
@run_argument
@click.option(
    "--to",
    "endpoint",
    type=parse_endpoint,
    required=True,
    metavar="URL",
    help="The endpoint: gRPC, or HTTP on port 4318 and where URL has a path.",
)
@sample_option("--sample")
@ranks_option("--ranks")
@click.option(
    "--wait",
    type=Seconds(0, 86_400),
    default=30,
    show_default=True,
    help="Seconds to wait for an endpoint that is away.",
)
@runs_option
@json_option
def replay(
    run: str, endpoint: Endpoint, sample: float, ranks: str, wait: float, runs: str | None, as_json: bool
) -> int:
    """Send the spans of RUN to Jaeger, Tempo or any OTLP endpoint.

    RUN is a path, the beginning of an id or of a folder's name, or `latest`. The exit status is 1 where not all
    that was chosen has been taken.
    """
    found = find_run(runs_root(runs), run)
    if not (found.path / JOURNAL_FILE).is_file():
        raise VimeOtelError(f"{found.path} has no {JOURNAL_FILE}: of this run no spans were kept")
    journal = ForwardedJournal(found.path, Choice(sample, ranks == ALL_RANKS), Cursor(endpoint.url))
    messages = _send(journal, endpoint, wait)
    sent, unread = journal.cursor, _unread_bytes(found, journal)
    if as_json:
        numbers = {"sent": sent.sent, "refused": sent.refused, "over_limit": sent.over_limit, "unread_bytes": unread}
        print_json({"run": str(found.path), "to": endpoint.url, **numbers, "messages": messages})
    else:
        _print(found, journal, messages, unread)
    return 1 if sent.refused or unread else 0


def _send(journal: ForwardedJournal, endpoint: Endpoint, wait: float) -> list[str]:
    """Send it all; returns what the endpoint had to say. Raises VimeOtelError where it stays away."""
    journal.look(settled=True)
    messages: dict[str, None] = {}
    sender = endpoint.connect()
    pause, last_success = 0.5, time.monotonic()
    try:
        while True:
            try:
                sent = journal.send_next(sender)
            except Unavailable as error:
                if time.monotonic() - last_success >= wait:
                    raise VimeOtelError(f"{error} ({journal.cursor.sent:,} spans had been sent by then)") from error
                time.sleep(max(pause, min(error.seconds, _LONGEST_WAIT_S) if isinstance(error, Later) else 0.0))
                pause = min(2 * pause, _LONGEST_WAIT_S)
                continue
            if sent is None:
                return list(messages)
            pause, last_success = 0.5, time.monotonic()
            if sent.message:
                messages[sent.message] = None
    finally:
        sender.close()


def _unread_bytes(run: RunDirectory, journal: ForwardedJournal) -> int:
    """How much of the journal is behind a frame that is cut off or damaged."""
    size = (run.path / JOURNAL_FILE).stat().st_size
    return max(size - max(journal.cursor.offset, len(MAGIC)), 0)


def _print(run: RunDirectory, journal: ForwardedJournal, messages: list[str], unread: int) -> None:
    out, sent = console(), journal.cursor
    out.print(f"sent {sent.sent:,} spans of {run.path.name} to {sent.to}", soft_wrap=True)
    if sent.over_limit:
        why = "their traces would have become larger than Tempo takes"
        out.print(f"left out {sent.over_limit:,}: {why}", soft_wrap=True)
    if sent.refused:
        out.print(f"{sent.to} did not take {sent.refused:,}: {'; '.join(messages)}", soft_wrap=True)
    if unread:
        out.print(f"{JOURNAL_FILE} is damaged: its last {unread:,} bytes can't be read", soft_wrap=True)
    link = trace_link_of(run.header)
    if link and run.rows:
        out.print(f"next: {link.replace(PLACE, run.rows[0].trace_id)}", soft_wrap=True)
