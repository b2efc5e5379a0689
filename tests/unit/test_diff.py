"""`vime-otel diff`, and the same comparison for the page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from samples import ENGINES, RECORDING_ID, WORKER_STACKS, sample_recording, write_sample

from viewer.app import create_app
from vime_otel.cli.main import main

OTHER = "0dd0000000000001"
EXPERTS = next(stack for stack in WORKER_STACKS if stack.endswith("moe.experts"))


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """The sample, and one whose moe.experts take 20 % longer."""
    write_sample(tmp_path)
    us, calls = WORKER_STACKS[EXPERTS]
    write_sample(tmp_path, sample_recording({EXPERTS: (us * 6 // 5, calls)}, id=OTHER, label="slower"))
    return tmp_path


def out(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    status = main(list(args))
    captured = capsys.readouterr()
    assert (status, captured.err) == (0, "")
    return captured.out


def test_the_summary_stands_first_and_the_culprit_heads_the_table(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = out(capsys, "diff", RECORDING_ID, OTHER, "--kind", "decode", "--runs", str(runs)).splitlines()
    assert lines[0] == "decode 11.84 → 12.65 ms per step (+6.8%): moe.experts +0.791"
    assert "note: compared is the middle half of the steps by length" in lines
    assert "requests a step: 64 in A, 64 in B (medians), alike" in lines
    at = lines.index(next(line for line in lines if line.startswith("changed: ")))
    assert lines[at].strip() == "changed: 1"
    assert lines[at + 2].split()[0] == "moe.experts"


def test_the_page_and_the_command_say_the_same(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = json.loads(out(capsys, "diff", RECORDING_ID, OTHER, "--runs", str(runs), "--json"))
    client = create_app(runs).test_client()
    for each in told["kinds"]:
        shown = client.get(f"/api/compare?a={RECORDING_ID}&b={OTHER}&kind={each['kind']}").json
        assert {key: shown[key] for key in ("summary", "verdict", "changes", "loads", "notes")} == {
            key: each[key] for key in ("summary", "verdict", "changes", "loads", "notes")
        }
    assert [each["kind"] for each in told["kinds"]] == ["decode", "prefill"]


def test_the_flame_graph_of_a_comparison_adds_up_on_both_sides(runs: Path) -> None:
    shown = create_app(runs).test_client().get(f"/api/compare?a={RECORDING_ID}&b={OTHER}&kind=decode").json
    tree = shown["tree"]
    assert [tree["a"][0], tree["b"][0]] == pytest.approx([side["step_us"] for side in shown["sides"]], rel=1e-3)
    widths = [(a + b) / 2 for a, b in zip(tree["a"], tree["b"], strict=True)]
    assert sum(tree["self"]) / 1000 == pytest.approx(widths[0], rel=1e-3)
    experts = tree["name"].index(tree["names"].index("moe.experts"))
    assert tree["b"][experts] - tree["a"][experts] > tree["noise"][experts]
    attention = tree["name"].index(tree["names"].index("attn:Attention"))
    assert abs(tree["b"][attention] - tree["a"][attention]) <= tree["noise"][attention]


def test_the_sides_are_named_with_their_ranks_and_steps(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rank = f"{ENGINES[0]}-0"
    lines = out(
        capsys, "diff", RECORDING_ID, "--rank", rank, "--steps", "3", "--steps-b", "4-9", "--runs", str(runs)
    ).splitlines()
    sides = [line.partition(", ")[2] for line in lines if line.startswith(("A: ", "B: "))]
    assert sides == [f"rank {rank}, step 3", f"rank {rank}, steps 4 to 9"]


def test_ranks_and_steps_of_one_run(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rank = f"{ENGINES[0]}-"
    both = ["--runs", str(runs), "--kind", "decode", "--json"]
    ranks = json.loads(out(capsys, "diff", RECORDING_ID, "--rank", f"{rank}0", "--rank-b", f"{rank}1", *both))
    assert ranks["kinds"][0]["verdict"] == "compared"
    steps = json.loads(out(capsys, "diff", RECORDING_ID, "--steps", "1-8", "--steps-b", "10-17", *both))
    assert [side["steps"] + side["left_out"] for side in steps["kinds"][0]["sides"]] == [16, 16]


@pytest.mark.parametrize(
    ("args", "status", "message"),
    [
        ([RECORDING_ID], 2, "compared with what? name a second run"),
        ([RECORDING_ID, "nosuch"], 1, "no run 'nosuch'"),
        ([RECORDING_ID, OTHER, "--kind", "idle"], 1, "has no idle steps"),
        ([RECORDING_ID, OTHER, "--steps", "x"], 2, "'x' is no range of steps"),
        ([RECORDING_ID, OTHER, "--rank", "none"], 1, "has no rank 'none'"),
        ([RECORDING_ID, "--steps-b", "900-999"], 1, "no kind has steps of both sides that fit this choice"),
    ],
)
def test_what_can_not_be_compared_is_one_line(
    runs: Path, capsys: pytest.CaptureFixture[str], args: list[str], status: int, message: str
) -> None:
    assert main(["diff", *args, "--runs", str(runs)]) == status
    captured = capsys.readouterr()
    assert message in captured.err
    assert (captured.out, captured.err.count("\n")) == ("", 1)
