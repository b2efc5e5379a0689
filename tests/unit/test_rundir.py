"""Run directories: written whole, read lazily, found by what people type."""

from __future__ import annotations

import html
import io
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import ENGINES, LAYERS, RECORDING_ID, by_layer, idle_row, sample_recording, write_sample

from viewer.app import create_app
from vime_otel.cli.main import main
from vime_otel.data.errors import VimeOtelError
from vime_otel.data.find_runs import find_run, list_runs, runs_root
from vime_otel.data.recording import Recording
from vime_otel.data.rundir import RunDirectory
from vime_otel.data.write_run import new_run_name, write_atomically, write_run

STORED = Path(__file__).parents[1] / "data" / "run-v1"


def test_what_was_written_is_read(tmp_path: Path) -> None:
    recording = sample_recording()
    run = RunDirectory(write_sample(tmp_path, recording))
    read = run.recording()
    assert read.header == {"format": 1, **recording.header}
    assert read.rows == recording.rows
    assert sorted(read.totals, key=lambda part: part.key) == sorted(recording.totals, key=lambda part: part.key)
    assert run.id == RECORDING_ID
    assert run.steps == recording.steps()
    assert run.ranks() == [f"{engine}-{rank}" for engine in ENGINES for rank in ("0", "1")]


def test_a_range_of_steps_is_read_alone(tmp_path: Path) -> None:
    run = RunDirectory(write_sample(tmp_path))
    assert {part.index for part in run.totals(3, 5)} == {3, 4, 5}
    assert {part.index for part in run.totals(18)} == {18, 19}


def test_engines_are_summed_and_ranks_averaged(tmp_path: Path) -> None:
    recording = sample_recording()
    run = RunDirectory(write_sample(tmp_path, recording))
    decode = [row for row in recording.rows if row.kind == "decode"]
    # An engine's own frames count once for each of its steps, though it has two ranks.
    assert run.calls("decode")["step"] == len(decode)
    assert run.calls("decode")["step;execute_model"] == len(decode)
    one = run.calls("decode", f"{ENGINES[0]}-1")
    assert one["step;execute_model"] == len(decode) // 2
    ranks = [run.self_us("decode", rank) for rank in run.ranks()]
    stack = "step;execute_model;preprocess"
    assert run.self_us("decode")[stack] == pytest.approx(sum(rank[stack] for rank in ranks) / 2, abs=len(ranks))


def test_the_sum_of_a_file_is_the_time_on_the_clock(tmp_path: Path) -> None:
    recording = sample_recording()
    run = RunDirectory(write_sample(tmp_path, recording))
    for kind, steps in recording.steps().items():
        stacks = run.self_us(kind)
        clock_us = sum(row.interval_ns for row in recording.rows if row.kind == kind) / 1000
        # The ranks wait for the slower one; beyond that only rounding.
        assert sum(stacks.values()) == pytest.approx(clock_us, rel=0.02), steps


def test_versions_are_stored_and_checked(tmp_path: Path) -> None:
    path = write_sample(tmp_path)
    connection = sqlite3.connect(path / "totals.sqlite")
    assert connection.execute("PRAGMA user_version").fetchone() == (1,)
    connection.close()
    header = orjson.loads((path / "recording.json").read_bytes())
    (path / "recording.json").write_bytes(orjson.dumps(header | {"format": 2}))
    with pytest.raises(VimeOtelError, match="has format 2, this version reads 1"):
        assert RunDirectory(path).header


def test_nothing_temporary_is_left(tmp_path: Path) -> None:
    path = write_sample(tmp_path)
    assert not [file for file in path.rglob("*") if file.name.startswith(".")]


