"""Windows that nobody takes: they wait within bounds, and arrive once somebody does, also after the engine's end."""

from __future__ import annotations

import array
import errno
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_sending import window
from waiting_windows import span_ids

from vime_otel.data.errors import Unavailable, VimeOtelError
from vime_otel.recorder.assemble import assemble
from vime_otel.recorder.delivery import Delivery
from vime_otel.recorder.outbox import Outbox, Parcel, Unreadable, pack, unpack
from vime_otel.recorder.outbox_store import FOLDER, FolderStore, MemoryStore
from vime_otel.recorder.shrink import fold_oldest
from vime_otel.recorder.window import Window

ENGINE = "e" * 16
TOKEN = "s3cret-of-these-tests"


def totals(of: Window) -> list[Any]:
    """What is summed of each part: by stack, and how many spans were made."""
    found = []
    for step in assemble(of):
        for part in (each.totals for each in step.parts):
            sums = sorted(zip(part.stacks, part.inclusive_ns, part.calls, strict=True))
            found.append((part.key, part.kind, part.stage, part.spans_made, sums))
    return found


def entry_bytes(of: Window) -> int:
    return sum(len(log.entries) + len(log.device) for log in of.ranks)


@st.composite
def windows(draw: st.DrawFn) -> Window:
    """Windows with any trees, on the host's clock alone or on a device's, too."""
    made = window(steps=draw(st.integers(1, 5)), spans=1)
    device = draw(st.booleans())
    logs = []
    for log in made.ranks:
        entries, marks, starts = array.array("q"), array.array("q"), []
        for step in made.steps:
            starts.append(len(entries))
            at = step.schedule_start + 100
            for depth in draw(st.lists(st.integers(0, 3), max_size=6)):
                for level in range(depth, -1, -1):  # children end, and are written, before their parents
                    entries.extend((1 + level, at + level, at + 100 - level))
                    marks.extend((at + 5 + level, at + 90 - level))
                at += 200
        logs.append(replace(log, entries=entries.tobytes(), starts=starts, device=marks.tobytes() if device else b""))
    return replace(made, ranks=logs)


@given(windows(), st.integers(0, 4000))
def test_folding_the_oldest_steps_frees_what_is_asked_and_changes_no_sum(made: Window, wanted: int) -> None:
    shrunk, steps = fold_oldest(made, wanted)
    assert totals(shrunk) == totals(made)
    freed = entry_bytes(made) - entry_bytes(shrunk)
    everything, _ = fold_oldest(made, 2**62)
    assert freed >= min(wanted, entry_bytes(made) - entry_bytes(everything))
    assert shrunk.shortened == steps
    dropped = [sum(part.totals.spans_dropped for part in step.parts) > 0 for step in assemble(shrunk)]
    spans = [sum(len(part.spans) for part in step.rank_parts) for step in assemble(shrunk)]
    assert all(not kept for drop, kept in zip(dropped, spans, strict=True) if drop), "whole steps alone"


@given(windows(), st.integers(0, 4000))
def test_a_window_that_is_sent_again_has_the_same_span_ids(made: Window, wanted: int) -> None:
    assert span_ids(unpack(pack(Parcel("collector", made))).window) == span_ids(made)
    shrunk, _ = fold_oldest(made, wanted)
    for before, after in zip(span_ids(made), span_ids(shrunk), strict=True):
        assert set(after) <= set(before)


def test_two_windows_have_different_span_ids() -> None:
    ids = [each for made in (window(2, 3), window(2, 3)) for step in span_ids(made) for each in step[1:]]
    assert len(set(ids)) == len(ids)


@given(windows(), st.data())
def test_a_parcel_comes_back_whole_or_not_at_all(made: Window, data: st.DataObject) -> None:
    parcel = Parcel("otlp", replace(made, events={("sleep", 1): 2}), taken=7)
    packed = pack(parcel)
    assert unpack(packed) == parcel
    position = data.draw(st.integers(0, len(packed) - 1))
    damaged = packed[:position] + bytes([packed[position] ^ 1]) + packed[position + 1 :]
    for wrong in (packed[:position], damaged):
        with pytest.raises(Unreadable):
            unpack(wrong)


