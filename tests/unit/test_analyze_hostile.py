"""Traces that were made to hurt, and outputs that would: each is taken or told, and none ends the command."""

from __future__ import annotations

import gzip
import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_analyze_report import analyze, analyze_json, engine_trace
from trace_samples import TraceSample

from vime_otel.analyze.engines import group
from vime_otel.analyze.events import decode_block
from vime_otel.analyze.reading import TraceReader
from vime_otel.analyze.runs import write
from vime_otel.analyze.summary import summarize
from vime_otel.cli.main import main

STAMP = "1790000000000000000"
NAME = f"dp0_pp0_tp0_dcp0_ep0_rank0.{STAMP}.pt.trace.json"
HUGE = 10**30
Change = Callable[[TraceSample], Any]


def every_event(**fields: Any) -> Change:
    return lambda trace: [event.update(fields) for event in trace.events]


def every_correlation(trace: TraceSample) -> None:
    for event in trace.events:
        if "correlation" in event["args"]:
            event["args"]["correlation"] += 2**63


def every_annotation(trace: TraceSample) -> None:
    for event in trace.events:
        if event["cat"] == "user_annotation":
            event["name"] = f"execute_context_0(0)_generation_{HUGE}({HUGE})"


def header(**fields: Any) -> Change:
    return lambda trace: trace.header.update(fields)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(every_correlation, id="correlations"),
        pytest.param(every_event(pid=HUGE), id="process"),
        pytest.param(every_event(tid=-HUGE), id="thread"),
        pytest.param(every_annotation, id="annotations of steps"),
        pytest.param(header(distributedInfo={"rank": HUGE, "world_size": HUGE}), id="rank"),
        pytest.param(header(distributedInfo={"rank": -1}), id="negative rank"),
        pytest.param(header(baseTimeNanoseconds=HUGE), id="base of the clock"),
        pytest.param(header(baseTimeNanoseconds=-HUGE), id="negative base of the clock"),
    ],
)
def test_numbers_beyond_64_bits_are_taken_for_none(
    change: Change, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = engine_trace()
    change(trace)
    path = trace.write(tmp_path / "made.json")
    report = analyze_json(capsys, "--profile-dir", path, "--runs", tmp_path / "runs")
    (rank,) = report["engines"][0]["ranks"]
    assert rank["rank"] == "rank 0"
    assert rank["timeline"]["busy"] == pytest.approx(20 * 0.09)
    assert "flash_fwd_kernel" in analyze(capsys, "--profile-dir", path, "--no-run")


@pytest.mark.parametrize("ranks", [f"rank{HUGE}", f"dp{HUGE}_pp{HUGE}_rank0"])
def test_a_rank_of_thirty_digits_in_a_name_is_none(
    ranks: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = engine_trace().write(tmp_path / f"{ranks}.{STAMP}.pt.trace.json")
    report = analyze_json(capsys, "--profile-dir", path, "--runs", tmp_path / "runs")
    assert report["engines"][0]["ranks"][0]["rank"] == "rank 0"


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_an_event_nested_deeper_than_json_is_read_is_left_out_and_the_others_are_read(
    opening: str, closing: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    deep = opening * 100_000 + "1" + closing * 100_000
    events = engine_trace().text(pretty=False)
    event = b'"traceEvents":[{"ph":"X","name":"deep","ts":1,"dur":1,"args":' + deep.encode() + b"},"
    (tmp_path / "deep.json").write_bytes(events.replace(b'"traceEvents":[', event))
    report = analyze_json(capsys, "--profile-dir", tmp_path / "deep.json", "--no-run")
    (rank,) = report["engines"][0]["ranks"]
    assert rank["problems"] == ["1 event could not be read: left out"]
    assert rank["timeline"]["busy"] == pytest.approx(20 * 0.09)


def read_names(path: Path) -> tuple[list[str], list[str]]:
    reader = TraceReader(path)
    return [event.name for block in reader.blocks(decode_block) for event in block], reader.problems


def test_a_gzip_whose_check_fails_gives_all_its_events_and_says_so(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(engine_trace().text()))
    packed[-6] ^= 0xFF
    path = tmp_path / "trace.json.gz"
    path.write_bytes(packed)
    names, problems = read_names(path)
    assert len(names) == len(engine_trace().events)
    assert len(problems) == 1
    assert problems[0].startswith("the gzip data is damaged")


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_a_damaged_gzip_gives_the_last_event_before_the_damage(share: float, tmp_path: Path) -> None:
    rng = random.Random(7)
    text = json.dumps([{"ph": "X", "name": f"{n} {rng.random()}", "ts": n, "dur": 1} for n in range(3_000)])
    packed = bytearray(gzip.compress(text.encode()))
    at = int(share * len(packed))
    packed[at : at + 16] = b"\xff" * 16
    path = tmp_path / "trace.json.gz"
    path.write_bytes(packed)
    names, problems = read_names(path)
    assert abs(len(names) / 3_000 - share) < 0.05
    assert any(problem.startswith("the gzip data is damaged") for problem in problems)


def test_files_without_a_usable_event_are_left_out_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine_trace().write(tmp_path / NAME)
    (tmp_path / "list.json").write_text('[{"id": 1}]')
    late = TraceSample()
    late.add("op", 1e25, 5)
    late.write(tmp_path / "late.json")
    assert main(["analyze", "--profile-dir", str(tmp_path), "--no-run", "--jobs", "1"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "1 trace of 1 engine" in lines
    assert f"left out: {tmp_path / 'list.json'}: the trace has no events with a duration" in lines
    assert f"left out: {tmp_path / 'late.json'}: 1 complete events without a time or a duration" in lines


def test_a_trace_that_a_run_links_to_is_counted_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = engine_trace().write(tmp_path / NAME)
    for folder, link in (("symbolic", os.symlink), ("hard", os.link)):
        (tmp_path / folder).mkdir()
        link(path, tmp_path / folder / NAME)
    report = analyze_json(capsys, "--profile-dir", tmp_path, "--no-run")
    assert [len(engine["ranks"]) for engine in report["engines"]] == [1]


def test_a_trace_that_is_gone_when_the_run_is_written_makes_its_run(tmp_path: Path) -> None:
    path = engine_trace().write(tmp_path / NAME)
    engines = group([summarize(path)])
    path.unlink()
    assert (write(tmp_path / "runs", engines, None) / "recording.json").is_file()


@pytest.mark.parametrize("output", [NAME, f"../traces/{NAME}", "link.json"])
def test_a_report_never_replaces_a_trace(
    output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = engine_trace().write(tmp_path / "traces" / NAME)
    content = path.read_bytes()
    monkeypatch.chdir(path.parent)
    Path("link.json").symlink_to(path)
    assert main(["analyze", "--profile-dir", NAME, "-o", output, "--runs", str(tmp_path / "runs")]) == 1
    assert f"error: {output} is one of the traces; name another file with -o" in capsys.readouterr().err
    assert path.read_bytes() == content
    assert not (tmp_path / "runs").exists()


def test_a_report_that_can_not_be_written_is_refused_before_anything_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine_trace().write(tmp_path / "traces" / NAME)
    for output in ("nowhere/report.md", "."):
        args = ["--profile-dir", str(tmp_path / "traces"), "-o", output, "--runs", str(tmp_path / "runs")]
        assert main(["analyze", *args]) == 1
        assert f"error: can't write {output}" in capsys.readouterr().err
        assert not (tmp_path / "runs").exists()
