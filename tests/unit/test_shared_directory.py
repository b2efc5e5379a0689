"""Several engines under one directory: who lives, who is done, which start file it is."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_port import FakePort

from vime_otel.data.rundir import RunDirectory
from vime_otel.recorder.shared_directory import MAX_STEPS, SharedDirectory
from vime_otel.recorder.window import Clock, Command, EngineStep, StepCounts, Window
from vime_otel.recorder.write_directory import write_window


@pytest.fixture
def first(tmp_path: Path) -> Iterator[SharedDirectory]:
    shared = SharedDirectory(tmp_path, "a" * 16)
    shared.enter()
    yield shared
    shared.leave()


@pytest.fixture
def second(tmp_path: Path) -> Iterator[SharedDirectory]:
    shared = SharedDirectory(tmp_path, "b" * 16)
    shared.enter()
    yield shared
    shared.leave()


def start(directory: Path, text: str) -> None:
    (directory / "start").write_text(text)


@pytest.mark.parametrize(
    ("text", "steps", "noted"),
    [
        ("20", 20, False),
        (" 007\n", 7, False),
        ("", 1, True),
        ("many", 1, True),
        ("0", 1, True),
        ("-3", 1, True),
        ("1e3", 1, True),
        ("5 decode", 5, True),
        ("5 force-eager per-layer\n", 5, False),
        ("²", 1, True),
        ("9" * 20, MAX_STEPS, True),
        ("9" * 5000, MAX_STEPS, True),
    ],
)
def test_a_start_file_says_how_many_steps(first: SharedDirectory, text: str, steps: int, noted: bool) -> None:
    start(first.directory, text)
    found = first.start()
    assert found is not None
    assert found.steps == steps
    assert bool(found.note) == noted, "what is not taken as it stands is told"
    assert (found.force_eager, found.per_layer) == ("force-eager" in text, "per-layer" in text)


def test_engines_of_a_group_begin_where_the_first_of_them_proposed(
    first: SharedDirectory, second: SharedDirectory
) -> None:
    start(first.directory, "5")
    found = first.start()
    assert found is not None
    assert first.agree(found.key, "a" * 16, (3, 70)) == (3, 70)
    assert second.agree(found.key, "a" * 16, (3, 90)) == (3, 70)
    assert second.agree(found.key, "b" * 16, (1, 0)) == (1, 0)
    assert set(first.living()) == {"a" * 16, "b" * 16}
    first.remove_start(found.key)
    assert second.agree(found.key, "a" * 16, (3, 90)) == (3, 90)


def test_nobody_proposes_before_all_of_the_group_wait(first: SharedDirectory, second: SharedDirectory) -> None:
    assert first.agree("k", "a" * 16, (3, 70), members=2) is None
    assert second.agree("k", "b" * 16, (1, 0), members=2) is None, "another group counts for itself"
    assert first.agree("k", "a" * 16, (3, 80), members=2) is None
    assert second.agree("k", "a" * 16, (3, 90), members=2) == (3, 90)
    assert first.agree("k", "a" * 16, (3, 99), members=2) == (3, 90)
    assert second.agree("k", "a" * 16, (3, 99), members=2) == (3, 90)


def test_one_of_the_group_may_propose_alone_when_it_waits_no_more(first: SharedDirectory) -> None:
    assert first.agree("k", "a" * 16, (3, 70), members=2) is None
    assert first.agree("k", "a" * 16, (3, 200)) == (3, 200)


def test_a_start_file_of_random_bytes_means_one_step(first: SharedDirectory) -> None:
    (first.directory / "start").write_bytes(bytes(range(256)) * 1000)
    found = first.start()
    assert found is not None
    assert found.steps == 1


def test_after_the_folder_was_removed_an_engine_enters_again(first: SharedDirectory) -> None:
    assert first.entered()
    shutil.rmtree(first.directory)
    assert not first.entered()
    first.enter()
    assert first.entered()
    assert list(first.living()) == ["a" * 16]


def test_without_a_start_file_there_is_nothing_to_do(first: SharedDirectory) -> None:
    assert first.start() is None


def test_a_start_file_that_can_not_be_read_is_no_removed_one(first: SharedDirectory) -> None:
    (first.directory / "start").symlink_to("start")
    with pytest.raises(OSError, match="Too many levels"):
        first.start()


def test_a_lock_that_another_process_keeps_is_not_waited_for_for_ever(
    first: SharedDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vime_otel.recorder.shared_directory.LOCK_SECONDS", 0.1)
    with first.locked(), pytest.raises(OSError, match=r"\.lock is locked by another process"), first.locked():
        pass
    with first.locked():
        pass


def test_each_new_start_file_is_told_from_the_last(first: SharedDirectory) -> None:
    keys = set()
    for time_ns in (1, 2):
        start(first.directory, "5")
        os.utime(first.directory / "start", ns=(time_ns, time_ns))
        found = first.start()
        assert found is not None
        keys.add(found.key)
    assert len(keys) == 2


def test_all_engines_derive_the_same_key(first: SharedDirectory, second: SharedDirectory) -> None:
    start(first.directory, "5")
    assert first.start() == second.start()


def test_all_are_done_only_when_each_living_one_is(first: SharedDirectory, second: SharedDirectory) -> None:
    first.mark_done("k1")
    assert not first.all_done("k1")
    second.mark_done("k1")
    assert first.all_done("k1")
    assert second.all_done("k1")


def test_one_that_left_is_waited_for_no_more(first: SharedDirectory, second: SharedDirectory) -> None:
    first.mark_done("k1")
    second.leave()
    assert first.all_done("k1")


@contextmanager
def killed_in_the_end(directory: Path, then: str = "") -> Iterator[None]:
    """Another engine, `c…`, that does something under the directory and is killed when the block ends."""
    code = (
        "import sys; from pathlib import Path; from vime_otel.recorder.shared_directory import SharedDirectory\n"
        f"engine = SharedDirectory(Path({str(directory)!r}), 'c' * 16); engine.enter(); {then}\n"
        "print('in', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"in\n"
        try:
            yield
        finally:
            other.kill()


def test_one_that_was_killed_is_waited_for_no_more(first: SharedDirectory) -> None:
    with killed_in_the_end(first.directory):
        assert set(first.living()) == {"a" * 16, "c" * 16}
    assert set(first.living()) == {"a" * 16}


@pytest.mark.parametrize(
    ("then", "labels"),
    [
        ("engine.mark_begun('0123456789abcdef', 'host:8001/0')", ["host:8001/0"]),
        (
            "engine.mark_begun('0123456789abcdef', 'h:pid-1/0'); engine.mark_begun('0123456789abcdef', 'h:1/0')",
            ["h:1/0"],
        ),
        ("engine.mark_begun('0123456789abcdef', 'h:1/0'); engine.mark_done('0123456789abcdef')", []),
        ("engine.mark_begun('fedcba9876543210', 'h:1/0')", []),
        ("", []),
    ],
)
def test_who_was_killed_while_it_recorded_has_vanished(first: SharedDirectory, then: str, labels: list[str]) -> None:
    with killed_in_the_end(first.directory, then):
        first.living()
        assert first.vanished("0123456789abcdef") == []
    first.living()
    assert first.vanished("0123456789abcdef") == labels
    first.remove_start("0123456789abcdef")


def test_a_newer_start_file_is_not_removed(first: SharedDirectory) -> None:
    start(first.directory, "5")
    old = first.start()
    assert old is not None
    (first.directory / "start").unlink()
    start(first.directory, "6")
    os.utime(first.directory / "start", ns=(1, 1))
    first.remove_start(old.key)
    assert (first.directory / "start").exists()
    new = first.start()
    assert new is not None
    first.remove_start(new.key)
    assert not (first.directory / "start").exists()


def one_step(key: str) -> Window:
    """What an engine recorded for the start file of that key: one decode step."""
    steps = [EngineStep(0, StepCounts("decode", False, 0, 1, 1), 0, 1, 8, 9, position=0)]
    description = {"engine": "a" * 16, **FakePort().describe()}
    return Window(Command(key, 1), description, Clock("boot", 0, 0), steps)


def test_a_groups_recording_tells_which_engine_could_not_join(first: SharedDirectory, second: SharedDirectory) -> None:
    start(first.directory, "1")
    found = first.start()
    assert found is not None
    recorded = one_step(found.key)
    write_window(recorded, first.directory, found.key)
    engine = {**recorded.engine, "engine": "b" * 16}
    late = replace(recorded, engine=engine, steps=[], reasons=["late"], outcome="failed")
    write_window(late, first.directory, found.key)
    run = RunDirectory(first.directory)
    assert (run.header["complete"], run.header["reasons"], run.steps) == (False, ["late"], {"decode": 1})
    assert [(engine["id"][0], engine["complete"]) for engine in run.header["engines"]] == [("a", True), ("b", False)]
    assert first.start() is None


@pytest.mark.parametrize("killed_first", [True, False])
def test_a_run_without_an_engine_that_was_killed_is_not_complete(first: SharedDirectory, killed_first: bool) -> None:
    start(first.directory, "1")
    found = first.start()
    assert found is not None
    window = one_step(found.key)
    with killed_in_the_end(first.directory, f"engine.mark_begun({found.key!r}, 'host:8001/0')"):
        if not killed_first:
            write_window(window, first.directory, found.key)
            assert first.start() is not None, "the other one is waited for"
    write_window(window if killed_first else None, first.directory, found.key)
    header = RunDirectory(first.directory).header
    assert (header["complete"], header["reasons"]) == (False, ["host:8001/0: it vanished while recording"])
    assert first.start() is None
    assert first.vanished(found.key) == []


def test_an_engine_that_is_killed_between_two_looks_is_named(
    first: SharedDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(first.directory, "1")
    found = first.start()
    assert found is not None
    window = one_step(found.key)
    with ExitStack() as other:
        other.enter_context(killed_in_the_end(first.directory, f"engine.mark_begun({found.key!r}, 'host:8001/0')"))

        def killed_right_before(shared: SharedDirectory, key: str, original: Any = SharedDirectory.mark_done) -> None:
            other.close()
            original(shared, key)

        monkeypatch.setattr(SharedDirectory, "mark_done", killed_right_before)
        write_window(window, first.directory, found.key)
    assert RunDirectory(first.directory).header["reasons"] == ["host:8001/0: it vanished while recording"]


def test_marking_done_needs_no_room_on_the_disk(first: SharedDirectory) -> None:
    path = first.directory / ".engines" / ("a" * 16)
    before = path.stat()
    assert first.living() == {"a" * 16: ""}
    first.mark_done("0123456789abcdef")
    assert (path.stat().st_ino, path.stat().st_size) == (before.st_ino, before.st_size)
    assert first.living() == {"a" * 16: "0123456789abcdef"}