def boxed(most_bytes: int, *made: Window) -> tuple[Outbox, list[str]]:
    box = Outbox(MemoryStore(), most_bytes)
    for each in made:
        box.put(Parcel("collector", each))
    return box, [loss.sentence for loss in box.make_room()]


def test_over_the_bound_the_oldest_spans_go_first_and_totals_stay() -> None:
    first, second = window(4, 200), window(4, 200)
    size = len(pack(Parcel("collector", first)))
    box, told = boxed(2 * size - 8000, first, second)
    older, newer = (box.get(name).window for name in box.names())
    assert 0 < older.shortened < 4
    assert newer == second
    assert sum(box.store.sizes().values()) <= 2 * size - 8000
    assert (totals(older), totals(newer)) == (totals(first), totals(second))
    dropped = [sum(part.totals.spans_dropped for part in step.parts) for step in assemble(older)]
    assert dropped == sorted(dropped, reverse=True), "the oldest steps"
    assert f"the spans of {older.shortened} steps" in told[0]
    assert "VIME_OTEL_OUTBOX_MIB" in older.notes[-1]


def test_when_no_spans_are_left_whole_windows_go_and_that_is_told() -> None:
    made = [window(2, 50) for _ in range(3)]
    smallest = len(pack(Parcel("collector", fold_oldest(made[0], 2**62)[0])))
    box, told = boxed(int(1.5 * smallest), *made)
    (left,) = box.names()
    assert box.get(left).window.id_seed == made[2].id_seed
    assert [sentence for sentence in told if "with all its totals" in sentence] == told[-2:]


def test_of_sampled_steps_only_what_is_sent_is_kept() -> None:
    sampled = window(3, 200)
    sampled = replace(sampled, command=replace(sampled.command, totals_only=True))
    box, told = boxed(2**30, sampled)
    kept = box.get(box.names()[0]).window
    assert entry_bytes(kept) == 2 * 3 * 24
    assert (totals(kept), kept.notes, told) == (totals(sampled), [], [])


class Told:
    """Keeps what a delivery had to drop: sentences, and the recordings that went whole."""

    def __init__(self) -> None:
        self.lost: list[tuple[str, str]] = []

    def add(self, sentence: str, recording: str) -> None:
        self.lost.append((sentence, recording))


class Taking:
    """Stands for the sending of parcels: notes what it gets, and fails as told."""

    def __init__(self) -> None:
        self.taken: list[str] = []
        self.away: set[str] = set()
        self.refused: set[str] = set()
        self.broken: set[str] = set()

    def send(self, parcel: Parcel, note: Any) -> None:
        recording = parcel.window.command.recording
        if recording in self.away:
            raise Unavailable("nobody is there")
        if recording in self.refused:
            raise VimeOtelError("no such recording")
        if recording in self.broken:
            raise KeyError(recording)
        self.taken.append(recording)


def named(recording: str) -> Parcel:
    made = window(1, 1)
    return Parcel("collector", replace(made, command=replace(made.command, recording=recording)))


@pytest.fixture
def told() -> Told:
    return Told()


def test_one_that_is_never_taken_keeps_the_others_from_nothing(tmp_path: Path, told: Told) -> None:
    delivery, taking = Delivery(ENGINE, tmp_path, 2**30, told.add), Taking()
    for recording in ("first", "stuck", "third"):
        delivery.keep(named(recording))
    taking.away = {"stuck"}
    for _ in range(2):
        delivery.send_waiting(taking.send, "collector")
    assert taking.taken == ["first", "third"]
    assert delivery.waiting("collector") == 1
    delivery.close()


def test_what_is_refused_for_good_is_dropped_and_told(tmp_path: Path, told: Told) -> None:
    delivery, taking = Delivery(ENGINE, tmp_path, 2**30, told.add), Taking()
    taking.refused = {"unknown"}
    delivery.keep(named("unknown"))
    delivery.keep(named("known"))
    refused, sent = delivery.send_waiting(taking.send, "collector")
    assert refused.sentence.endswith("is dropped: no such recording")
    assert (sent.error, taking.taken) == (None, ["known"])
    assert not (tmp_path / ENGINE).exists(), "an empty outbox leaves no folder"


