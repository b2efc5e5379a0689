"""A rolling recording: that of one UTC day, which takes the sampled steps of every engine as they come.

Unlike a recording that someone asked for it has no end in sight, so nothing of it is kept in memory:
each request's totals go into the run's totals.sqlite before it is acknowledged, and into sums there.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from datetime import date, datetime, timezone
from pathlib import Path
from typing import Any

import orjson

from vime_otel.data.recording import ENGINE_PART, Recording, StepRow, StepTotals
from vime_otel.data.rolling import rolling_id
from vime_otel.data.run_files import HEADER_FILE, TOTALS_FILE
from vime_otel.data.write_run import create_totals, insert_totals, new_run_name, write_sums

from ..totals.records import Closing, Malformed, Other, StepEvent, read_records
from ..totals.tally import MALFORMED, NOT_KEPT, Tally
from . import report

ROWS_KEPT = 10_000
"""The latest steps that steps.json lists."""

_SUMS = (
    "CREATE TABLE sums (engine TEXT, rank TEXT, stage INTEGER, kind TEXT, stack_id INTEGER,"
    " inclusive_ns INTEGER, calls INTEGER, PRIMARY KEY (engine, rank, kind, stack_id))"
)
_ADD = (
    "INSERT INTO sums VALUES (?,?,?,?,?,?,?) ON CONFLICT (engine, rank, kind, stack_id) DO UPDATE SET"
    " inclusive_ns = inclusive_ns + excluded.inclusive_ns, calls = calls + excluded.calls"
)


class RollingRecording:
    """One day's. Raises OSError where the disk refuses. One thread at a time may use it."""

    def __init__(self, day: date, runs_root: Path, version: str) -> None:
        self.day = day
        self.id = rolling_id(day)
        self.directory = runs_root / _name(day)
        self._version = version
        self._changed = False
        self._written_over = False
        self.broken = False
        """Whether its file was lost; it has to be opened anew."""
        self.directory.mkdir(parents=True, exist_ok=True)
        try:
            self._connection = sqlite3.connect(self.directory / TOTALS_FILE, check_same_thread=False)
            self._stack_ids = self._open()
        except sqlite3.Error as error:
            raise OSError(f"{self.directory / TOTALS_FILE}: {error}") from error

    def add(self, request: Any) -> Tally:
        """Write the totals of a request of log records, each step once. Raises OSError."""
        tally, events, closings = _sorted(read_records(request))
        try:
            with self._connection:
                kept = self._store(events, closings)
        except (sqlite3.Error, OverflowError) as error:
            self.broken = True
            raise OSError(f"{self.directory / TOTALS_FILE}: {error}") from error
        self._changed = True
        tally.kept = kept + len(closings)
        tally.duplicate = len(events) - kept
        return tally

    def write(self, over: bool = False) -> None:
        """Bring the other files up to date, if anything came or the day is `over` since. Raises OSError."""
        if not self._changed and (self._written_over or not over):
            return
        try:
            write_sums(self.directory, self._recording(over))
        except sqlite3.Error as error:
            raise OSError(f"{self.directory / TOTALS_FILE}: {error}") from error
        self._changed, self._written_over = False, over

    def close(self) -> None:
        """Let go of the file."""
        self._connection.close()

    # -- the tables --------------------------------------------------------------------------

    def _open(self) -> dict[str, int]:
        if not self._connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'sums'").fetchone():
            with self._connection:
                self._connection.execute("BEGIN")  # by itself each table would be committed alone
                create_totals(self._connection)
                self._connection.execute(_SUMS)
                self._connection.execute(
                    "CREATE TABLE rows (engine TEXT, step INTEGER, kind TEXT, start INTEGER, content TEXT,"
                    " PRIMARY KEY (engine, step))"
                )
                self._connection.execute("CREATE TABLE engines (engine TEXT PRIMARY KEY, closing TEXT)")
        return self._read_stack_ids()

    def _read_stack_ids(self) -> dict[str, int]:
        return dict(self._connection.execute("SELECT stack, id FROM stacks"))

    def _store(self, events: list[StepEvent], closings: list[Closing]) -> int:
        """Write what was read; returns how many of the totals were new."""
        known, kept = len(self._stack_ids), 0
        added: dict[tuple[str, str, int, str, int], list[int]] = {}
        for part in (event.read.totals for event in events):
            if insert_totals(self._connection, part, self._stack_ids):
                kept += 1
                for stack, inclusive_ns, calls in zip(part.stacks, part.inclusive_ns, part.calls, strict=True):
                    key = (part.engine, part.rank, part.stage, part.kind, self._stack_ids[stack])
                    total = added.setdefault(key, [0, 0])
                    total[0] += inclusive_ns
                    total[1] += calls
        new = [(number, stack) for stack, number in self._stack_ids.items() if number >= known]
        self._connection.executemany("INSERT INTO stacks VALUES (?,?)", new)
        self._connection.executemany(_ADD, ((*key, *total) for key, total in added.items()))
        self._connection.executemany(
            "INSERT OR IGNORE INTO rows VALUES (?,?,?,?,?)",
            (
                (row.engine, row.index, row.kind, row.start_unix_nano, orjson.dumps(row.as_dict()).decode())
                for row in (event.read.row for event in events)
                if row is not None
            ),
        )
        self._connection.executemany(
            "INSERT OR REPLACE INTO engines VALUES (?,?)",
            ((closing.engine, orjson.dumps(closing.body, default=str).decode()) for closing in closings),
        )
        return kept

    def _recording(self, over: bool) -> Recording:
        latest = self._connection.execute(
            "SELECT content FROM rows ORDER BY start DESC LIMIT ?", (ROWS_KEPT,)
        ).fetchall()
        rows = [StepRow.from_dict(orjson.loads(content)) for (content,) in reversed(latest)]
        counts = dict(self._connection.execute("SELECT kind, count(*) FROM rows GROUP BY kind"))
        kept: dict[str, int] = {}
        for row in rows:
            kept[row.kind] = kept.get(row.kind, 0) + 1
        recording = Recording({}, rows, self._totals())
        recording.older_steps = {kind: count - kept.get(kind, 0) for kind, count in counts.items()}
        closings = {engine: orjson.loads(body) for engine, body in self._connection.execute("SELECT * FROM engines")}
        recording.header = self._header(recording, closings, over)
        return recording

    def _totals(self) -> list[StepTotals]:
        """The sums of each rank and kind, in the form of one step's totals."""
        stacks = {number: stack for stack, number in self._stack_ids.items()}
        found: dict[tuple[str, str, int, str], list[tuple[str, int, int]]] = {}
        query = "SELECT engine, rank, stage, kind, stack_id, inclusive_ns, calls FROM sums ORDER BY 1, 2, 4, 5"
        for engine, rank, stage, kind, stack_id, inclusive_ns, calls in self._connection.execute(query):
            found.setdefault((engine, rank, stage, kind), []).append((stacks[stack_id], inclusive_ns, calls))
        totals = []
        for (engine, rank, stage, kind), entries in found.items():
            names, inclusive, calls = zip(*entries, strict=True)
            totals.append(StepTotals(engine, rank, stage, 0, kind, names, inclusive, calls, 0, 0))
        return totals

    def _header(self, recording: Recording, closings: dict[str, dict[str, Any]], over: bool) -> dict[str, Any]:
        steps = self._connection.execute("SELECT engine, kind, count(*) FROM rows GROUP BY engine, kind").fetchall()
        ranks = {(part.engine, part.rank, part.stage) for part in recording.totals if part.rank != ENGINE_PART}
        engines = [
            {
                **report.told_by_closing(body),
                "id": engine,
                "steps": {kind: count for of, kind, count in steps if of == engine},
                "ranks": [{"rank": rank, "stage": stage} for of, rank, stage in sorted(ranks) if of == engine],
                "errors": [],
                "complete": True,
            }
            for engine, body in sorted(closings.items())
        ]
        every = sorted({body["every"] for body in closings.values() if isinstance(body.get("every"), int)})
        return {
            "id": self.id,
            "label": "rolling",
            "complete": True if over else None,
            "reasons": [],
            "notes": [
                f"one step in {' or '.join(map(str, every)) or 'some'} of every engine that samples its steps;"
                " their totals are kept, their spans are not"
            ],
            "created": f"{self.day.isoformat()}T00:00:00+00:00",
            "asked": {"every": every},
            "decode_tokens": next(
                (body["decode_tokens"] for body in closings.values() if "decode_tokens" in body), None
            ),
            "timing": "+".join(sorted({str(body["timing"]) for body in closings.values() if body.get("timing")})),
            "pause_ms": max((engine["pause_ms"] for engine in engines), default=0.0),
            "engines": engines,
            "versions": {
                "vime_otel": self._version,
                "vllm": sorted({str(body.get("vllm_version")) for body in closings.values()}),
            },
        }