def test_a_file_that_cannot_be_renamed_leaves_no_trace(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(OSError, match="taken"):
        write_atomically(tmp_path / "taken", b"x")
    assert [entry.name for entry in tmp_path.iterdir()] == ["taken"]


def test_names_sort_by_time_and_hold_nothing_unusual() -> None:
    when = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
    assert new_run_name("0123456789abcdef", None, when) == "20260102T030405Z-01234567"
    assert new_run_name("0123456789abcdef", "a b/../c", when) == "20260102T030405Z-01234567-a_b_.._c"
    assert len(new_run_name("0123456789abcdef", "x" * 500, when)) < 120


def test_runs_are_found_by_what_people_type(tmp_path: Path) -> None:
    names = ["20260101T000000Z-aaaa0000", "20260102T000000Z-aaaa1111-label", "20260103T000000Z-bbbb2222"]
    for name in names:
        write_run(tmp_path / name, Recording({"id": name.split("-")[1] * 2}))
    (tmp_path / "20270101T000000Z-unfinished").mkdir()
    assert [run.path.name for run in list_runs(tmp_path)] == names[::-1]
    assert find_run(tmp_path).path.name == names[2]
    assert find_run(tmp_path, "aaaa1").path.name == names[1]
    assert find_run(tmp_path, names[0]).path.name == names[0]
    assert find_run(tmp_path, "20260102T").path.name == names[1]
    write_run(tmp_path / f"{names[0]}-more", Recording({"id": "c" * 16}))
    assert find_run(tmp_path, f"{names[0]}/").path.name == names[0]
    assert find_run(tmp_path / "elsewhere", str(tmp_path / names[0])).path.name == names[0]
    for wanted, message in (
        ("aaaa", rf"fits 2 runs: {names[1]}, {names[0]}; type more of it, or a folder's name"),
        ("2026", "fits 4 runs"),
        ("zzzz", "no run 'zzzz'"),
        ("z" * 5000, "no run 'zzzz"),
        (str(tmp_path / "20270101T000000Z-unfinished"), "is not a run: it has no recording.json"),
    ):
        with pytest.raises(VimeOtelError, match=message):
            find_run(tmp_path, wanted)
    with pytest.raises(VimeOtelError, match="no runs in"):
        find_run(tmp_path / "elsewhere")


def test_the_root_comes_from_the_option_or_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VIME_OTEL_RUNS", raising=False)
    assert runs_root() == Path("runs")
    monkeypatch.setenv("VIME_OTEL_RUNS", "/tmp/elsewhere")
    assert runs_root() == Path("/tmp/elsewhere")
    assert runs_root("here") == Path("here")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("recording.json", b"{", "can't be read"),
        ("recording.json", b"[]", "holds no JSON object"),
        (
            "steps.json",
            b'{"steps": {}, "rows": [{}]}',
            r"steps\.json: Object missing required field `engine` - at `\$\.rows\[0\]`; mend it or",
        ),
        ("totals.sqlite", b"no database", "can't be read"),
        ("steps.json", None, "is missing"),
        ("totals.sqlite", None, "is missing"),
    ],
)
def test_damage_is_told_in_one_line(tmp_path: Path, name: str, content: bytes | None, message: str) -> None:
    path = write_sample(tmp_path)
    if content is None:
        (path / name).unlink()
    else:
        (path / name).write_bytes(content)
    with pytest.raises(VimeOtelError, match=message) as told:
        RunDirectory(path).recording()
    assert "\n" not in str(told.value)


def test_asking_for_what_is_not_there(tmp_path: Path) -> None:
    run = RunDirectory(write_sample(tmp_path))
    with pytest.raises(VimeOtelError, match="has no rank 'x'; it has"):
        run.self_us("decode", "x")
    with pytest.raises(VimeOtelError, match="has no idle steps; it has decode, prefill"):
        run.self_us("idle")


def test_a_rank_without_steps_of_a_kind_has_empty_files(tmp_path: Path) -> None:
    recording = sample_recording()
    one = recording.select(lambda row: row.kind == "decode" or row.engine == ENGINES[0])
    run = RunDirectory(write_sample(tmp_path, one))
    assert run.self_us("prefill", f"{ENGINES[1]}-0") == {}


def test_every_reader_looks_at_the_header_first(tmp_path: Path) -> None:
    path = write_sample(tmp_path)
    (path / "recording.json").write_text('{"format": 99}')
    readers: list[Callable[[RunDirectory], Any]] = [
        lambda run: run.rows,
        lambda run: run.steps,
        lambda run: run.self_us("decode"),
        lambda run: run.calls("decode"),
        lambda run: list(run.totals()),
    ]
    for read in readers:
        with pytest.raises(VimeOtelError, match="has format 99"):
            read(RunDirectory(path))


