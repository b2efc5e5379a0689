"""Sums over chosen steps are those of the steps themselves, one by one."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import ENGINES, RANKS, by_layer, sample_recording, write_sample

from vime_otel.data.errors import VimeOtelError
from vime_otel.data.recording import sum_overall, sum_rank
from vime_otel.data.rundir import RunDirectory


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return RunDirectory(write_sample(tmp_path_factory.mktemp("runs"), by_layer(sample_recording())))


@given(st.data())
def test_any_choice_of_steps_is_summed_as_by_hand(run: RunDirectory, data: st.DataObject) -> None:
    keys = [(row.engine, row.index) for row in run.rows]
    group_of = data.draw(st.dictionaries(st.sampled_from(keys), st.integers(0, 2), max_size=12))
    summed = run.summed(group_of)
    assert set(summed) == set(group_of.values())
    for group, parts in summed.items():
        steps = [part for part in run.totals() if group_of.get((part.engine, part.index)) == group]
        for layers in (False, True):
            assert sum_overall(parts, layers) == sum_overall(steps, layers)
            for engine in ENGINES:
                for rank in RANKS:
                    assert sum_rank(parts, engine, rank, layers) == sum_rank(steps, engine, rank, layers)
        assert sum(part.spans_made for part in parts) == sum(part.spans_made for part in steps)


@pytest.mark.parametrize(
    ("column", "content", "message"),
    [
        ("inclusive_ns", (-1).to_bytes(8, "little", signed=True), "unequal length"),
        ("calls", None, "negative"),
        ("inclusive_ns", "large", "does not fit 63 bits"),
    ],
)
def test_columns_that_can_not_be_summed_are_told(
    tmp_path: Path, column: str, content: bytes | str | None, message: str
) -> None:
    path = write_sample(tmp_path)
    connection = sqlite3.connect(path / "totals.sqlite")
    (size,) = connection.execute("SELECT length(calls) FROM totals LIMIT 1").fetchone()
    value = {None: b"\xff" * 8, "large": (2**62).to_bytes(8, "little")}.get(content, content)  # type: ignore[call-overload]
    if not isinstance(content, bytes):
        value = value * (size // 8)
    with connection:
        connection.execute(f"UPDATE totals SET {column} = ? WHERE engine = ? AND rank = '0'", (value, ENGINES[0]))
    connection.close()
    run = RunDirectory(path)
    with pytest.raises(VimeOtelError, match=rf"totals\.sqlite can't be read \(.*{message}"):
        run.summed({(row.engine, row.index): 0 for row in run.rows})
