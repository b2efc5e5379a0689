"""Reading a run directory; see docs/formats.md."""

from __future__ import annotations

import array
import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import orjson

from . import folded
from .errors import VimeOtelError
from .folders import files_below
from .recording import Recording, StepRow, StepTotals
from .run_files import FOLDED_FILES, FORMAT, HEADER_FILE, STEPS_FILE, TORCH_DIR, TOTALS_FILE, folded_name
from .run_format import Header, Steps
from .step_sums import sum_steps
from .summary import counted


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
        return self._file(*(("ranks", rank) if rank else ()), folded_name(kind, suffix, by_layer))

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
