"""The journal: framing, torn and damaged tails, a disk that refuses."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.counts import Counts
from collector.journal import commits
from collector.journal.commits import GroupCommit, JournalFile
from collector.journal.request_journal import RequestJournal
from vime_otel.data.errors import VimeOtelError
from vime_otel.data.journal import LOGS, MAGIC, TRACES, Frame, JournalReader, JournalWriter, checksum

FRAMES = [Frame(TRACES, b"one"), Frame(LOGS, b""), Frame(TRACES, b"three" * 1000)]
# The first version, byte by byte: readers must go on reading it.
STORED = bytes.fromhex("564f544a01" + "03000000" + "9ae7d51c" + "01" + "6f6e65")


def write(path: Path, frames: list[Frame]) -> bytes:
    journal = JournalWriter(path)
    for frame in frames:
        journal.append(frame.signal, frame.payload)
    journal.close()
    return path.read_bytes()


def read(path: Path) -> tuple[list[Frame], int]:
    reader = JournalReader(path)
    return list(reader), reader.torn_bytes


def test_what_was_written_is_read(tmp_path: Path) -> None:
    write(tmp_path / "j", FRAMES)
    assert read(tmp_path / "j") == (FRAMES, 0)


def test_the_first_version_stays_readable(tmp_path: Path) -> None:
    (tmp_path / "stored").write_bytes(STORED)
    assert read(tmp_path / "stored") == (FRAMES[:1], 0)
    assert write(tmp_path / "new", FRAMES[:1]) == STORED


def test_writing_goes_on_where_it_ended(tmp_path: Path) -> None:
    write(tmp_path / "j", FRAMES[:1])
    write(tmp_path / "j", FRAMES[1:])
    assert read(tmp_path / "j") == (FRAMES, 0)


def test_every_torn_tail_is_told(tmp_path: Path) -> None:
    whole = write(tmp_path / "j", FRAMES[:2])
    first_end = len(MAGIC) + 9 + len(FRAMES[0].payload)
    for length in range(first_end, len(whole)):
        (tmp_path / "torn").write_bytes(whole[:length])
        assert read(tmp_path / "torn") == (FRAMES[:1], length - first_end)


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_a_damaged_byte_is_never_read_as_data(tmp_path_factory: pytest.TempPathFactory, at: int, flip: int) -> None:
    path = tmp_path_factory.mktemp("journal") / "j"
    content = bytearray(write(path, FRAMES[:2]))
    position = len(MAGIC) + at % (len(content) - len(MAGIC))
    content[position] ^= flip
    path.write_bytes(content)
    frames, torn = read(path)
    assert frames in ([], FRAMES[:1])
    assert torn == len(content) - len(MAGIC) - sum(9 + len(frame.payload) for frame in frames)


@pytest.mark.parametrize("content", [b"", b"VOT"])
def test_a_journal_that_was_cut_off_at_its_very_beginning_is_empty(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "j").write_bytes(content)
    assert read(tmp_path / "j") == ([], len(content))
    assert write(tmp_path / "j", FRAMES[:1]) == STORED


@pytest.mark.parametrize("content", [b"X", b"VOTJ\x02", b"something else entirely"])
def test_what_is_no_journal_is_told(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "j").write_bytes(content)
    with pytest.raises(VimeOtelError, match="is not a journal"):
        read(tmp_path / "j")


def test_a_write_that_fails_leaves_no_half_frame(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = JournalWriter(tmp_path / "j")
    journal.append(TRACES, b"kept")
    real_write = os.write

    def half(descriptor: int, buffers: list[bytes]) -> int:
        return real_write(descriptor, b"".join(buffers)[:5])

    def full(descriptor: int, content: memoryview) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "writev", half)
        patch.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space left"):
            journal.append(LOGS, b"lost")
    journal.append(LOGS, b"kept too")
    journal.close()
    assert read(tmp_path / "j") == ([Frame(TRACES, b"kept"), Frame(LOGS, b"kept too")], 0)


def test_a_growing_journal_is_followed_from_where_reading_ended(tmp_path: Path) -> None:
    whole = write(tmp_path / "whole", FRAMES)
    reader = JournalReader(tmp_path / "j")
    found = []
    for length in range(len(MAGIC), len(whole) + 1, 7):
        (tmp_path / "j").write_bytes(whole[:length])
        found += list(reader)
        assert reader.offset + reader.torn_bytes == length
    (tmp_path / "j").write_bytes(whole)
    found += list(reader)
    assert found == FRAMES
    first_end = len(MAGIC) + FRAMES[0].size
    assert list(JournalReader(tmp_path / "j", first_end)) == FRAMES[1:]


def test_a_torn_tail_is_cut_off_before_writing_goes_on(tmp_path: Path) -> None:
    write(tmp_path / "j", FRAMES[:2])
    with open(tmp_path / "j", "ab") as file:
        file.write(b"torn")
    reader = JournalReader(tmp_path / "j")
    assert (list(reader), reader.torn_bytes) == (FRAMES[:2], 4)
    journal = JournalWriter(tmp_path / "j", reader.offset)
    journal.append(FRAMES[2].signal, FRAMES[2].payload)
    journal.close()
    assert read(tmp_path / "j") == (FRAMES, 0)


def test_many_requests_are_written_at_once_or_not_at_all(tmp_path: Path) -> None:
    frames = [Frame(TRACES, bytes([number % 256]) * (number % 7)) for number in range(2000)]
    journal = JournalWriter(tmp_path / "j")
    journal.extend([(frame.signal, checksum(frame.signal, frame.payload), frame.payload) for frame in frames])
    size = journal.size
    journal.append(LOGS, b"one more")
    journal.cut(size)
    journal.close()
    assert read(tmp_path / "j") == (frames, 0)


@pytest.mark.parametrize("fails", ["look", "sync"])
def test_a_journal_whose_opening_fails_half_way_is_opened_anew_by_the_next_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    path = tmp_path / "run" / "j"
    file = JournalFile(path)
    request = (TRACES, checksum(TRACES, b"one"), b"one")
    synced: list[Path] = []

    def refuse(*_: object) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(*((commits.os, "stat") if fails == "look" else (commits, "sync_directory")), refuse)
        with pytest.raises(OSError, match="Input/output error"):
            file.write([request])
    monkeypatch.setattr(commits, "sync_directory", synced.append)
    file.write([request])
    file.close()
    assert synced == [tmp_path / "run", tmp_path], "what is acknowledged is found again"
    assert read(path) == (FRAMES[:1], 0)


def test_a_fault_in_one_journal_refuses_its_requests_and_all_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real_extend, real_close = JournalWriter.extend, JournalWriter.close

    def extend(self: JournalWriter, requests: Sequence[tuple[int, int, bytes]]) -> None:
        real_extend(self, requests)
        if requests[0][2] == b"bad":
            raise ValueError("a fault after half of it")

    def close(self: JournalWriter) -> None:
        real_close(self)
        raise ValueError("a fault in closing")

    async def put(journal: RequestJournal, payload: bytes) -> OSError | None:
        told: asyncio.Future[OSError | None] = asyncio.get_running_loop().create_future()
        journal.put(TRACES, payload, lambda error, again: told.set_result(error))
        return await asyncio.wait_for(told, 10)

    async def check() -> None:
        committing = GroupCommit(Counts())
        committing.start()
        try:
            one, other = (RequestJournal(tmp_path / name / "j", committing) for name in ("one", "other"))
            faults = await asyncio.gather(*(put(one, payload) for payload in (b"bad", b"too")), put(other, b"one"))
            assert [type(each) for each in faults] == [OSError, OSError, type(None)]
            assert await put(one, b"one") is None
            monkeypatch.setattr(JournalWriter, "close", close)
            with pytest.raises(OSError, match="a fault of the collector"):
                await asyncio.wait_for(one.close(), 10)
            monkeypatch.setattr(JournalWriter, "close", real_close)
            await asyncio.wait_for(other.close(), 10)
        finally:
            await committing.close()

    monkeypatch.setattr(JournalWriter, "extend", extend)
    asyncio.run(check())
    for name in ("one", "other"):
        assert read(tmp_path / name / "j") == (FRAMES[:1], 0)
    assert "a fault of the collector: ValueError: a fault after half of it" in caplog.text
