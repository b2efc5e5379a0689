"""`top`, `export` and `view` on a sample run."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from xml.etree import ElementTree

import pytest
from samples import ENGINES, RECORDING_ID, sample_recording, write_sample

from vime_otel.cli.main import main
from vime_otel.data.rundir import RunDirectory


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A folder with the sample run."""
    write_sample(tmp_path)
    return tmp_path


def out(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    """What a command that must succeed prints; nothing may stand on stderr."""
    status = main(list(args))
    captured = capsys.readouterr()
    assert (status, captured.err) == (0, "")
    return captured.out


def test_top_opens_with_what_was_measured_and_lists_frames(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = out(capsys, "top", "--runs", str(runs))
    assert text.startswith("recorded decode step ")
    assert "decode: 36 steps" in text
    assert "prefill: 4 steps" in text
    first = next(line for line in text.splitlines() if line.startswith("moe.experts"))
    assert len(first.split()) == 5
    assert text.rstrip().endswith(f"next: vime-otel view --runs {runs}")
    assert "\x1b" not in text


def test_top_as_json_agrees_with_the_files(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    summary = json.loads(out(capsys, "top", "--runs", str(runs), "--json", "--kind", "decode", "--limit", "1000"))
    (decode,) = summary["kinds"]
    run = RunDirectory(Path(summary["run"]))
    in_files_ms = sum(run.self_us("decode").values()) / 1000 / run.steps["decode"]
    assert sum(frame["self_ms"] for frame in decode["frames"]) == pytest.approx(in_files_ms)
    assert in_files_ms == pytest.approx(decode["ms_per_step"], rel=0.01)
    assert sum(frame["share"] for frame in decode["frames"]) == pytest.approx(1)


def test_top_of_one_rank_counts_its_engines_steps(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rank = f"{ENGINES[0]}-0"
    summary = json.loads(out(capsys, "top", "--runs", str(runs), "--json", "--rank", rank))
    assert [(each["kind"], each["steps"]) for each in summary["kinds"]] == [("decode", 18), ("prefill", 2)]


def test_top_says_why_a_run_is_incomplete(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_sample(tmp_path, sample_recording(complete=False, reasons=["engine h:1/0 made 3 of 20 steps"]))
    assert "incomplete: engine h:1/0 made 3 of 20 steps" in out(capsys, "top", "--runs", str(tmp_path))


def test_a_run_by_the_beginning_of_its_id_or_by_path(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    by_id = json.loads(out(capsys, "top", RECORDING_ID[:5], "--runs", str(runs), "--json"))
    (path,) = runs.iterdir()
    assert json.loads(out(capsys, "top", str(path), "--json")) == by_id


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["top", "nosuch"], "no run 'nosuch'"),
        (["top", "--rank", "nosuch"], "no rank 'nosuch'"),
        (["export", "-o", "/nosuch/dir/file.svg"], "can't write /nosuch/dir/file.svg"),
    ],
)
def test_bad_input(runs: Path, capsys: pytest.CaptureFixture[str], args: list[str], message: str) -> None:
    assert main([*args, "--runs", str(runs)]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_no_runs_and_not_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--runs", str(tmp_path)]) == 1
    assert "vime-otel collect" in capsys.readouterr().err
    assert main(["top", str(tmp_path), "--runs", str(tmp_path)]) == 1
    assert "is not a run" in capsys.readouterr().err


def test_export_svg_is_a_picture_with_the_frames(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "decode.svg"
    assert f"wrote {target}" in out(capsys, "export", "--runs", str(runs), "-o", str(target))
    root = ElementTree.parse(target).getroot()
    assert root.tag.endswith("svg")
    assert "moe.experts" in target.read_text()


def test_export_folded_is_the_file(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = out(capsys, "export", "--runs", str(runs), "--kind", "prefill", "--format", "folded")
    (path,) = runs.glob("*/prefill.folded")
    assert text == path.read_text()


def test_view_shows_the_run_and_ends_on_an_interrupt(runs: Path) -> None:
    command = [sys.executable, "-u", "-m", "vime_otel", "view", "--runs", str(runs), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().split(" at ")[1].split()[0]
        with urllib.request.urlopen(url, timeout=10) as response:
            assert RECORDING_ID[:8] in response.read().decode()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
    assert "Traceback" not in errors
