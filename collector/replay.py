"""The sums of a recording made again from its journal."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vime_otel.data.journal import JournalReader

from .signals import ALL
from .sums import Sums

_BY_NUMBER = {signal.number: signal for signal in ALL}


@dataclass(frozen=True)
class Replayed:
    """The sums, and how many bytes at the journal's end could not be read."""

    sums: Sums
    torn_bytes: int


def replay(journal: Path, recording_id: str) -> Replayed:
    """Read a journal into sums; raises VimeOtelError where the file is no journal."""
    sums = Sums(recording_id)
    reader = JournalReader(journal)
    for frame in reader:
        signal = _BY_NUMBER.get(frame.signal)
        if signal is not None:
            sums.add(signal, signal.request_type.FromString(frame.payload))
    return Replayed(sums, reader.torn_bytes)
