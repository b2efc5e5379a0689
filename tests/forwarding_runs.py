"""Runs whose spans go on to an endpoint, and a forwarder that sends them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from otlp_sink import OtlpSink
from simulated_recorder import make_step, step_requests

from collector.forwarding import forwarder
from collector.forwarding.endpoint import Endpoint
from collector.forwarding.forward_journal import Cursor, read_cursor, write_cursor
from collector.forwarding.forwarder import Forwarder
from collector.forwarding.selection import Choice
from vime_otel.data.journal import LOGS, TRACES, JournalWriter
from vime_otel.data.run_files import JOURNAL_FILE

RECORDING = "94f40cd57b85b001"
ENGINE = "00000000000000a1"


def write_steps(run: Path, first: int, last: int, ranks: int = 2) -> None:
    """Append steps to a run's journal, as the collector does."""
    run.mkdir(parents=True, exist_ok=True)
    writer = JournalWriter(run / JOURNAL_FILE)
    for index in range(first, last):
        for path, content in step_requests(RECORDING, make_step(RECORDING, ENGINE, index, ranks)):
            writer.append(TRACES if path == "/v1/traces" else LOGS, content)
    writer.close()


def made_ids(first: int, last: int, wanted: Callable[[str], bool], ranks: int = 2) -> list[bytes]:
    """The span ids of steps, of the ranks that are wanted (`engine` for the engine's own part); sorted."""
    steps = [make_step(RECORDING, ENGINE, index, ranks) for index in range(first, last)]
    parts = [part for step in steps for part in step.parts if wanted(part.totals.rank)]
    return sorted(span.span_id for part in parts for span in part.spans)


def received_ids(sink: OtlpSink) -> list[bytes]:
    return sorted(span.span_id for _, span in sink.spans())


def one_rank(rank: str) -> bool:
    return rank in ("0", "engine")


@contextlib.contextmanager
def forwarding(
    runs: Path,
    endpoint: Endpoint,
    choice: Choice | None = None,
    names: tuple[str, ...] = (),
    drain_seconds: float = 5.0,
) -> Iterator[Forwarder]:
    """A forwarder that takes up these runs now and looks often; by default one, as if before anything came."""
    taken_up = Forwarder(endpoint, runs, choice or Choice())
    for name in names or ("run",):
        (runs / name).mkdir(exist_ok=True)
        if not names and not read_cursor(runs / name, endpoint.url):
            write_cursor(runs / name, Cursor(endpoint.url))
        taken_up.take_up(runs / name)
    with pytest.MonkeyPatch.context() as quick:
        quick.setattr(forwarder, "LOOK_SECONDS", 0.02)
        quick.setattr(forwarder, "FIRST_WAIT_SECONDS", 0.05)
        quick.setattr(forwarder, "LONGEST_WAIT_SECONDS", 0.2)
        taken_up.start()
        try:
            yield taken_up
        finally:
            taken_up.stop(drain_seconds)
