"""From an engine's window to rows, spans and totals."""

from __future__ import annotations

import array
from collections.abc import Sequence
from dataclasses import replace

from vime_otel.data.otlp import MAX_PAYLOAD_BYTES, MAX_SPANS_PER_RANK_STEP, step_ids
from vime_otel.data.recording import ENGINE_PART
from vime_otel.recorder.assemble import AssembledStep, assemble
from vime_otel.recorder.send import span_messages
from vime_otel.recorder.window import Clock, Command, EngineStep, RankLog, StepCounts, Window

HERE = Clock("boot-a", 0, 1_000_000)
DECODE = StepCounts("decode", False, 0, 8, 8)
FRAMES = [("execute_model", ""), ("sample_tokens", ""), ("mlp:Block", "layers.0.mlp")]
EXECUTE, SAMPLE, MLP = range(3)


def window(*ranks: RankLog, steps: list[EngineStep] | None = None) -> Window:
    engine = {"engine": "e" * 16, "execution": "eager"}
    steps = steps or [EngineStep(0, DECODE, 1000, 1100, 1900, 2000, 0, 0)]
    return Window(Command("r" * 16, len(steps)), engine, HERE, steps, list(ranks))


def rank(*entries: Sequence[int], number: int = 0, starts: list[int] | None = None, clock: Clock = HERE) -> RankLog:
    flat = [value for entry in entries for value in entry]
    return RankLog(number, 0, 1, clock, FRAMES, array.array("q", flat).tobytes(), starts or [0])


def only(of: Window) -> AssembledStep:
    (step,) = assemble(of)
    return step


def engine_totals(step: AssembledStep) -> dict[str, int]:
    part = step.engine_part.totals
    return dict(zip(part.stacks, part.inclusive_ns, strict=True))


def test_the_root_is_the_whole_step_in_unix_time_and_has_the_agreed_ids() -> None:
    step = only(window(rank((EXECUTE, 1200, 1500))))
    assert (step.root.start_unix_nano, step.root.end_unix_nano) == (1_001_000, 1_002_000)
    trace_id, root_id = step_ids("r" * 16, "e" * 16, 0)
    assert (step.row.trace_id, step.root.span_id) == (trace_id.hex(), root_id)
    assert step.root.name == "decode step"


def test_waiting_is_what_no_rank_and_no_other_engine_frame_covers() -> None:
    step = only(window(rank((MLP, 1300, 1400), (EXECUTE, 1200, 1500), (SAMPLE, 1600, 1700))))
    assert [(s.name, s.duration_ns) for s in step.engine_part.spans] == [
        ("schedule", 100),
        ("wait", 100),
        ("wait", 100),
        ("wait", 200),
        ("update_from_output", 100),
    ]
    totals = engine_totals(step)
    assert totals["step"] == 1000
    assert sum(value for stack, value in totals.items() if stack != "step") + 300 + 100 == 1000


def test_ranks_that_work_at_the_same_time_leave_no_gap_between_them() -> None:
    first, second = rank((EXECUTE, 1200, 1500)), rank((EXECUTE, 1400, 1800), number=1)
    assert engine_totals(only(window(first, second)))["step;wait"] == 100 + 100


def test_overlapping_steps_count_their_interval_and_show_their_whole_length() -> None:
    steps = [
        EngineStep(0, DECODE, 1000, 1100, 1900, 2000, 0, 0),
        EngineStep(1, DECODE, 1500, 1600, 2400, 2500, 2000, 1),
    ]
    rows = [step.row for step in assemble(window(rank(starts=[0, 0]), steps=steps))]
    assert [(row.duration_ns, row.interval_ns) for row in rows] == [(1000, 1000), (1000, 500)]


def test_each_step_gets_its_own_stretch_of_the_log() -> None:
    steps = [
        EngineStep(0, DECODE, 1000, 1100, 1900, 2000, 0, 0),
        EngineStep(1, DECODE, 2000, 2100, 2900, 3000, 2000, 1),
    ]
    log = rank((EXECUTE, 1200, 1500), (EXECUTE, 2200, 2600), starts=[0, 3])
    parts = [step.rank_parts[0] for step in assemble(window(log, steps=steps))]
    assert [[span.duration_ns for span in part.spans] for part in parts] == [[300], [400]]


def test_what_lies_outside_of_the_step_is_left_out() -> None:
    step = only(window(rank((EXECUTE, 1200, 1500), (MLP, 2100, 2200))))
    assert [span.name for span in step.rank_parts[0].spans] == ["execute_model"]


def test_a_rank_without_the_step_has_an_empty_part() -> None:
    log = RankLog(0, 0, 1, HERE, FRAMES, b"", [])
    assert only(window(log)).rank_parts[0].totals.stacks == ()


def test_a_rank_on_another_host_is_placed_by_the_wall_clocks() -> None:
    elsewhere = Clock("boot-b", 50_000, 1_001_000)
    step = only(window(rank((EXECUTE, 50_200, 50_500), clock=elsewhere)))
    (span,) = step.rank_parts[0].spans
    assert (span.start_unix_nano, span.end_unix_nano) == (1_001_200, 1_001_500)


def test_too_many_spans_are_capped_deepest_first_and_the_totals_stay_whole() -> None:
    count = MAX_SPANS_PER_RANK_STEP + 10
    entries = [(MLP, 1201 + n, 1201 + n) for n in range(count)]
    steps = [EngineStep(0, DECODE, 1000, 1100, 99_000, 100_000, 0, 0)]
    part = only(window(rank(*entries, (EXECUTE, 1200, 90_000)), steps=steps)).rank_parts[0]
    assert len(part.spans) == MAX_SPANS_PER_RANK_STEP
    assert part.dropped_on is not None
    assert part.dropped_on.name == "execute_model"
    assert (part.totals.spans_made, part.totals.spans_dropped) == (count + 1, 11)
    assert dict(zip(part.totals.stacks, part.totals.calls, strict=True))["step;execute_model;mlp:Block"] == count