def test_one_that_can_not_be_assembled_keeps_the_others_from_nothing(tmp_path: Path, told: Told) -> None:
    delivery, taking = Delivery(ENGINE, tmp_path, 2**30, told.add), Taking()
    for recording in ("broken", "second"):
        delivery.keep(named(recording))
    taking.broken = {"broken"}
    assert delivery.send_waiting(taking.send, "collector") == []
    assert delivery.trouble == "the exporter failed: KeyError('broken')"
    delivery.send_waiting(taking.send, "collector")
    assert (taking.taken, delivery.waiting("collector")) == (["second"], 1)
    delivery.close()


def test_one_that_is_removed_while_another_waits_is_told_with_its_recording_once(tmp_path: Path, told: Told) -> None:
    delivery, taking = Delivery(ENGINE, tmp_path, 2**30, told.add), Taking()
    name = delivery.keep(named("removed"))
    delivery.keep(named("stuck"))
    taking.away = {"stuck"}
    (tmp_path / ENGINE / FOLDER / name).unlink()
    (outcome,) = delivery.send_waiting(taking.send, "collector")
    assert (outcome.recording, outcome.error) == (
        "removed",
        "what was recorded is lost: it had to wait, and was removed",
    )
    assert delivery.send_waiting(taking.send, "collector") == []
    delivery.close()


def test_one_that_is_dropped_for_want_of_room_is_told_with_its_recording_once(told: Told) -> None:
    smallest = len(pack(named("first")))
    delivery, taking = Delivery(ENGINE, None, int(1.5 * smallest), told.add), Taking()
    for recording in ("first", "second"):
        delivery.keep(named(recording))
    dropped = "recording first, which had waited, was dropped with all its totals for want of room"
    assert [(sentence, recording) for sentence, recording in told.lost if recording] == [(dropped, "first")]
    outcomes = delivery.send_waiting(taking.send, "collector")
    assert [(outcome.recording, outcome.error) for outcome in outcomes] == [("second", None)]


def test_the_next_exporter_of_an_engine_takes_up_its_folder_and_keeps_on_using_it(tmp_path: Path, told: Told) -> None:
    first = Delivery(ENGINE, tmp_path, 2**30, told.add)
    first.keep(named("left"))
    first.close()  # as its process does that ends
    for take in (Delivery.take_up, Delivery.adopt):
        second = Delivery(ENGINE, tmp_path, 2**30, told.add)
        take(second)
        assert second.waiting("collector") >= 1
        second.keep(named("new"))
        assert not second.in_memory
        second.close()


def test_a_torn_file_is_told_and_stops_nothing(tmp_path: Path, told: Told) -> None:
    delivery, taking = Delivery(ENGINE, tmp_path, 2**30, told.add), Taking()
    name = delivery.keep(named("torn"))
    delivery.keep(named("whole"))
    path = tmp_path / ENGINE / FOLDER / name
    path.write_bytes(path.read_bytes()[:-1])
    torn, sent = delivery.send_waiting(taking.send, "collector")
    assert "no whole window" in torn.sentence
    assert (sent.error, taking.taken) == (None, ["whole"])


def test_what_was_being_written_when_its_process_was_killed_is_no_window(tmp_path: Path, told: Told) -> None:
    folder = tmp_path / ("d" * 16) / FOLDER
    folder.mkdir(parents=True)
    (folder / "00000000000000000001-collector.window.part").write_bytes(b"VOTW")
    delivery = Delivery(ENGINE, tmp_path, 2**30, told.add)
    delivery.adopt()
    assert (delivery.waiting("collector"), delivery.send_waiting(Taking().send, "collector"), told.lost) == (0, [], [])
    assert list(tmp_path.iterdir()) == []


