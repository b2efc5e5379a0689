"""Faults planted into the recorder of a real TP=2 engine: requests and other callers do not notice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from scripts import run_script

pytestmark = pytest.mark.engine

FAULTS = {"wrapper": "planted in a wrapper", "arm": "planted in arm", "take": "planted in take"}


@pytest.fixture(scope="module")
def found(model_with_weights: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    directory = tmp_path_factory.mktemp("faults") / "dir"
    return run_script("faults.py", model_with_weights, directory, {"VLLM_CPU_OMP_THREADS_BIND": "0|1"})


@pytest.mark.parametrize("case", ["whole", "after"])
def test_both_ranks_record_the_same_steps(found: dict[str, Any], case: str) -> None:
    header = found[case]["header"]
    (engine,) = header["engines"]
    assert (header["complete"], header["reasons"]) == (True, [])
    assert [rank["rank"] for rank in engine["ranks"]] == ["0", "1"]
    assert sum(engine["steps"].values()) == 8


@pytest.mark.parametrize("case", ["whole", *FAULTS, "after"])
def test_tokens_are_the_same_before_in_and_after_the_window(found: dict[str, Any], case: str) -> None:
    assert found[case]["generations"] > 0
    assert found[case]["different"] == 0


@pytest.mark.parametrize("case", FAULTS)
def test_the_recording_says_what_went_wrong_and_on_which_rank(found: dict[str, Any], case: str) -> None:
    header = found[case]["header"]
    assert header["complete"] is False
    assert any(reason.startswith("rank 1: ") and FAULTS[case] in reason for reason in header["reasons"])


@pytest.mark.parametrize("case", FAULTS)
def test_an_unrelated_call_is_answered_correctly_afterwards(found: dict[str, Any], case: str) -> None:
    assert found[case]["ranks"] == [[0, 1]] * 10


@pytest.mark.parametrize("case", FAULTS)
def test_nothing_is_left_on_either_rank(found: dict[str, Any], case: str) -> None:
    assert found[case]["left_behind"] == [[], []]
