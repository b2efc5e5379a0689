"""A compiled engine: its short tree and why it is short, the whole tree by --force-eager, and the way back."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

import pytest
from scripts import run_script

from vime_otel.cli.main import main
from vime_otel.data.rundir import RunDirectory

pytestmark = pytest.mark.engine

MODEL = "step;execute_model;Qwen3MoeForCausalLM"
RECORDED = 10


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the script keeps its runs."""
    return tmp_path_factory.mktemp("compiled")


@pytest.fixture(scope="module")
def found(model_with_weights: Path, directory: Path) -> dict[str, Any]:
    env = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
    return run_script("compiled.py", model_with_weights, directory / "dir", env)


@pytest.fixture
def runs(found: dict[str, Any], directory: Path) -> dict[str, RunDirectory]:
    """A plain recording, a forced one, and a plain one after that."""
    return {name: RunDirectory(directory / name) for name in ("first", "forced", "last")}


def below_the_model(run: RunDirectory) -> set[str]:
    return {stack for stack in run.calls("decode", by_layer=run.has_layers) if stack.startswith(f"{MODEL};")}


@pytest.mark.parametrize(
    ("name", "execution"), [("first", "compiled"), ("forced", "forced_eager"), ("last", "compiled")]
)
def test_every_step_says_how_it_ran(runs: dict[str, RunDirectory], name: str, execution: str) -> None:
    run = runs[name]
    assert (run.header["complete"], run.header["reasons"]) == (True, [])
    assert [(row.kind, row.execution) for row in run.rows] == [("decode", execution)] * RECORDED


@pytest.mark.parametrize("name", ["first", "last"])
def test_a_compiled_model_is_one_frame(runs: dict[str, RunDirectory], name: str) -> None:
    assert runs[name].calls("decode")[MODEL] == RECORDED
    assert below_the_model(runs[name]) == set()


def test_a_forced_run_shows_every_module_of_every_layer(runs: dict[str, RunDirectory]) -> None:
    run = runs["forced"]
    assert run.has_layers
    for number in range(2):
        layer = f"{MODEL};model:Qwen3MoeModel;layers.{number}:Qwen3MoeDecoderLayer"
        assert {
            f"{layer};input_layernorm:RMSNorm",
            f"{layer};self_attn:Qwen3MoeAttention;attn:Attention",
            f"{layer};mlp:Qwen3MoeSparseMoeBlock;experts:MoERunner;moe.route",
        } <= below_the_model(run)
    calls = run.calls("decode")
    assert calls[f"{MODEL};model:Qwen3MoeModel;Qwen3MoeDecoderLayer"] == 2 * RECORDED, "both layers"


def test_top_explains_the_short_tree_and_names_the_way_out(
    runs: dict[str, RunDirectory], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["top", str(runs["last"].path)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert f"compiled ({RECORDED} of {RECORDED} steps): compiled regions run as one" in text
    assert "--force-eager" in text
    assert main(["top", str(runs["forced"].path)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "forced eager" in text
    assert "read shares, not milliseconds" in text


def test_steps_after_a_forced_window_take_what_they_took_before(found: dict[str, Any]) -> None:
    after, forced = found["after/before"], found["forced/before"]
    print(f"after/before {after}, forced/before {forced}, medians in ms {found['medians_ms']}")
    # Busy neighbours widen the interval; compiled code that does not come back moves it to that of forced steps.
    assert after["low"] < 1.25
    assert after["high"] > 0.8
    assert after["ratio"] < forced["ratio"]


def test_the_recording_holds_the_pace_of_unrecorded_steps(found: dict[str, Any]) -> None:
    paces = [window["engines"][0]["unrecorded"]["decode"] for window in found["windows"]]
    assert {pace["batch"] for pace in paces} == {4}
    measured = median(each["before"] for each in found["medians_ms"])
    told = median(pace["before_ms"] for pace in paces)
    assert measured / 3 < told < 3 * measured
    assert any(pace["after_ms"] for pace in paces)


def test_nothing_is_left_on_any_module(found: dict[str, Any]) -> None:
    assert found["left_behind"] == [[]]