def test_of_several_engines_one_takes_up_what_a_dead_one_left(tmp_path: Path, told: Told) -> None:
    dead = Delivery("d" * 16, tmp_path, 2**30, told.add)
    dead.keep(named("left"))
    alive = [Delivery(name * 16, tmp_path, 2**30, told.add) for name in "ab"]
    for each in alive:
        each.adopt()
    assert [each.waiting("collector") for each in alive] == [0, 0], "its process still has it in hand"
    dead.close()
    for each in alive:
        each.adopt()
    assert [each.waiting("collector") for each in alive] == [1, 0]
    taking = Taking()
    for each in alive:
        each.send_waiting(taking.send, "collector")
        each.close()
    assert taking.taken == ["left"]
    assert list(tmp_path.iterdir()) == []


def test_what_is_for_another_destination_stays(tmp_path: Path, told: Told) -> None:
    delivery = Delivery(ENGINE, tmp_path, 2**30, told.add)
    delivery.keep(replace(named("spans"), destination="otlp"))
    assert delivery.send_waiting(Taking().send, "collector") == []
    assert delivery.waiting("otlp") == 1
    delivery.close()


def test_where_the_disk_refuses_it_waits_in_memory(tmp_path: Path, told: Told) -> None:
    (tmp_path / ENGINE).write_text("a file where the folder should be")
    delivery, taking = Delivery(ENGINE, tmp_path, 2**30, told.add), Taking()
    delivery.keep(named("kept"))
    assert delivery.in_memory
    delivery.send_waiting(taking.send, "collector")
    assert taking.taken == ["kept"]


def no_space(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_what_waited_on_the_disk_goes_on_waiting_when_the_disk_is_full(
    tmp_path: Path, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    delivery, taking = Delivery(ENGINE, tmp_path, 2**30, told.add), Taking()
    delivery.keep(named("on disk"))
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", no_space)
        delivery.keep(named("in memory"))
    assert not list(tmp_path.rglob("*.part")), "nothing half written takes what little room there is"
    assert delivery.waiting("collector") == 2
    delivery.send_waiting(taking.send, "collector")
    assert sorted(taking.taken) == ["in memory", "on disk"]
    assert list(tmp_path.iterdir()) == []


def test_an_outbox_that_can_not_be_written_loses_nothing_and_ends_nothing(
    tmp_path: Path, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    delivery, taking = Delivery(ENGINE, tmp_path, 2**30, told.add), Taking()
    delivery.keep(named("kept"))
    with monkeypatch.context() as patch:
        patch.setattr(FolderStore, "remove", no_space)
        assert delivery.send_waiting(taking.send, "collector") == []
        assert delivery.trouble.endswith("No space left on device")
    assert delivery.waiting("collector") == 1
    delivery.send_waiting(taking.send, "collector")
    assert delivery.waiting("collector") == 0


def test_an_outbox_that_can_not_be_cleared_away_keeps_no_outcome_from_being_told(tmp_path: Path, told: Told) -> None:
    delivery, taking = Delivery(ENGINE, tmp_path, 2**30, told.add), Taking()
    delivery.keep(named("kept"))
    lock = tmp_path / ENGINE / FOLDER / ".lock"
    lock.unlink()
    lock.mkdir()  # what no file may be removed as
    outcomes = delivery.send_waiting(taking.send, "collector")
    assert [outcome.recording for outcome in outcomes] == ["kept"]


def test_only_the_folders_holder_may_use_it(tmp_path: Path) -> None:
    with FolderStore(tmp_path / FOLDER).locked() as first, FolderStore(tmp_path / FOLDER).locked() as second:
        assert (first, second) == (True, False)
    with FolderStore(tmp_path / FOLDER).locked() as again:
        assert again


def test_a_file_of_version_one_is_read() -> None:
    parcel = unpack((Path(__file__).parents[1] / "data" / "outbox-v1.window").read_bytes())
    assert (parcel.destination, parcel.taken, parcel.window.id_seed) == ("collector", 2, bytes(range(16)))
    assert parcel.window.events == {("sleep", 1): 2}
    (first, second) = assemble(parcel.window)
    assert (first.row.kind, second.row.index, len(first.rank_parts)) == ("decode", 1, 2)
    assert first.rank_parts[0].spans[0].name == "execute_model"
