"""Two recordings of one real engine: a slowdown that was planted in one module is named, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from scripts import run_script

from vime_otel.data.compare import compare
from vime_otel.data.rundir import RunDirectory
from vime_otel.data.selection import Selected, Selection
from vime_otel.demo.tiny_model import write_tiny_model

pytestmark = [pytest.mark.engine, pytest.mark.long]

PLANTED = "mlp:Qwen3MoeSparseMoeBlock"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunDirectory]:
    """The recordings that the script made: `before`, `again`, `slower` (20 %), `half` (half the batch)."""
    model = write_tiny_model(tmp_path_factory.mktemp("model"), hidden_size=256, moe_intermediate_size=256)
    directory = tmp_path_factory.mktemp("slowdown") / "dir"
    env = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "OMP_NUM_THREADS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    }
    found = run_script("slowdown.py", model, directory, env)
    return {name: RunDirectory(Path(path)) for name, path in found["runs"].items()}


def decode(run: RunDirectory) -> Selected:
    return Selected(run, Selection("decode"))


def test_the_module_that_was_slowed_down_comes_first_and_nothing_else_is_above_the_noise(
    runs: dict[str, RunDirectory],
) -> None:
    found = compare(decode(runs["before"]), decode(runs["slower"]))
    print(found.summary)
    assert found.verdict == "compared"
    first = found.changes[0]
    assert (first.frame, first.state) == (PLANTED, "changed")
    assert [change.frame for change in found.changes if change.beyond_noise] == [PLANTED]


def test_without_a_slowdown_nothing_is_above_the_noise(runs: dict[str, RunDirectory]) -> None:
    found = compare(decode(runs["before"]), decode(runs["again"]))
    print(found.summary)
    assert [change.frame for change in found.changes if change.beyond_noise] == []


def test_at_another_batch_size_loads_differ(runs: dict[str, RunDirectory]) -> None:
    found = compare(decode(runs["before"]), decode(runs["half"]))
    print(found.summary)
    assert (found.verdict, found.changes) == ("loads differ", [])
