"""`top`, `export` and `view` on a sample run."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner
from rich.console import Console
from samples import ENGINES, LAYERS, RECORDING_ID, by_layer, sample_recording, write_sample

from vime_otel.cli.main import main
from vime_otel.cli.tables import frames_table, summarize
from vime_otel.cli.view import view
from vime_otel.data.recording import Recording
from vime_otel.data.rundir import RunDirectory
from vime_otel.data.selection import Selected, Selection


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


def assert_one_line(capsys: pytest.CaptureFixture[str], args: list[str], message: str) -> None:
    """A command that must fail prints this on one line, and nothing else."""
    status = main(args)
    captured = capsys.readouterr()
    assert message in captured.err
    assert (status, captured.out, captured.err.count("\n")) == (1, "", 1), captured


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


@pytest.mark.parametrize("more", [[], ["--by-layer"]])
def test_in_a_narrow_terminal_names_are_cut_and_figures_are_not(tmp_path: Path, more: list[str]) -> None:
    run = RunDirectory(write_sample(tmp_path, by_layer(sample_recording())))
    (summary,) = summarize(50, [Selected(run, Selection("decode", by_layer=bool(more)))])
    console = Console(width=76, file=io.StringIO())
    console.print(frames_table(summary, bool(more), console.width))
    lines = console.file.getvalue().splitlines()[1:]
    for frame, line in zip(summary.frames, lines, strict=True):
        figures = (f"{frame.self_ms:.3f}", f"{frame.share:.1%}", f"{frame.calls:.1f}", f"{frame.ms_per_call:.3f}")
        assert tuple(line.split()[-4:]) == figures


def test_a_terminal_without_our_signs_gets_question_marks(runs: Path) -> None:
    command = [sys.executable, "-m", "vime_otel", "top", "--runs", str(runs)]
    done = subprocess.run(command, env={**os.environ, "PYTHONIOENCODING": "ascii"}, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.isascii()
    assert b"moe.experts" in done.stdout


def test_where_a_run_lists_no_steps_the_mean_is_that_of_its_self_times(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (steps_file,) = runs.glob("*/steps.json")
    listed = json.loads(out(capsys, "top", "--runs", str(runs), "--json"))["kinds"]
    steps_file.write_text(json.dumps({**json.loads(steps_file.read_text()), "rows": []}))
    kinds = json.loads(out(capsys, "top", "--runs", str(runs), "--json"))["kinds"]
    for before, after in zip(listed, kinds, strict=True):
        assert after["ms_per_step"] == pytest.approx(before["ms_per_step"], rel=0.01)


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
    for which in (str(path), f"{path}/", path.name, f"{path.name}/", path.name[:16]):
        assert json.loads(out(capsys, "top", which, "--runs", str(runs), "--json")) == by_id, which


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["top", "nosuch"], "no run 'nosuch'"),
        (["top", "--rank", "nosuch"], "no rank 'nosuch'"),
        (["export", "-o", "/nosuch/dir/file.svg"], "can't write /nosuch/dir/file.svg"),
    ],
)
def test_bad_input(runs: Path, capsys: pytest.CaptureFixture[str], args: list[str], message: str) -> None:
    assert_one_line(capsys, [*args, "--runs", str(runs)], message)


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


def test_export_keeps_the_mode_and_the_link_of_a_file_that_is_there(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "there").mkdir()
    target, link = tmp_path / "there" / "private.svg", tmp_path / "link.svg"
    target.write_text("old")
    target.chmod(0o600)
    link.symlink_to(target)
    assert f"wrote {link}" in out(capsys, "export", "--runs", str(runs), "-o", str(link))
    assert link.is_symlink()
    assert target.read_text().startswith("<svg")
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert list(target.parent.iterdir()) == [target]


def test_export_makes_a_new_file_as_the_umask_says_and_through_a_link(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "link.svg").symlink_to("new.svg")
    before = os.umask(0o077)
    try:
        out(capsys, "export", "--runs", str(runs), "-o", str(tmp_path / "link.svg"))
    finally:
        os.umask(before)
    assert (tmp_path / "link.svg").is_symlink()
    assert stat.S_IMODE((tmp_path / "new.svg").lstat().st_mode) == 0o600


@pytest.mark.parametrize("linked", [False, True])
def test_export_writes_through_what_is_no_file(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], linked: bool
) -> None:
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    try:
        printed = out(capsys, "export", "--runs", str(runs), "-o", str(link if linked else pipe))
    finally:
        os.close(os.open(pipe, os.O_RDWR | os.O_NONBLOCK))  # lets a reader go that nobody wrote to
        reader.join(10)
    assert read[0].endswith("</svg>\n")
    assert printed == ""  # the pipe may be our own stdout
    assert stat.S_ISFIFO(pipe.lstat().st_mode)
    assert link.is_symlink()


@pytest.mark.parametrize("command", ["top", "export"])
@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("recording.json", '{"format": 99}', "has format 99, this version reads 1"),
        ("recording.json", '{"format": 1, "id"', "recording.json can't be read"),
        ("steps.json", '{"steps": {"decode": "x"}, "rows": []}', "steps.json: Expected `int`, got `str` - at `$.steps"),
        ("decode.folded", "", "decode.folded holds no line in the folded format"),
        ("decode.folded", "nonsense\nstep 1.5\n", "decode.folded holds no line in the folded format (2 others)"),
        ("decode.calls", "", "decode.calls holds no line in the folded format"),
        ("decode.folded", None, "decode.folded is missing, but the run recorded decode steps"),
    ],
)
def test_a_damaged_run_is_one_line(
    runs: Path, capsys: pytest.CaptureFixture[str], command: str, name: str, content: str | None, message: str
) -> None:
    (run,) = runs.iterdir()
    (run / name).unlink()
    if content is not None:
        (run / name).write_text(content)
    assert_one_line(capsys, [command, "--runs", str(runs)], message)


@pytest.mark.parametrize("form", ["svg", "folded"])
def test_a_kind_that_was_not_recorded_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    whole = sample_recording()
    write_sample(tmp_path, whole.select(lambda row: row.kind == "decode"))
    message = "has no prefill steps; it has decode"
    assert_one_line(capsys, ["export", "--format", form, "--kind", "prefill", "--runs", str(tmp_path)], message)
    assert_one_line(capsys, ["top", "--kind", "prefill", "--runs", str(tmp_path)], message)


def test_steps_without_time_are_no_picture(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (path,) = runs.glob("*/decode.folded")
    path.write_text("step 0\n")
    assert_one_line(capsys, ["export", "--runs", str(runs)], "took no measurable time, so there is nothing to draw")
    assert out(capsys, "export", "--runs", str(runs), "--format", "folded") == "step 0\n"


@pytest.mark.parametrize("args", [["top"], ["top", "--json"], ["export"], ["export", "--format", "folded"]])
def test_skipped_lines_are_counted_beside_the_output(
    runs: Path, capsys: pytest.CaptureFixture[str], args: list[str]
) -> None:
    (path,) = runs.glob("*/decode.folded")
    with path.open("a") as file:
        file.write("nonsense\nstep 1.5\n")
    assert main([*args, "--runs", str(runs)]) == 0
    captured = capsys.readouterr()
    assert "moe.experts" in captured.out
    assert "nonsense" not in captured.out
    assert captured.err == f"warning: {path}: 2 lines are not in the folded format and were skipped\n"


def test_one_step_is_no_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_sample(tmp_path, sample_recording().select(lambda row: (row.engine, row.index) == (ENGINES[0], 3)))
    text = out(capsys, "top", "--runs", str(tmp_path))
    assert "decode: 1 step, " in text
    assert "(batch 64, 1 step, eager, sync) on 1 engine" in text
    assert "1 steps" not in text


def test_copies_of_a_run_are_told_apart_by_folder(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run,) = runs.iterdir()
    shutil.copytree(run, runs / "zz-copy")
    assert_one_line(capsys, ["top", RECORDING_ID, "--runs", str(runs)], f"fits 2 runs: zz-copy, {run.name}; type")
    assert "run: " in out(capsys, "top", "zz", "--runs", str(runs))


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--base-path", "vime", "is not a path such as /vime"),
        ("--base-path", "/a/../b", "is not a path such as /vime"),
        ("--trace-link", "javascript:alert({trace_id})", "is no link such as"),
        ("--trace-link", "http://jaeger/trace/", "has no {trace_id}"),
    ],
)
def test_view_takes_paths_and_links_only(
    runs: Path, capsys: pytest.CaptureFixture[str], option: str, value: str, message: str
) -> None:
    assert main(["view", "--runs", str(runs), "--port", "0", option, value]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("name", ["a b", "http://x", "viewer.lan:8080", ""])
def test_view_takes_names_of_hosts_only(runs: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert main(["view", "--runs", str(runs), "--port", "0", "--allow-host", name]) == 2
    assert "is not a host's name" in capsys.readouterr().err


def test_view_of_what_is_no_folder_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert main(["view", "--runs", str(tmp_path / "file"), "--port", "0"]) == 2
    assert "file is not a folder" in capsys.readouterr().err


def test_view_says_that_its_folder_is_not_there_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def serve(*args: Any, on_ready: Callable[[str], None], **others: Any) -> None:
        on_ready("http://there")

    monkeypatch.setattr("viewer.serve.serve", serve)
    result = CliRunner().invoke(view, ["--runs", str(tmp_path / "later")])
    assert "at http://there" in result.output
    assert f"{tmp_path / 'later'} does not exist yet" in result.output
    assert "does not exist yet" not in CliRunner().invoke(view, ["--runs", str(tmp_path)]).output


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


@pytest.fixture
def layered(tmp_path: Path) -> Path:
    """A folder with the sample run, recorded by layer."""
    write_sample(tmp_path, by_layer(sample_recording()))
    return tmp_path


def test_top_by_layer_names_the_layer_of_a_frame(layered: Path, capsys: pytest.CaptureFixture[str]) -> None:
    merged = json.loads(out(capsys, "top", "--runs", str(layered), "--json"))
    told = json.loads(out(capsys, "top", "--runs", str(layered), "--json", "--by-layer", "--limit", "1000"))
    assert (merged["by_layer"], told["by_layer"]) == (False, True)
    frames = [frame for frame in told["kinds"][0]["frames"] if frame["frame"] == "moe.experts"]
    assert sorted(frame["layer"] for frame in frames) == sorted(f"layers.{number}" for number in range(LAYERS))
    whole = next(frame for frame in merged["kinds"][0]["frames"] if frame["frame"] == "moe.experts")
    assert (whole["layer"], whole["calls"]) == ("", LAYERS)
    assert sum(frame["self_ms"] for frame in frames) == pytest.approx(whole["self_ms"], rel=0.01)
    text = out(capsys, "top", "--runs", str(layered), "--by-layer")
    assert any(line.split()[:2] == ["layers.7", "moe.experts"] for line in text.splitlines())


@pytest.mark.parametrize("form", ["svg", "folded"])
def test_export_by_layer(layered: Path, capsys: pytest.CaptureFixture[str], form: str) -> None:
    text = out(capsys, "export", "--runs", str(layered), "--by-layer", "--format", form)
    assert "layers.7:Qwen3MoeDecoderLayer" in text
    assert "layers." not in out(capsys, "export", "--runs", str(layered), "--format", form)


@pytest.mark.parametrize("command", ["top", "export"])
def test_layers_that_were_not_recorded_are_one_line(
    runs: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    assert_one_line(capsys, [command, "--by-layer", "--runs", str(runs)], "does not tell layers apart; record with")


def test_top_tells_what_recording_cost_and_notes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    header = sample_recording().header
    engines = [engine | {"overhead": {"added_us_per_step": 310.0}} for engine in header["engines"]]
    write_sample(tmp_path, sample_recording(engines=engines, notes=["something to know"]))
    lines = out(capsys, "top", "--runs", str(tmp_path)).splitlines()
    assert lines[1] == (
        "recording added about 310 µs to a step (calculated from what a span costs);"
        " the longest pause between two steps was 0.9 ms"
    )
    assert lines[2] == "note: something to know"


def test_steps_without_a_row_count_all_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = sample_recording()
    path = write_sample(tmp_path, whole)
    few = [row for row in whole.rows if row.index > 10]
    counts = {kind: steps - sum(row.kind == kind for row in few) for kind, steps in whole.steps().items()}
    write_sample(tmp_path / "rolling", Recording(whole.header, few, whole.totals, counts))
    (all_rows, some_rows) = (
        json.loads(out(capsys, "top", "--json", "--runs", str(runs)))["kinds"]
        for runs in (path.parent, tmp_path / "rolling")
    )
    for one, other in zip(all_rows, some_rows, strict=True):
        assert one["steps"] == other["steps"]
        assert one["frames"] == other["frames"]
