"""Run directories: writing one whole, finding and reading them; see docs/formats.md."""

from __future__ import annotations

import array
import os
import re
import shutil
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import orjson

from . import folded, settings
from .errors import VimeOtelError
from .folders import files_below
from .recording import ENGINE_PART, KINDS, Recording, StepRow, StepTotals, sum_overall, sum_rank
from .run_format import Header, Steps
from .step_sums import sum_steps
from .summary import counted

FORMAT = 1
HEADER_FILE = "recording.json"
STEPS_FILE = "steps.json"
TOTALS_FILE = "totals.sqlite"
JOURNAL_FILE = "spans.otlp"
OPEN_FILE = "open.json"
CURSOR_FILES = "forward-*.json"
"""There while a collector records into the run; the collector holds a lock on it."""

TORCH_DIR = "torch"
MANIFEST_FILE = "manifest.json"
"""In TORCH_DIR: what each trace is."""
FOLDED_FILES = ("folded", "calls")
_NAMES_SHOWN = 10
_ENGINE_LABEL_SAFE = re.compile(r"[^A-Za-z0-9._-]+")


def runs_root(given: str | Path | None = None) -> Path:
    """The folder of the run directories: `given`, or VIME_OTEL_RUNS, or `runs`."""
    return Path(given or settings.get(settings.RUNS))


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
    return f"{name}-{_ENGINE_LABEL_SAFE.sub('_', label)[:60]}" if label else name


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
                    (directory / _folded_name(kind, suffix, by_layer)).unlink(missing_ok=True)
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
        write_atomically(directory / _folded_name(kind, suffix, by_layer), text.encode())


def _folded_name(kind: str, suffix: str, by_layer: bool) -> str:
    return f"{kind}.layers.{suffix}" if by_layer else f"{kind}.{suffix}"


def _write_totals(path: Path, totals: Iterable[StepTotals]) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    stack_ids: dict[str, int] = {}
    connection = sqlite3.connect(temporary)
    try:
        with connection:
            create_totals(connection)
            for part in totals:
                insert_totals(connection, part, stack_ids)
            connection.executemany("INSERT INTO stacks VALUES (?,?)", ((i, s) for s, i in stack_ids.items()))
    finally:
        connection.close()
    os.replace(temporary, path)


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