def test_spans_with_long_names_are_capped_to_what_a_request_holds() -> None:
    frames = [("execute_model", ""), ("sample_tokens", ""), ("m" * 3000, "layers.0.mlp")]
    entries = [(MLP, 1201 + n, 1201 + n) for n in range(1000)]
    log = replace(rank(*entries, (EXECUTE, 1200, 90_000)), frames=frames)
    step = only(window(log, steps=[EngineStep(0, DECODE, 1000, 1100, 99_000, 100_000, 0, 0)]))
    (part,) = step.rank_parts
    assert 0 < part.totals.spans_dropped < 1000
    messages = span_messages(window(log), step, part)
    assert 0.9 * MAX_PAYLOAD_BYTES < sum(message.ByteSize() for message in messages) <= MAX_PAYLOAD_BYTES


def test_span_ids_are_unique_over_the_parts() -> None:
    step = only(window(rank((EXECUTE, 1200, 1500)), rank((EXECUTE, 1200, 1500), number=1)))
    spans = [step.root, *step.engine_part.spans, *(s for part in step.rank_parts for s in part.spans)]
    assert len({span.span_id for span in spans}) == len(spans)


def test_the_engines_own_part_counts_the_root_among_its_spans() -> None:
    part = only(window(rank((EXECUTE, 1200, 1500)))).engine_part
    assert part.totals.rank == ENGINE_PART
    assert part.totals.spans_made == len(part.spans) + 1


def overlapping(execute: list[tuple[int, int]]) -> tuple[list[EngineStep], RankLog]:
    """Steps of which each is scheduled while the one before runs, every 1000 ticks, and one rank's work on them."""
    steps = [
        EngineStep(n, DECODE, at := 1000 * n, at + 100, at + 1900, at + 2000, at + 1000 if n else 0, n, None, at + 1000)
        for n in range(len(execute))
    ]
    steps[-1].next_schedule_start = 0
    log = rank(*[(EXECUTE, *stretch) for stretch in execute], starts=[3 * n for n in range(len(execute))])
    return steps, log


def test_intervals_of_overlapping_steps_touch_where_the_ranks_are_done() -> None:
    steps, log = overlapping([(200, 1150), (1150, 2150), (2150, 3150)])
    assembled = list(assemble(window(log, steps=steps)))
    assert [step.row.interval_ns for step in assembled] == [1150, 1000, 1850]
    assert sum(step.row.interval_ns for step in assembled) == steps[-1].update_end - steps[0].schedule_start
    assert [step.row.overlapped for step in assembled] == [True, True, True]
    assert [step.root.duration_ns for step in assembled] == [2000, 2000, 2000]


def test_what_the_engine_does_beside_a_rank_at_work_is_not_on_the_clock() -> None:
    steps, log = overlapping([(200, 1150), (1150, 2150), (2150, 3150)])
    first, second, third = assemble(window(log, steps=steps))
    assert engine_totals(first)["step;schedule"] == 100
    assert engine_totals(second)["step;schedule"] == 0
    assert engine_totals(second)["step;update_from_output"] == 0
    assert engine_totals(third)["step;update_from_output"] == 100
    assert "step;wait" not in engine_totals(second)
    whole = sum(sum(engine_totals(step).values()) - engine_totals(step)["step"] for step in (first, second, third))
    worked = sum(totals for step in (first, second, third) for totals in step.rank_parts[0].totals.inclusive_ns)
    assert whole + worked == sum(step.row.interval_ns for step in (first, second, third))


def test_a_step_between_unrecorded_ones_has_the_interval_in_which_it_ran() -> None:
    steps, _ = overlapping([(200, 1150), (1150, 2150), (2150, 3150)])
    middle = replace(steps[1], position=0)
    alone = rank((EXECUTE, 1150, 2150))
    step = only(window(alone, steps=[middle]))
    assert step.row.interval_ns == 1000
    assert engine_totals(step)["step;schedule"] == 0
    assert sum(engine_totals(step).values()) - engine_totals(step)["step"] == 0
    assert step.engine_part.spans[0].duration_ns == 100
    assert step.engine_part.spans[0].counted_ns == 0


def test_a_rank_that_works_inside_the_engines_process_gets_its_own_time() -> None:
    # schedule, execute and then the update of the step before, one after the other.
    steps = [
        EngineStep(0, DECODE, 0, 100, 1500, 1600, 0, 0, None, 800),
        EngineStep(1, DECODE, 800, 900, 1600, 1700, 1600, 1, None, 0),
    ]
    log = rank((EXECUTE, 100, 800), (EXECUTE, 900, 1500), starts=[0, 3])
    first, second = assemble(window(log, steps=steps))
    assert (first.row.interval_ns, second.row.interval_ns) == (800, 900)


def test_a_rank_that_nobody_waits_for_may_sample_after_the_step_and_counts_all_of_it() -> None:
    step = only(window(rank((EXECUTE, 1200, 1500), (SAMPLE, 1980, 2100), (MLP, 2200, 2300))))
    (part,) = step.rank_parts
    totals = dict(zip(part.totals.stacks, part.totals.inclusive_ns, strict=True))
    assert totals == {"step;execute_model": 300, "step;sample_tokens": 120}
    assert [(span.name, span.duration_ns, span.counted_ns) for span in part.spans] == [
        ("execute_model", 300, None),
        ("sample_tokens", 20, 120),
    ]