def test_files_that_refuse_to_be_read_are_told_in_one_line(tmp_path: Path) -> None:
    run = RunDirectory(write_sample(tmp_path))
    (run.path / "decode.folded").unlink()
    (run.path / "decode.folded").mkdir()
    with pytest.raises(VimeOtelError, match=r"decode\.folded can't be read \(Is a directory\); record again"):
        run.self_us("decode")


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stored run of few steps, for tests that damage it."""
    path = tmp_path_factory.mktemp("damaged") / "run"
    shutil.copytree(STORED, path)
    return path


@pytest.mark.parametrize("name", ["recording.json", "steps.json"])
@settings(max_examples=settings.default.max_examples // 4)  # each runs two commands
@given(data=st.data())
def test_any_wrong_value_is_harmless_or_one_line_that_names_it(damaged: Path, name: str, data: st.DataObject) -> None:
    document = orjson.loads((STORED / name).read_bytes())
    place = data.draw(st.sampled_from(list(places_in(document))))
    value = data.draw(st.sampled_from([None, True, -1, 5, 2**62, 1.5, 1e308, "", "x", [], [None], {}, {"x": None}]))
    change(document, place, value)
    (damaged / name).write_bytes(orjson.dumps(document))
    try:
        run = RunDirectory(damaged)
        _ = run.header, run.rows, run.steps
        complaint = None
    except VimeOtelError as error:
        complaint = str(error)
        assert name in complaint
        assert str(place[0]) in complaint
        assert "\n" not in complaint
    client = create_app(damaged.parent).test_client()
    listing, page = client.get("/"), client.get("/runs/run", follow_redirects=True)
    shown, told = io.StringIO(), io.StringIO()
    with redirect_stdout(shown), redirect_stderr(told):
        statuses = {main([command, str(damaged)]) for command in ("top", "export")}
    (damaged / name).write_bytes((STORED / name).read_bytes())
    assert listing.status_code == 200
    assert ("unreadable" in listing.text) == bool(complaint)
    assert "this is a bug" not in told.getvalue()
    if complaint:
        assert page.status_code == 500
        assert complaint in html.unescape(page.text)
        assert statuses == {1}
        assert told.getvalue() == f"error: {complaint}\n" * 2
    else:
        assert page.status_code == 200 or "has no decode steps" in told.getvalue(), page.text


def places_in(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every value within a JSON document."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*place, key)
        yield from places_in(item, (*place, key))


def change(document: Any, place: tuple[Any, ...], value: Any) -> None:
    for key in place[:-1]:
        document = document[key]
    document[place[-1]] = value


def test_layers_have_files_of_their_own_and_the_others_stay_as_they_are(tmp_path: Path) -> None:
    merged = RunDirectory(write_sample(tmp_path / "merged"))
    path = write_sample(tmp_path / "layers", by_layer(sample_recording()))
    run = RunDirectory(path)
    assert (merged.has_layers, run.has_layers) == (False, True)
    assert not list(merged.path.rglob("*.layers.*"))
    for rank in (None, *run.ranks()):
        for kind in run.steps:
            assert run.self_us(kind, rank) == merged.self_us(kind, rank)
            assert run.calls(kind, rank) == merged.calls(kind, rank)
            layered = run.self_us(kind, rank, by_layer=True)
            assert sum(layered.values()) == pytest.approx(sum(run.self_us(kind, rank).values()), abs=len(layered))
    attention = "self_attn:Qwen3MoeAttention"
    stack = next(stack for stack in run.calls("decode") if stack.endswith(attention))
    third = stack.replace("Qwen3MoeDecoderLayer", "layers.3:Qwen3MoeDecoderLayer")
    assert run.calls("decode", by_layer=True)[third] * LAYERS == run.calls("decode")[stack]
    assert any(third in part.stacks for part in run.totals(3, 3))
    with pytest.raises(VimeOtelError, match="does not tell layers apart; record with `vime-otel collect --per-layer`"):
        merged.self_us("decode", by_layer=True)


def test_a_run_without_layers_in_the_same_folder_takes_their_files_away(tmp_path: Path) -> None:
    write_run(tmp_path, by_layer(sample_recording()))
    write_run(tmp_path, sample_recording())
    assert not list(tmp_path.rglob("*.layers.*"))


def test_idle_steps_are_rows_and_count_nowhere(tmp_path: Path) -> None:
    whole = sample_recording()
    rows = [*whole.rows, *(idle_row("c" * 16, index) for index in range(3))]
    run = RunDirectory(write_sample(tmp_path, Recording(whole.header, rows, whole.totals)))
    assert run.steps == {"decode": 36, "prefill": 4}
    assert [row.kind for row in run.rows[-3:]] == ["idle"] * 3
    assert not list(run.path.rglob("idle*"))


def test_totals_that_can_not_be_written_leave_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full_disk(*_: Any) -> bool:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr("vime_otel.data.write_run.insert_totals", full_disk)
    with pytest.raises(sqlite3.OperationalError):
        write_run(tmp_path, sample_recording())
    assert list(tmp_path.glob(".totals*")) == []