class RunDirectory:
    """One run directory, read lazily. Opening something else raises VimeOtelError."""

    def __init__(self, path: Path):
        self.path = path
        self._parsed: dict[Path, folded.Parsed] = {}
        if not os.path.isfile(path / HEADER_FILE):
            raise VimeOtelError(f"{path} is not a run: it has no {HEADER_FILE}; `vime-otel collect` makes runs")

    @cached_property
    def header(self) -> dict[str, Any]:
        """The content of recording.json, checked. Whatever else is read of a run, this is read first."""
        path = self.path / HEADER_FILE
        header = _read_json(path)
        if header.get("format") != FORMAT:
            raise VimeOtelError(
                f"{path} has format {header.get('format')!r:.60}, this version reads {FORMAT};"
                " read it with the version of vime-otel that wrote it"
            )
        return _checked(path, header, Header)

    @property
    def id(self) -> str:
        """The recording's id, 16 hex digits."""
        return str(self.header["id"])

    @cached_property
    def rows(self) -> list[StepRow]:
        """The steps, in the order of steps.json."""
        return [StepRow.from_dict(row) for row in self._steps_file["rows"]]

    @property
    def steps(self) -> dict[str, int]:
        """Number of steps by kind."""
        steps: dict[str, int] = self._steps_file["steps"]
        return steps

    def steps_of(self, kind: str, rank: str | None) -> int:
        """Number of steps of a kind: all, or those of one rank's engine, with or without a row left of them."""
        if rank is None:
            return self.steps.get(kind, 0)
        for engine in self.header.get("engines", []):
            if rank.startswith(f"{engine.get('id')}-") and "steps" in engine:
                steps: dict[str, int] = engine["steps"]
                return steps.get(kind, 0)
        return len(self.rows_of(kind, rank))

    def rows_of(self, kind: str, rank: str | None) -> list[StepRow]:
        """The steps of a kind: all, or those of an engine, named by its id or by a rank of it (`<engine>-<rank>`)."""
        return [
            row
            for row in self.rows
            if row.kind == kind and (rank is None or rank == row.engine or rank.startswith(f"{row.engine}-"))
        ]

    def ranks(self) -> list[str]:
        """Names of the folders under ranks/, `<engine>-<rank>`."""
        directory = self.path / "ranks"
        return sorted(entry.name for entry in directory.iterdir() if entry.is_dir()) if directory.is_dir() else []

    @cached_property
    def has_layers(self) -> bool:
        """Whether layers can be told apart: the run has files by layer."""
        return any(self._folded_path(kind, FOLDED_FILES[0], None, True).is_file() for kind in self.steps)

    def self_us(self, kind: str, rank: str | None = None, by_layer: bool = False) -> dict[str, int]:
        """Self time in microseconds by stack, overall or of one of `ranks()`."""
        return self._folded(kind, "folded", rank, by_layer).values

    def calls(self, kind: str, rank: str | None = None, by_layer: bool = False) -> dict[str, int]:
        """Calls by stack, overall or of one of `ranks()`."""
        return self._folded(kind, "calls", rank, by_layer).values

    def skipped_lines(self, kind: str, rank: str | None = None, by_layer: bool = False) -> list[str]:
        """What there is to say of the kind's files: a sentence for each with lines that are not in the format."""
        counts = {suffix: self._folded(kind, suffix, rank, by_layer).invalid_lines for suffix in FOLDED_FILES}
        return [
            f"{self._folded_path(kind, suffix, rank, by_layer)}: {counted(count, 'line')}"
            f" {'is' if count == 1 else 'are'} not in the folded format and {'was' if count == 1 else 'were'} skipped"
            for suffix, count in counts.items()
            if count
        ]

    def torch_traces(self) -> list[Path]:
        """Torch profiler traces gathered under torch/."""
        found = (path for path in files_below(self.path / TORCH_DIR) if ".trace.json" in path.name)
        return sorted(path for path in found if path.is_file())

    def totals(self, first: int = 0, last: int | None = None) -> Iterator[StepTotals]:
        """Per-step totals of the steps `first` to `last` inclusive, without reading the others."""
        with self._totals_file() as (connection, stacks):
            rows = connection.execute(
                "SELECT engine, rank, stage, step, kind, stack_ids, inclusive_ns, calls, spans_made, spans_dropped"
                " FROM totals WHERE step >= ? AND step <= ? ORDER BY engine, rank, step",
                (first, 2**62 if last is None else last),
            )
            for engine, rank, stage, step, kind, ids, inclusive_ns, calls, made, dropped in rows:
                yield StepTotals(
                    engine,
                    rank,
                    stage,
                    step,
                    kind,
                    tuple(stacks[i] for i in array.array("q", ids)),
                    tuple(array.array("q", inclusive_ns)),
                    tuple(array.array("q", calls)),
                    made,
                    dropped,
                )

    def summed(self, group_of: Mapping[tuple[str, int], int]) -> dict[int, list[StepTotals]]:
        """The totals of the steps (engine, index) in `group_of`, summed within each of their groups.

        A group's sums can be given to `sum_overall` and `sum_rank`, as steps' totals can.
        """
        with self._totals_file() as (connection, stacks):
            return sum_steps(connection, stacks, group_of)

    @contextmanager
    def _totals_file(self) -> Iterator[tuple[sqlite3.Connection, dict[int, str]]]:
        """totals.sqlite and its stacks by id; what is wrong in it is told as a VimeOtelError."""
        path = self._file(TOTALS_FILE)
        if not path.is_file():
            raise VimeOtelError(f"{path} is missing; record again")
        connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
        try:
            yield connection, dict(connection.execute("SELECT id, stack FROM stacks"))
        except (sqlite3.DatabaseError, KeyError, ValueError, TypeError) as error:
            raise VimeOtelError(f"{path} can't be read ({error}); record again") from error
        finally:
            connection.close()

    def recording(self) -> Recording:
        """The whole recording as a value."""
        return Recording(self.header, self.rows, list(self.totals()))

    def _file(self, *names: str) -> Path:
        """A file of the run, whose format is known to be ours."""
        _ = self.header
        return self.path.joinpath(*names)

    @cached_property
    def _steps_file(self) -> dict[str, Any]:
        path = self._file(STEPS_FILE)
        return _checked(path, _read_json(path), Steps)

    def _folded_path(self, kind: str, suffix: str, rank: str | None, by_layer: bool) -> Path:
        return self._file(*(("ranks", rank) if rank else ()), _folded_name(kind, suffix, by_layer))

    def _folded(self, kind: str, suffix: str, rank: str | None, by_layer: bool) -> folded.Parsed:
        path = self._folded_path(kind, suffix, rank, by_layer)
        if path not in self._parsed:
            self._parsed[path] = self._read_folded(path, kind, rank, by_layer)
        return self._parsed[path]

    def _read_folded(self, path: Path, kind: str, rank: str | None, by_layer: bool) -> folded.Parsed:
        if kind not in self.steps:
            raise VimeOtelError(f"run {self.id} has no {kind} steps; it has {', '.join(self.steps) or 'none'}")
        if rank is not None and rank not in self.ranks():
            raise VimeOtelError(f"run {self.id} has no rank {rank!r}; it has {', '.join(self.ranks()) or 'none'}")
        if by_layer and not self.has_layers:
            raise VimeOtelError(
                f"run {self.id} does not tell layers apart; record with `vime-otel collect --per-layer` for that"
            )
        try:
            parsed = folded.parse(path.read_text("utf-8").split("\n"))
        except FileNotFoundError as error:
            raise VimeOtelError(f"{path} is missing, but the run recorded {kind} steps; record again") from error
        except (OSError, UnicodeDecodeError) as error:
            raise VimeOtelError(f"{path} can't be read ({_why(error)}); record again") from error
        # A rank's file is rightly empty where its engine had no steps of the kind, that of calls in a run from a file.
        may_be_empty = rank or (path.suffix == ".calls" and "source" in self.header)
        if not parsed.values and (parsed.invalid_lines or not may_be_empty):
            others = f" ({counted(parsed.invalid_lines, 'other')})" if parsed.invalid_lines else ""
            raise VimeOtelError(f"{path} holds no line in the folded format{others}; record again")
        return parsed


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = orjson.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise VimeOtelError(f"{path} is missing; record again") from error
    except (OSError, orjson.JSONDecodeError) as error:
        raise VimeOtelError(f"{path} can't be read ({_why(error)}); record again") from error
    if not isinstance(content, dict):
        raise VimeOtelError(f"{path} holds no JSON object; record again")
    return content


