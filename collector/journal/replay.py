"""What a recording's journal holds, read again: into its sums, and each step's totals."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

from google.protobuf.message import DecodeError

from vime_otel.data.journal import LOGS, Frame, JournalReader
from vime_otel.data.recording import StepTotals

from ..otlp.signals import BY_NUMBER
from ..totals.records import StepEvent, read_records
from ..totals.sums import Sums
from .request_journal import KnownRequests

_log = logging.getLogger(__name__)


def restore(reader: JournalReader, sums: Sums, known: KnownRequests) -> None:
    """Sum what a journal holds and note its requests. Raises VimeOtelError where the file is no journal."""
    for frame in reader:
        known.note(frame, reader.offset - frame.size)
        _add(frame, sums)


def totals_of(journal: Path) -> Iterator[StepTotals]:
    """Each step's totals as they came; of equal keys the first counts. Raises VimeOtelError for what is no journal."""
    for frame in JournalReader(journal):
        if frame.signal == LOGS:
            for record in read_records(BY_NUMBER[LOGS].request_type.FromString(frame.payload)):
                if isinstance(record, StepEvent):
                    yield record.read.totals


def _add(frame: Frame, sums: Sums) -> None:
    signal = BY_NUMBER.get(frame.signal)
    if signal is None:
        return
    try:
        sums.add(signal, signal.request_type.FromString(frame.payload), frame.payload)
    except DecodeError as error:
        _log.warning("a request in a journal can't be read: %s", error)
