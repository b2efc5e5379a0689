"""Stored examples of every format stay readable, and docs/formats.md shows what is really read."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from collector.journal.replay import restore, totals_of
from collector.journal.request_journal import KnownRequests
from collector.recordings.messages import read_poll, read_recording_request
from collector.totals.sums import Sums
from vime_otel.data.journal import MAGIC, JournalReader
from vime_otel.data.run_files import FORMAT
from vime_otel.data.rundir import RunDirectory
from vime_otel.data.write_run import write_run

STORED = Path(__file__).parents[1] / "data" / "run-v1"
"""A recording of one engine of two ranks: a prefill step and two decode steps."""

DOCUMENT = (Path(__file__).parents[2] / "docs" / "formats.md").read_text()


@pytest.fixture
def run() -> RunDirectory:
    return RunDirectory(STORED)


def documented(start: str) -> list[dict[str, Any]]:
    """The JSON objects of the document's block that begins so, one or one a line."""
    (block,) = [b for b in re.findall(r"```json\n(.*?)```", DOCUMENT, re.S) if b.startswith(start)]
    try:
        return [json.loads(block)]
    except ValueError:
        return [json.loads(line) for line in block.splitlines()]


def test_a_stored_run_is_read(run: RunDirectory) -> None:
    assert run.id == "94f40cd57b85b001"
    assert run.header["format"] == FORMAT
    assert run.steps == {"decode": 2, "prefill": 1}
    assert [(row.index, row.kind, row.interval_ns) for row in run.rows] == [
        (0, "prefill", 9000),
        (1, "decode", 9000),
        (2, "decode", 9000),
    ]
    assert run.self_us("decode")["step;execute_model;mlp:Block"] == 3
    assert run.calls("decode", "af8352653800853c-1")["step;execute_model"] == 2


def test_stored_totals_are_read_by_any_range_of_steps(run: RunDirectory) -> None:
    assert len(list(run.totals())) == 9
    assert {part.index for part in run.totals(1, 1)} == {1}
    (rank,) = [part for part in run.totals(0, 0) if part.rank == "1"]
    assert dict(zip(rank.stacks, rank.inclusive_ns, strict=True)) == {
        "step;execute_model": 4000,
        "step;execute_model;mlp:Block": 1400,
        "step;sample_tokens": 1100,
    }


def test_writing_a_stored_run_again_gives_the_same_files(run: RunDirectory, tmp_path: Path) -> None:
    write_run(tmp_path, run.recording())
    for path in STORED.glob("**/*"):
        if path.suffix in (".folded", ".calls"):
            assert (tmp_path / path.relative_to(STORED)).read_bytes() == path.read_bytes(), path.name
    assert RunDirectory(tmp_path).recording() == run.recording()


def test_a_stored_journal_gives_the_same_totals(run: RunDirectory) -> None:
    journal = STORED / "spans.otlp"
    assert journal.read_bytes().startswith(MAGIC)
    reader, sums = JournalReader(journal), Sums(run.id)
    restore(reader, sums, KnownRequests())
    assert reader.torn_bytes == 0
    assert sums.received_spans == 36
    assert sorted(totals_of(journal), key=lambda part: part.key) == list(run.totals())


def test_a_journal_that_is_cut_off_gives_what_it_holds(tmp_path: Path) -> None:
    copy = tmp_path / "spans.otlp"
    shutil.copy(STORED / "spans.otlp", copy)
    whole = len(list(JournalReader(copy)))
    with open(copy, "r+b") as file:
        file.truncate(copy.stat().st_size - 1)
    reader = JournalReader(copy)
    assert len(list(reader)) == whole - 1
    assert reader.torn_bytes > 0


def test_a_run_of_another_version_is_refused_with_a_way_out(tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(STORED, copy)
    header = json.loads((copy / "recording.json").read_text())
    (copy / "recording.json").write_text(json.dumps({**header, "format": FORMAT + 1}))
    with pytest.raises(Exception, match="read it with the version of vime-otel that wrote it"):
        _ = RunDirectory(copy).id


def test_the_documented_poll_is_what_the_collector_reads() -> None:
    (body,) = documented('{"protocol"')
    poll = read_poll(body)
    assert poll.recorder.engine == body["recorder"]["engine"]
    assert poll.status.phase == "idle"


def test_the_documented_request_names_every_field_with_its_default() -> None:
    (body,) = documented('{"steps"')
    assert read_recording_request(body) == read_recording_request({"router": body["router"]})


def test_the_documented_header_keys_are_those_of_a_run(run: RunDirectory) -> None:
    paragraph = DOCUMENT[DOCUMENT.index("`recording.json`:") : DOCUMENT.index("`steps.json`:")]
    for key in run.header:
        assert f"`{key}`" in paragraph, key
    for key in run.header["engines"][0]:
        assert f"`{key}`" in paragraph, key
