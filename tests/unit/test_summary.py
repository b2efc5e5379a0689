"""What a person reads first of a run: the opening line, what recording cost, notes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from samples import idle_row, sample_recording

from vime_otel.data.recording import StepRow
from vime_otel.data.summary import cost_line, make_notes, notes, opening_line, top_frames

ROW = next(row for row in sample_recording().rows if row.kind == "decode")
WHOLE_TREE = "record with --force-eager to see the whole tree (it runs other kernels: read shares, not milliseconds)"


def row(engine: str = "a", ms: float = 58.3, **changes: Any) -> StepRow:
    return replace(ROW, **{"engine": engine, "interval_ns": int(ms * 1e6), "requests": 64} | changes)


def engine(label: str = "h:1/0", **told: Any) -> dict[str, Any]:
    return {"id": "a" * 16, "label": label, **told}


def pace(batch: int, before_ms: float | None, after_ms: float | None) -> dict[str, Any]:
    return {"decode": {"batch": batch, "before_ms": before_ms, "after_ms": after_ms}}


def test_production_stands_beside_what_was_recorded() -> None:
    header = {"timing": "sync", "engines": [engine(unrecorded=pace(64, 11.0, 11.4))]}
    rows = [row(execution="forced_eager"), row(execution="forced_eager", kind="prefill", ms=90.0)]
    assert opening_line(header, rows) == (
        "production step 11.2 ms (batch 64) · recorded decode step 58.3 ms (batch 64, 1 step, forced eager, sync)"
        " · prefill step 90.0 ms (1 step) on 1 engine: read shares, not milliseconds"
    )


def test_a_median_that_is_known_on_one_side_or_on_some_engines_does() -> None:
    engines = [engine(unrecorded=pace(60, 10.0, None)), engine(unrecorded=pace(64, None, None)), engine()]
    line = opening_line({"timing": "host", "engines": engines}, [row("a", 11.0), row("b", 11.0), row("c", 11.0)])
    assert line == (
        "production step 10.0 ms (batch 60) on 1 engine · recorded decode step 11.0 ms (batch 64, 3 steps, eager, host)"
        " on 3 engines"
    )


@pytest.mark.parametrize(("ms", "told"), [(12.4, False), (12.6, True)])
def test_shares_are_to_be_read_where_recorded_steps_are_notably_slower(ms: float, told: bool) -> None:
    header = {"timing": "sync", "engines": [engine(unrecorded=pace(64, 10.0, 10.0))]}
    assert opening_line(header, [row(ms=ms)]).endswith("read shares, not milliseconds") == told


def test_one_long_step_neither_hides_the_median_nor_makes_recording_look_slow() -> None:
    header = {"timing": "sync", "engines": [engine(unrecorded=pace(64, 10.0, 10.0))]}
    line = opening_line(header, [row(ms=11.0), row(ms=11.0), row(ms=11.0), row(ms=500.0)])
    assert line == (
        "production step 10.0 ms (batch 64) · recorded decode step 133.2 ms (batch 64, 4 steps, median 11.0 ms, eager,"
        " sync) on 1 engine"
    )


def test_kinds_that_ran_differently_say_so() -> None:
    rows = [row(execution="full_graph"), row(execution="compiled+piecewise", kind="prefill")]
    line = opening_line({"timing": "sync"}, rows)
    assert "(batch 64, 1 step, full graph, sync) · prefill step 58.3 ms (1 step, compiled+piecewise) on" in line


def test_idle_steps_are_told_and_not_averaged() -> None:
    assert opening_line({"timing": "sync"}, [row(ms=5.0), idle_row("b", 0), idle_row("b", 1)]) == (
        "recorded decode step 5.0 ms (batch 64, 1 step, eager, sync) · 2 idle steps on 2 engines"
    )
    assert opening_line({}, [idle_row("b", 0)]) == "recorded 1 idle step on 1 engine"
    assert opening_line({}, []) == "recorded no steps on 0 engines"


def test_what_recording_cost_is_told() -> None:
    overheads = [engine(overhead={"added_us_per_step": cost}) for cost in (80.0, 115.5)]
    assert cost_line({"engines": overheads, "pause_ms": 0.7}) == (
        "recording added about 116 µs to a step (calculated from what a span costs);"
        " the longest pause between two steps was 0.7 ms"
    )
    assert "added about 2.5 ms to" in cost_line({"engines": [engine(overhead={"added_us_per_step": 2460.0})]})
    assert cost_line({"engines": [engine(overhead={"span_ns": 3.0}), engine(overhead=None)]}) == ""


def test_notes_explain_short_trees() -> None:
    rows = [row(execution="compiled"), row(execution="compiled+piecewise"), row(), idle_row("b", 0)]
    assert make_notes([], rows) == [
        "compiled (2 of 3 steps): compiled regions run as one: modules inside them show no frames of their own;"
        f" {WHOLE_TREE}",
        "piecewise (1 of 3 steps): CUDA graphs are replayed in place of the modules between attention layers, which"
        f" show no frames of their own; {WHOLE_TREE}",
    ]
    (graph,) = make_notes([], [row(execution="full_graph")])
    assert graph.startswith("full graph (1 of 1 step): one CUDA graph is replayed in place of the whole model")
    (forced,) = make_notes([], [row(execution="forced_eager")])
    assert "other kernels ran than usual: read shares, not milliseconds" in forced
    assert "--force-eager" not in forced
    assert make_notes([], [row()]) == []


def test_notes_name_missing_hooks_and_gather_what_engines_noted() -> None:
    engines = [
        engine("h:1/0", hooks={"found": [], "missing": ["moe.route", "sample"]}, notes=["the log was full"]),
        engine("h:2/0", hooks=None, notes=["the log was full", "two models"]),
    ]
    assert make_notes(engines, []) == [
        "not found in this vLLM, so without frames of their own: moe.route, sample (h:1/0)",
        "the log was full",
        "two models (h:2/0)",
    ]


def test_a_run_that_holds_its_notes_is_believed() -> None:
    rows = [row(execution="compiled")]
    assert notes({"notes": ["as it was told"]}, rows) == ["as it was told"]
    assert notes({}, rows) == make_notes([], rows)


def test_top_frames_tell_layers_apart_in_the_order_of_their_numbers() -> None:
    stacks = {f"step;layers.{number}:Layer;mlp:MLP": 5 for number in (10, 2)} | {"step": 4}
    assert [(frame.layer, frame.frame) for frame in top_frames(stacks, stacks, 1)] == [
        ("layers.2", "mlp:MLP"),
        ("layers.10", "mlp:MLP"),
        ("", "step"),
    ]
