"""Writing run directories, each file whole or not at all; see docs/formats.md."""

from __future__ import annotations

import array
import contextlib
import os
import re
import shutil
import sqlite3
import tempfile
from collections.abc import Iterable
from datetime import datetime, timezone
from pathlib import Path

import orjson

from . import folded
from .errors import VimeOtelError
from .recording import KINDS, Recording, StepTotals, sum_overall, sum_rank
from .run_files import FOLDED_FILES, FORMAT, HEADER_FILE, STEPS_FILE, TOTALS_FILE, folded_name

_LABEL_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


def check_writable(folder: Path, option: str) -> None:
    """Make a folder if need be; raises VimeOtelError where nothing can be written in it. `option` names another one."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise VimeOtelError(
            f"runs can't be written to {folder} ({error.strerror}); name another folder with {option} DIR"
        ) from error


def new_run_name(recording_id: str, label: str | None, now: datetime | None = None) -> str:
    """`<UTC time>-<short id>[-label]`; anything unusual in the label becomes `_`."""
    stamp = (now or datetime.now(timezone.utc)).strftime("%Y%m%dT%H%M%SZ")
    name = f"{stamp}-{recording_id[:8]}"
    return f"{name}-{_LABEL_UNSAFE.sub('_', label)[:60]}" if label else name


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file whole and rename it into place, so that a reader never sees half of it."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_folded_files(directory: Path, recording: Recording) -> None:
    """Write the folded files, `.calls` and steps.json of a recording into `directory`."""
    layerings = _layerings(recording)
    kinds = recording.kinds()
    for by_layer in (False, True):
        for kind in {*KINDS, *kinds}:
            if kind in kinds and by_layer in layerings:
                _write_kind(directory, kind, sum_overall(recording.of_kind(kind), by_layer), by_layer)
            else:  # left by an earlier recording in the same folder
                for suffix in FOLDED_FILES:
                    (directory / folded_name(kind, suffix, by_layer)).unlink(missing_ok=True)
    content = {
        "steps": recording.steps(),
        "decode_tokens": recording.header.get("decode_tokens"),
        "rows": [row.as_dict() for row in recording.rows],
    }
    write_atomically(directory / STEPS_FILE, orjson.dumps(content, option=orjson.OPT_INDENT_2))


def write_run(directory: Path, recording: Recording, totals: Iterable[StepTotals] | None = None) -> None:
    """Write every file of a finished recording but its journal; recording.json comes last.

    `totals` are each step's where the recording holds sums of them; of equal keys the first counts.
    """
    directory.mkdir(parents=True, exist_ok=True)
    _write_totals(directory / TOTALS_FILE, recording.totals if totals is None else totals)
    write_sums(directory, recording)


def write_sums(directory: Path, recording: Recording) -> None:
    """Write what follows from per-step totals, but not these; recording.json comes last."""
    write_folded_files(directory, recording)
    shutil.rmtree(directory / "ranks", ignore_errors=True)
    layerings = _layerings(recording)
    for engine, rank in recording.ranks():
        rank_directory = directory / "ranks" / f"{engine}-{rank}"
        rank_directory.mkdir(parents=True, exist_ok=True)
        for kind in recording.kinds():
            for by_layer in layerings:
                total = sum_rank(recording.of_kind(kind), engine, rank, by_layer)
                _write_kind(rank_directory, kind, total, by_layer)
    write_atomically(
        directory / HEADER_FILE,
        orjson.dumps({"format": FORMAT, **recording.header}, option=orjson.OPT_INDENT_2),
    )


def _layerings(recording: Recording) -> tuple[bool, ...]:
    """Whether to write files by layer: never alone, and only where layers can be told apart."""
    return (False, True) if recording.has_layers else (False,)


def _write_kind(directory: Path, kind: str, total: folded.Folded, by_layer: bool) -> None:
    texts = (folded.dumps_self_us(total), folded.dumps(total.calls))
    for suffix, text in zip(FOLDED_FILES, texts, strict=True):
        write_atomically(directory / folded_name(kind, suffix, by_layer), text.encode())


def _write_totals(path: Path, totals: Iterable[StepTotals]) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    stack_ids: dict[str, int] = {}
    try:
        with contextlib.closing(sqlite3.connect(temporary)) as connection, connection:
            create_totals(connection)
            for part in totals:
                insert_totals(connection, part, stack_ids)
            connection.executemany("INSERT INTO stacks VALUES (?,?)", ((i, s) for s, i in stack_ids.items()))
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)  # what it holds of a full disk would be missed


def create_totals(connection: sqlite3.Connection) -> None:
    """Make the tables of totals.sqlite."""
    connection.execute(f"PRAGMA user_version = {FORMAT}")
    connection.execute("CREATE TABLE stacks (id INTEGER PRIMARY KEY, stack TEXT NOT NULL)")
    connection.execute(
        "CREATE TABLE totals (engine TEXT, rank TEXT, stage INTEGER, step INTEGER, kind TEXT,"
        " spans_made INTEGER, spans_dropped INTEGER,"
        " stack_ids BLOB, inclusive_ns BLOB, calls BLOB, PRIMARY KEY (engine, rank, step))"
    )


def insert_totals(connection: sqlite3.Connection, part: StepTotals, stack_ids: dict[str, int]) -> bool:
    """Add one step's totals; whether they were new. Stacks that have no id yet get one in `stack_ids`."""
    ids = [stack_ids.setdefault(stack, len(stack_ids)) for stack in part.stacks]
    columns = (array.array("q", column).tobytes() for column in (ids, part.inclusive_ns, part.calls))
    values = (*part.key[:2], part.stage, part.index, part.kind, part.spans_made, part.spans_dropped, *columns)
    cursor = connection.execute("INSERT OR IGNORE INTO totals VALUES (?,?,?,?,?,?,?,?,?,?)", values)
    return cursor.rowcount == 1