def unfinished_days(runs_root: Path, today: date) -> list[date]:
    """The days before `today` whose runs do not say yet that they are over: no collector was there to see it."""
    found = []
    for totals in sorted(runs_root.glob(f"*-rolling/{TOTALS_FILE}")):
        try:
            day = datetime.strptime(totals.parent.name[:8], "%Y%m%d").date()
            complete = orjson.loads((totals.parent / HEADER_FILE).read_bytes())["complete"]
        except FileNotFoundError:
            complete = None
        except (OSError, ValueError, LookupError, TypeError):
            continue
        if complete is None and day < today and totals.parent.name == _name(day):
            found.append(day)
    return found


def _name(day: date) -> str:
    """The name of a day's folder."""
    midnight = datetime(day.year, day.month, day.day, tzinfo=timezone.utc)
    return new_run_name(rolling_id(day), "rolling", midnight)


def _sorted(records: Iterable[StepEvent | Closing | Malformed | Other]) -> tuple[Tally, list[StepEvent], list[Closing]]:
    """What is none of ours in a tally, and what is."""
    tally, events, closings = Tally(), [], []
    for record in records:
        if isinstance(record, StepEvent):
            events.append(record)
        elif isinstance(record, Closing):
            closings.append(record)
        else:
            tally.dropped[MALFORMED if isinstance(record, Malformed) else NOT_KEPT] += 1
    return tally, events, closings
