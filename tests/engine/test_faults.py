"""A fault planted into the recorder of a real TP=2 engine: requests and other callers do not notice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from scripts import run_script

pytestmark = pytest.mark.engine

WINDOWS = ("before", "with", "after")


@pytest.fixture(
    scope="module",
    params=["wrapper", pytest.param("arm", marks=pytest.mark.long), pytest.param("take", marks=pytest.mark.long)],
)
def fault(request: pytest.FixtureRequest) -> str:
    """Where it is planted."""
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def found(fault: str, model_with_weights: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What came of a window before the fault, of one with it, and of one after it was pulled out."""
    env = {"VLLM_CPU_OMP_THREADS_BIND": "0|1", "VIME_TEST_FAULT": fault}
    return run_script("faults.py", model_with_weights, tmp_path_factory.mktemp("faults") / "dir", env)


@pytest.mark.parametrize("window", ["before", "after"])
def test_both_ranks_record_the_same_steps(found: dict[str, Any], window: str) -> None:
    header = found[window]["header"]
    (engine,) = header["engines"]
    assert (header["complete"], header["reasons"]) == (True, [])
    assert [rank["rank"] for rank in engine["ranks"]] == ["0", "1"]
    assert sum(engine["steps"].values()) == 8


@pytest.mark.parametrize("window", WINDOWS)
def test_tokens_are_the_same_before_in_and_after_the_window(found: dict[str, Any], window: str) -> None:
    assert found[window]["generations"] > 0
    assert found[window]["different"] == 0


def test_the_recording_says_what_went_wrong_and_on_which_rank(found: dict[str, Any], fault: str) -> None:
    header, told = found["with"]["header"], "a wrapper" if fault == "wrapper" else fault
    assert header["complete"] is False
    assert any(reason.startswith("rank 1: ") and f"planted in {told}" in reason for reason in header["reasons"])


def test_an_unrelated_call_is_answered_correctly_afterwards(found: dict[str, Any]) -> None:
    assert found["ranks"] == [[0, 1]] * 10


def test_nothing_is_left_on_either_rank(found: dict[str, Any]) -> None:
    assert found["left_behind"] == [[], []]
