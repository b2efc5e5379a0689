"""Files out and in: what is exported is imported with the same totals; what other tools write is read."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import ENGINES, by_layer, sample_recording, write_sample

from viewer.exports import EXPORTS
from viewer.view import View
from vime_otel.cli.main import main
from vime_otel.data import folded, speedscope, stack_table
from vime_otel.data.errors import VimeOtelError
from vime_otel.data.find_runs import find_run
from vime_otel.data.folded import escape_frame, inclusive
from vime_otel.data.imported import write_imported
from vime_otel.data.profile import Profile
from vime_otel.data.profile_file import read_profile
from vime_otel.data.rundir import RunDirectory
from vime_otel.data.selection import Selected, Selection

CASES = Path(__file__).parents[3] / "shared" / "cases" / "folded"
CARRIERS = [name for name in EXPORTS if name != "svg"]
"""A picture leaves out what is too narrow to see; every other format holds all."""

CARRY_CALLS = {"csv", "json", "html"}

_NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6).filter(str.strip)
_STACKS = st.lists(_NAMES.map(escape_frame), min_size=1, max_size=4).map(lambda frames: ";".join(["step", *frames]))
_VALUES = st.dictionaries(_STACKS | st.just("step"), st.integers(0, 10**12), min_size=1, max_size=12)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return RunDirectory(write_sample(tmp_path_factory.mktemp("runs"), by_layer(sample_recording())))


@pytest.mark.parametrize("form", CARRIERS)
@pytest.mark.parametrize(
    "selection",
    [
        Selection("decode"),
        Selection("prefill", f"{ENGINES[0]}-1"),
        Selection("decode", by_layer=True),
        Selection("decode", ENGINES[1], steps=(3, 9)),
        Selection("prefill", mixed="out"),
    ],
)
def test_what_is_exported_is_imported_with_equal_totals(run: RunDirectory, form: str, selection: Selection) -> None:
    view = View(Selected(run, selection))
    self_us, calls = view.values
    profile = read_profile(EXPORTS[form].write(view))
    assert {s: v for s, v in profile.self_values.items() if v} == {s: v for s, v in self_us.items() if v}
    assert inclusive(profile.self_values)["step"] == sum(self_us.values())
    assert (profile.unit, profile.invalid_lines) == ("microseconds", 0)
    if form in CARRY_CALLS:
        assert profile.calls == {stack: count for stack, count in calls.items() if count}
        assert profile.steps == view.steps


@given(_VALUES)
def test_any_names_and_values_survive_every_format(values: dict[str, int]) -> None:
    profile = Profile(values, dict.fromkeys(values, 3), steps=7)
    texts = {
        "folded": folded.dumps(values),
        "speedscope": json.dumps(speedscope.dump(values, "title")),
        "csv": stack_table.dump_csv(profile),
        "json": json.dumps(stack_table.dump_json(profile)),
    }
    kept = {stack: value for stack, value in values.items() if value}
    for form, text in texts.items():
        for content in (text.encode(), gzip.compress(text.encode()), text.encode("utf-16")):
            if kept or form != "speedscope":
                read = read_profile(content)
                assert {stack: value for stack, value in read.self_values.items() if value} == kept, form


def test_a_run_of_an_exported_file_shows_the_same(run: RunDirectory, tmp_path: Path) -> None:
    view = View(Selected(run, Selection("decode")))
    for form in CARRIERS:
        content = EXPORTS[form].write(view)
        run_id = write_imported(tmp_path, read_profile(content), f"decode.{form}", content)
        again = find_run(tmp_path, run_id)
        (kind,) = again.steps
        values, _ = Selected(again, Selection(kind)).values()
        assert {s: v for s, v in values.items() if v} == {s: v for s, v in view.values[0].items() if v}


@pytest.mark.parametrize(
    ("name", "total", "stacks", "invalid"),
    [
        ("simple-crlf.txt", 14, 3, 0),
        ("simple-utf16-le.txt", 14, 3, 0),
        ("simple-with-invalids.txt", 14, 3, 3),
        ("recursion.txt", 10, 7, 0),
        ("perf-vertx-stacks-01-collapsed-all.txt", 285, 199, 0),
    ],
)
def test_files_of_other_tools_go_through_every_format(
    tmp_path: Path, name: str, total: int, stacks: int, invalid: int
) -> None:
    if not CASES.is_dir():
        pytest.skip(f"{CASES} is not there")
    content = (CASES / name).read_bytes()
    profile = read_profile(content)
    assert (sum(profile.self_values.values()), len(profile.self_values)) == (total, stacks)
    assert (profile.unit, profile.invalid_lines) == ("samples", invalid)
    run_id = write_imported(tmp_path, profile, name, content)
    view = View(Selected(find_run(tmp_path, run_id), Selection("all")))
    for form in CARRIERS:
        again = read_profile(EXPORTS[form].write(view))
        assert {s: v for s, v in again.self_values.items() if v} == profile.self_values, form
        assert again.unit == "samples", form
    assert EXPORTS["svg"].write(view).startswith(b"<svg")


def test_speedscopes_evented_profiles_and_units_are_read() -> None:
    frames = {"frames": [{"name": "main"}, {"name": "a;b"}]}
    events = [
        {"type": "O", "frame": 0, "at": 0},
        {"type": "O", "frame": 1, "at": 1.5},
        {"type": "C", "frame": 1, "at": 2},
        {"type": "C", "frame": 0, "at": 4},
    ]
    evented = {"type": "evented", "name": "t", "unit": "milliseconds", "startValue": 0, "endValue": 4, "events": events}
    sampled = {
        "type": "sampled",
        "name": "s",
        "unit": "seconds",
        "startValue": 0,
        "endValue": 1,
        "samples": [[0], []],
        "weights": [1, 2],
    }
    read = speedscope.load({"shared": frames, "profiles": [evented, sampled]})
    assert read.self_values == {"main": 1_003_500, "main;a%3Bb": 500}
    counted = {**sampled, "unit": "none"}
    assert speedscope.load({"shared": frames, "profiles": [counted]}).unit == "samples"
    with pytest.raises(VimeOtelError, match="count different things: none, seconds"):
        speedscope.load({"shared": frames, "profiles": [counted, sampled]})


@pytest.mark.parametrize(
    "document",
    [
        {"shared": {"frames": [{}]}, "profiles": []},
        {"shared": {"frames": []}, "profiles": [{"type": "sampled", "unit": "none", "samples": [[5]], "weights": [1]}]},
        {
            "shared": {"frames": [{"name": "a"}]},
            "profiles": [{"type": "sampled", "unit": "none", "samples": [[-1]], "weights": [1]}],
        },
        {
            "shared": {"frames": [{"name": "a"}]},
            "profiles": [{"type": "sampled", "unit": "none", "samples": [[0]], "weights": []}],
        },
        {
            "shared": {"frames": [{"name": "a"}]},
            "profiles": [{"type": "sampled", "unit": "none", "samples": [[0]], "weights": [-4]}],
        },
        {
            "shared": {"frames": [{"name": "a"}]},
            "profiles": [
                {"type": "evented", "unit": "none", "startValue": 0, "events": [{"type": "C", "frame": 0, "at": 1}]}
            ],
        },
        {"shared": [], "profiles": {}},
        {"format": "vime-otel stacks", "version": 9},
        {
            "format": "vime-otel stacks",
            "version": 1,
            "kind": "all",
            "steps": 1,
            "unit": "furlongs",
            "stacks": [],
            "self": [],
            "calls": [],
        },
        {
            "format": "vime-otel stacks",
            "version": 1,
            "kind": "all",
            "steps": 1,
            "unit": "bytes",
            "stacks": ["a"],
            "self": [-1],
            "calls": [0],
        },
        {
            "format": "vime-otel stacks",
            "version": 1,
            "kind": "all",
            "steps": 1,
            "unit": "bytes",
            "stacks": ["a"],
            "self": [],
            "calls": [],
        },
        {"something": "else"},
        [],
    ],
)
def test_broken_documents_are_one_line(document: object) -> None:
    with pytest.raises(VimeOtelError) as told:
        read_profile(json.dumps(document).encode())
    assert "\n" not in str(told.value)


def test_a_file_that_inflates_beyond_the_limit_is_refused() -> None:
    bomb = gzip.compress(b"a;b 1\n" * 100_000)
    with pytest.raises(VimeOtelError, match="holds more than"):
        read_profile(bomb, limit=1000)


def test_a_page_that_is_not_ours_is_told() -> None:
    with pytest.raises(VimeOtelError, match="none that `vime-otel export --format html` wrote"):
        read_profile(b"<!doctype html><title>x</title>")


def test_a_stand_alone_page_holds_nothing_from_elsewhere_and_one_script_alone(tmp_path: Path) -> None:
    evil = "</script><script>alert(1)</script>"
    run = RunDirectory(write_sample(tmp_path, sample_recording({f"step;execute_model;{evil}": (9000, 3)}, label=evil)))
    text = EXPORTS["html"].write(View(Selected(run, Selection("decode")))).decode()
    assert "<script>alert" not in text
    assert text.count("<script") == 2
    assert "script-src 'sha256-" in text
    assert "default-src 'none'" in text
    assert 'src="' not in text
    assert escape_frame(evil) in "".join(read_profile(text.encode()).self_values)


@pytest.mark.parametrize("form", list(EXPORTS))
def test_the_command_writes_each_format(tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str) -> None:
    write_sample(tmp_path / "runs")
    target = tmp_path / "out"
    options = ["--runs", str(tmp_path / "runs"), "--format", form, "--rank", f"{ENGINES[0]}-0", "--steps", "1-8"]
    assert main(["export", *options, "-o", str(target)]) == 0
    assert f"wrote {target} ({target.stat().st_size:,} bytes)\nnext: " in capsys.readouterr().out
    assert main(["export", *options]) == 0
    assert capsys.readouterr().out.encode() == target.read_bytes()