def _checked(path: Path, content: dict[str, Any], hint: type) -> dict[str, Any]:
    try:
        msgspec.convert(content, hint)
    except msgspec.ValidationError as error:
        raise VimeOtelError(f"{path}: {error}; mend it or record again") from error
    return content


def _why(error: Exception) -> str:
    """The reason alone: the path stands in our own sentence."""
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)


def list_runs(root: Path) -> list[RunDirectory]:
    """The runs below `root`, newest first; folders that are no runs are passed over."""
    if not os.path.isdir(root):
        return []
    try:
        entries = list(root.iterdir())
    except OSError as error:
        raise VimeOtelError(f"{root} can't be read ({_why(error)}); name another folder with --runs") from error
    names = sorted((entry.name for entry in entries if os.path.isfile(entry / HEADER_FILE)), reverse=True)
    return [RunDirectory(root / name) for name in names]


def matching(runs: Sequence[RunDirectory], which: str) -> list[RunDirectory]:
    """The runs that a text may mean: the folder of this name, else those whose name or id begins so."""
    name = which.rstrip("/")
    exact = [run for run in runs if run.path.name == name]
    return exact or [run for run in runs if name and (run.path.name.startswith(name) or _id_begins(run, name))]


def ambiguous(which: str, matches: Sequence[RunDirectory]) -> str:
    """What to say when a text may mean several runs."""
    names = [run.path.name for run in matches]
    shown = ", ".join(names[:_NAMES_SHOWN]) + ("" if len(names) <= _NAMES_SHOWN else ", …")
    return f"{which!r} fits {len(names)} runs: {shown}; type more of it, or a folder's name"


def _id_begins(run: RunDirectory, which: str) -> bool:
    try:
        return run.id.startswith(which)
    except VimeOtelError:  # a damaged run is no reason not to find the others
        return False


def find_run(root: Path, which: str = "latest") -> RunDirectory:
    """The run that a RUN argument names: `latest`, the beginning of an id or of a folder's name, or a path."""
    runs = list_runs(root)
    if which == "latest":
        if not runs:
            raise VimeOtelError(f"no runs in {root}; make one with `vime-otel collect`, or name the folder with --runs")
        return runs[0]
    matches = matching(runs, which)
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise VimeOtelError(ambiguous(which, matches))
    if os.path.isdir(which):
        return RunDirectory(Path(which))
    raise VimeOtelError(f"no run {which!r} in {root}, and no such folder; `vime-otel view` lists the runs there are")


__all__ = [
    "ENGINE_PART",
    "FORMAT",
    "HEADER_FILE",
    "JOURNAL_FILE",
    "STEPS_FILE",
    "TORCH_DIR",
    "RunDirectory",
    "ambiguous",
    "find_run",
    "list_runs",
    "matching",
    "new_run_name",
    "runs_root",
    "write_atomically",
    "write_folded_files",
    "write_run",
]
