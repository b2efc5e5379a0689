"""Trace files in every state: whole, in other layouts, cut off, damaged."""

from __future__ import annotations

import gzip
import json
import math
import random
import signal
import subprocess
import sys
import time
import zlib
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from trace_samples import CASES, TraceSample, case, plain

from vime_otel.analyze import loading
from vime_otel.analyze import reading as reading_module
from vime_otel.analyze.events import Event, decode_block
from vime_otel.analyze.reading import TraceReader
from vime_otel.analyze.summary import TraceSummary, summarize

REAL = sorted(path.name for path in CASES.glob("*.gz"))


def read(path: Path) -> tuple[list[Event], TraceReader]:
    reader = TraceReader(path)
    return [event for block in reader.blocks(decode_block) for event in block], reader


def essence(events: list[Event]) -> list[tuple[Any, ...]]:
    return [(e.ph, e.name, e.cat, e.pid, e.tid, e.ts, e.dur) for e in events]


def plain_essence(events: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [
        (e["ph"], e["name"], e.get("cat", ""), e.get("pid"), e.get("tid"), e.get("ts"), e.get("dur")) for e in events
    ]


def sample(events: int = 40) -> TraceSample:
    trace = TraceSample(INFO=["a [text] with {brackets}, {"])
    for number in range(events):
        trace.add(f'op "{number}" {{[', 10 * number, 5.125, shapes=[{"name": "inner"}, {"name": "other"}])
    return trace


@pytest.mark.parametrize("name", REAL or [pytest.param("", marks=pytest.mark.skip(reason="no real traces here"))])
def test_every_event_of_a_real_trace_is_read(name: str) -> None:
    events, reader = read(case(name))
    assert essence(events) == plain_essence(plain(case(name)))
    assert reader.problems == []


@pytest.mark.parametrize("small_blocks", [False, True])
@pytest.mark.parametrize("layout", ["pretty", "compact", "array", "array packed", "events first"])
def test_layouts_read_alike(layout: str, small_blocks: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if small_blocks:
        monkeypatch.setattr(reading_module, "CHUNK", 512)
        monkeypatch.setattr(reading_module, "_LITTLE", 16)
    trace = sample()
    path = tmp_path / "trace.json"
    if layout.startswith("array"):
        text = json.dumps(trace.events).encode()
    elif layout == "events first":
        text = json.dumps({"traceEvents": trace.events, **trace.header}).encode()
    else:
        text = trace.text(pretty=layout == "pretty")
    path.write_bytes(gzip.compress(text) if layout.endswith("packed") else text)
    events, reader = read(path)
    assert essence(events) == plain_essence(trace.events)
    assert reader.problems == []
    expected = {} if layout.startswith("array") else trace.header
    assert {key: reader.header[key] for key in reader.header if key != "traceName"} == expected


def test_gzip_members_follow_each_other(tmp_path: Path) -> None:
    text = sample().text()
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(text[:700]) + gzip.compress(text[700:]))
    events, reader = read(path)
    assert (len(events), reader.problems) == (40, [])


def test_numbers_that_json_does_not_have_are_passed_over(tmp_path: Path) -> None:
    text = sample(3).text().replace(b'"dur": 5.125', b'"dur": 5.125, "occupancy": nan, "rate": -inf', 2)
    path = tmp_path / "trace.json"
    path.write_bytes(text)
    events, reader = read(path)
    assert [event.dur for event in events] == [5.125] * 3
    assert reader.problems == []


def test_an_event_that_can_not_be_read_is_left_out_and_told(tmp_path: Path) -> None:
    text = sample(5).text(pretty=False).replace(b'"ts":20,', b'"ts":2x0,')
    path = tmp_path / "trace.json"
    path.write_bytes(text)
    events, reader = read(path)
    assert [event.ts for event in events] == [0, 10, 30, 40]
    assert reader.problems == ["1 event could not be read: left out"]


def test_fields_of_other_types_are_taken_as_what_they_mean(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    odd = [{"ph": "X", "name": 17, "pid": [1], "tid": None, "ts": "12.5", "dur": "3", "args": "none"}, 5, None]
    path.write_text(json.dumps([*odd, {"ph": "X", "name": "b", "ts": True, "dur": {}}]))
    events, reader = read(path)
    assert essence(events) == [("X", "17", "", "[1]", None, 12.5, 3.0), ("X", "b", "", None, None, None, None)]
    assert reader.problems == []


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "the file is empty"),
        (b"  \n", "the file is empty"),
        (b'{"schemaVersion": 1, "deviceProper', "the file holds no list of trace events"),
        (b'{"traceEvents": {"no": "list"}}', "the file holds no list of trace events"),
        (b"\x00\x01\x02\xff", "the file holds no list of trace events"),
        (b"[", "the file ends before its list of events does"),
        (b'[{"ph": "X", "na', "the file ends before its list of events does"),
        (gzip.compress(b"[]")[:-9], "the gzip data ends in the middle"),
        (gzip.compress(b"[]") + b"junk", "what follows the gzip data"),
    ],
)
def test_what_is_no_whole_trace_is_told(content: bytes, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    events, reader = read(path)
    assert events == []
    assert any(told.startswith(problem) for told in reader.problems), reader.problems


def test_a_damaged_gzip_gives_what_comes_before_the_damage(tmp_path: Path) -> None:
    text = json.dumps(
        [{"ph": "X", "name": str(n), "ts": n, "dur": 1, "r": random.Random(n).random()} for n in range(30_000)]
    )
    packed = bytearray(gzip.compress(text.encode()))
    middle = len(packed) // 2
    packed[middle : middle + 64] = b"\xff" * 64
    path = tmp_path / "trace.json.gz"
    path.write_bytes(packed)
    events, reader = read(path)
    assert 5_000 < len(events) < 30_000
    assert [event.name for event in events[:5_000]] == [str(n) for n in range(5_000)]
    assert any("gzip data" in problem for problem in reader.problems)


def cut_points(count: int) -> list[float]:
    rng = random.Random(1796)
    return [rng.random() for _ in range(count)]


@pytest.mark.parametrize("packed", [False, True])
def test_a_real_trace_cut_off_anywhere_gives_its_events_up_to_there(packed: bool, tmp_path: Path) -> None:
    whole = case("sampled_rank-1.json.gz")
    text = gzip.decompress(whole.read_bytes())
    expected = plain_essence(plain(whole))
    path = tmp_path / ("rank.json.gz" if packed else "rank.json")
    content = zlib.compress(text, wbits=31) if packed else text
    for share in cut_points(20):
        path.write_bytes(content[: int(share * len(content))])
        events, reader = read(path)
        assert essence(events) == expected[: len(events)]
        assert reader.problems
        if not packed:
            assert len(events) >= text[: int(share * len(text))].count(b'{"ph"') - 1


@pytest.mark.long
def test_a_real_trace_cut_off_at_100_points_makes_a_report_that_says_so(tmp_path: Path) -> None:
    whole = case("nccl_data.json.gz")
    text = gzip.decompress(whole.read_bytes())
    path = tmp_path / "rank0.json"
    for share in cut_points(100):
        path.write_bytes(text[: int(share * len(text))])
        summary = summarize(path)
        assert summary.problems
        assert summary.events <= 40_573


def growing(trace: bytes, path: Path) -> list[TraceSummary]:
    found = []
    for end in range(0, len(trace), len(trace) // 7):
        path.write_bytes(trace[:end])
        found.append(summarize(path))
    return found


def test_a_growing_file_gives_more_each_time_and_never_fails(tmp_path: Path) -> None:
    counts = [summary.events for summary in growing(sample().text(), tmp_path / "trace.json")]
    assert counts == sorted(counts)
    assert counts[-1] > 20


JSON_TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
JSON_VALUE = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | JSON_TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(JSON_TEXT, inner, max_size=3),
    max_leaves=6,
)
EVENTS = st.lists(
    st.fixed_dictionaries(
        {"ph": st.sampled_from(["X", "B", "E", "M", "s", "i"]), "name": JSON_TEXT, "ts": st.integers(0, 10**15)},
        optional={"dur": st.integers(0, 10**6), "args": st.dictionaries(JSON_TEXT, JSON_VALUE, max_size=3)},
    ),
    max_size=12,
)


@example(
    events=[{"ph": "X", "name": "", "ts": 0, "dur": 0, "args": {"": [math.inf]}}], header={}, indent=None, chunk=32
)
@given(EVENTS, st.dictionaries(JSON_TEXT, JSON_VALUE, max_size=3), st.sampled_from([None, 0, 2]), st.integers(32, 400))
def test_any_events_in_any_layout_are_read_as_json_reads_them(
    tmp_path_factory: pytest.TempPathFactory,
    events: list[dict[str, Any]],
    header: dict[str, Any],
    indent: int | None,
    chunk: int,
) -> None:
    path = tmp_path_factory.mktemp("any") / "trace.json"
    path.write_text(json.dumps({**header, "traceEvents": events}, indent=indent), "utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading_module, "CHUNK", chunk)
        patch.setattr(reading_module, "_LITTLE", 16)
        found, reader = read(path)
    assert essence(found) == plain_essence(events)
    assert reader.problems == []


@given(st.binary(max_size=300))
def test_no_content_makes_the_reader_fail(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("any") / "trace.json"
    path.write_bytes(content)
    read(path)
    path.write_bytes(b'{"traceEvents": [' + content)
    read(path)


@pytest.mark.parametrize("broken", [False, True])
def test_helpers_read_a_large_file_as_one_process_does(
    broken: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = gzip.decompress(case("sampled_rank-0.json.gz").read_bytes())
    path = tmp_path / "rank0.json"
    path.write_bytes(text.replace(b'"ph": "X"', b'"ph": 3, x', 1) if broken else text)
    alone = summarize(path)
    monkeypatch.setattr(loading, "LARGE_TEXT", 0)
    monkeypatch.setattr(reading_module, "CHUNK", 100_000)
    helped = summarize(path, helpers=2)
    assert helped == alone
    assert bool(helped.problems) is broken


def test_helpers_end_with_the_process_that_they_help(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(
        "import os, signal\n"
        "from vime_otel.analyze.workers import process_pool\n"
        "if __name__ == '__main__':\n"
        "    with process_pool(2) as pool:\n"
        "        print(*set(pool.map(os.getpgid, [0])), *pool._processes, flush=True)\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    parent = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60)
    assert parent.returncode == -signal.SIGKILL
    helpers = [int(pid) for pid in parent.stdout.split()[1:]]
    assert helpers
    deadline = time.monotonic() + 20
    while alive := [pid for pid in helpers if psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie"]:
        assert time.monotonic() < deadline, alive
        time.sleep(0.05)
