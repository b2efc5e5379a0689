"""The comparison: first whether the loads are alike, then what moved by more than the noise."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from samples import ENGINES, sample_recording, write_sample

from vime_otel.data.compare import Comparison, compare
from vime_otel.data.find_runs import find_run
from vime_otel.data.folded import Folded
from vime_otel.data.imported import write_imported
from vime_otel.data.profile import Profile
from vime_otel.data.recording import ENGINE_PART, Recording, StepRow, StepTotals
from vime_otel.data.rundir import RunDirectory
from vime_otel.data.selection import Selected, Selection

STACKS = {
    "step": 200,
    "step;wait": 100,
    "step;execute_model": 300,
    "step;execute_model;mlp": 2000,
    "step;execute_model;attn": 1400,
}
"""Self time in microseconds of a step."""


def recording(
    seed: int,
    steps: int = 80,
    stacks: Mapping[str, float] = STACKS,
    requests: Callable[[int], int] = lambda index: 64,
    spread: float = 0.02,
) -> Recording:
    """A decode recording of one rank, each frame's time varying by `spread` from step to step."""
    chance = random.Random(seed)
    rows, totals = [], []
    start = 1_764_460_800_000_000_000
    for index in range(steps):
        own = {stack: int(us * 1000 * chance.gauss(1, spread)) for stack, us in stacks.items()}
        whole = Folded()
        for stack in own:
            whole.add(stack, sum(value for below, value in own.items() if (below + ";").startswith(stack + ";")))
        interval = whole.inclusive_ns["step"]
        tokens = requests(index)
        rows.append(
            StepRow(ENGINES[0], index, "decode", False, "eager", start, interval, interval, 0, tokens, tokens, "0" * 32)
        )
        start += interval
        for rank, stage, mine in ((ENGINE_PART, -1, True), ("0", 0, False)):
            kept = {s: ns for s, ns in whole.inclusive_ns.items() if s.startswith("step;execute_model") != mine}
            columns = (tuple(kept), tuple(kept.values()), (1,) * len(kept))
            totals.append(StepTotals(ENGINES[0], rank, stage, index, "decode", *columns, len(kept), 0))
    return Recording({**sample_recording().header, "id": f"{seed:016x}"}, rows, totals)


def compared(tmp_path: Path, a: Recording, b: Recording, **selection: object) -> Comparison:
    sides = [
        Selected(RunDirectory(write_sample(tmp_path / letter, each)), Selection("decode", **selection))  # type: ignore[arg-type]
        for letter, each in (("a", a), ("b", b))
    ]
    return compare(*sides)


@pytest.mark.parametrize("seed", range(20, 30))
def test_a_slowdown_of_one_module_is_named_first_and_nothing_else(tmp_path: Path, seed: int) -> None:
    slower = {**STACKS, "step;execute_model;mlp": 2400}
    found = compared(tmp_path, recording(seed), recording(seed + 1000, stacks=slower))
    assert (found.verdict, found.changes[0].frame, found.changes[0].state) == ("compared", "mlp", "changed")
    assert [change.frame for change in found.changes if change.beyond_noise] == ["mlp"]
    assert found.changes[0].delta_us == pytest.approx(400, rel=0.1)
    assert re.fullmatch(r"decode (4\.0|3\.9). → 4\.[34]. ms per step \(\+(10|9)\..%\): mlp \+0\.[34]..", found.summary)


@pytest.mark.parametrize("seed", range(30, 40))
def test_two_recordings_of_the_same_show_no_change(tmp_path: Path, seed: int) -> None:
    found = compared(tmp_path, recording(seed), recording(seed + 1000))
    assert [change.frame for change in found.changes if change.beyond_noise] == []
    assert found.summary.endswith("nothing changed beyond the noise")


def test_at_another_batch_size_loads_differ_and_no_verdict_is_given(tmp_path: Path) -> None:
    found = compared(tmp_path, recording(1), recording(2, requests=lambda index: 32))
    assert (found.verdict, found.changes) == ("loads differ", [])
    assert found.summary == (
        "loads differ (requests a step 64 and 32, generated tokens 64 and 32), and too few steps are alike:"
        " decode steps are not compared"
    )


def test_where_loads_differ_like_steps_are_matched(tmp_path: Path) -> None:
    """A: 60 steps of 64 requests, 20 of 32; B the other way round. 32 requests take half the time."""
    half = {stack: us / 2 for stack, us in STACKS.items()}

    def mixture(seed: int, many: int) -> Recording:
        large, small = recording(seed, many), recording(seed + 1, 80 - many, half, lambda index: 32)
        rows = [replace(row, index=row.index + many) for row in small.rows]
        totals = [replace(part, index=part.index + many) for part in small.totals]
        return Recording(large.header, [*large.rows, *rows], [*large.totals, *totals])

    found = compared(tmp_path, mixture(3, 60), mixture(5, 20))
    assert (found.verdict, found.a.steps, found.b.steps) == ("matched", 20, 20)
    assert "40 steps of A and 40 of B with like numbers of requests and tokens are compared" in found.notes[0]
    assert found.a.step_us == pytest.approx(3000, rel=0.02)
    assert [change.frame for change in found.changes if change.beyond_noise] == []


def test_loads_that_differ_by_a_little_are_alike(tmp_path: Path) -> None:
    found = compared(tmp_path, recording(7), recording(8, requests=lambda index: 60))
    assert (found.verdict, [load.alike for load in found.loads]) == ("compared", [True, True])


def test_frames_that_appeared_and_vanished_are_listed(tmp_path: Path) -> None:
    other = {stack.replace("attn", "mla"): us for stack, us in STACKS.items()}
    found = compared(tmp_path, recording(9), recording(10, stacks=other))
    assert {change.frame: change.state for change in found.changes if change.beyond_noise} == {
        "attn": "vanished",
        "mla": "appeared",
    }


def test_a_slow_drift_within_a_recording_is_noise(tmp_path: Path) -> None:
    """Both drift by 10 % from their first step to their last; one starts 4 % higher."""

    def drifting(seed: int, start: float) -> Recording:
        parts = [
            recording(seed + part, 10, {stack: us * (start + part / 70) for stack, us in STACKS.items()})
            for part in range(8)
        ]
        rows = [
            replace(row, index=row.index + 10 * n, start_unix_nano=row.start_unix_nano + n * 10**9)
            for n, each in enumerate(parts)
            for row in each.rows
        ]
        totals = [replace(part, index=part.index + 10 * n) for n, each in enumerate(parts) for part in each.totals]
        return Recording(parts[0].header, rows, totals)

    found = compared(tmp_path, drifting(100, 1.0), drifting(200, 1.04))
    assert [change.frame for change in found.changes if change.beyond_noise] == []


def test_what_happens_to_a_few_steps_is_no_change(tmp_path: Path) -> None:
    """One step in five of B is disturbed and takes up to four times as long."""
    a, b = recording(11), recording(12)
    longer = {index: 2 + index % 3 for index in range(0, 80, 5)}
    b.rows = [replace(row, interval_ns=row.interval_ns * longer.get(row.index, 1)) for row in b.rows]
    b.totals = [
        replace(part, inclusive_ns=tuple(longer.get(part.index, 1) * ns for ns in part.inclusive_ns))
        for part in b.totals
    ]
    found = compared(tmp_path, a, b)
    assert (found.a.steps, found.a.left_out, found.b.steps, found.b.left_out) == (40, 40, 40, 40)
    assert "compared is the middle half of the steps by length" in found.notes
    assert found.summary.endswith("nothing changed beyond the noise")


def test_what_was_set_up_differently_is_told(tmp_path: Path) -> None:
    a, b = recording(13), recording(14)
    b.header = {**b.header, "timing": "events"}
    b.rows = [replace(row, execution="full_graph") for row in b.rows]
    found = compared(tmp_path, a, b)
    assert found.notes[1:] == [
        "timing differs: sync in A, events in B",
        "execution differs: eager in A, full_graph in B",
    ]


def test_ranks_and_ranges_of_one_run_can_be_compared(tmp_path: Path) -> None:
    run = RunDirectory(write_sample(tmp_path))
    ranks = [Selected(run, Selection("decode", f"{ENGINES[0]}-{rank}")) for rank in "01"]
    found = compare(*ranks)
    assert found.verdict == "compared"
    assert found.b.step_us == pytest.approx(found.a.step_us, rel=0.05)
    early, late = (Selected(run, Selection("decode", steps=steps)) for steps in ((0, 8), (10, 19)))
    sides = compare(early, late).a, compare(early, late).b
    assert [side.steps + side.left_out for side in sides] == [16, 20]


def test_too_few_steps_show_no_noise_and_the_sentence_says_so(tmp_path: Path) -> None:
    """A usual step beside one in which a frame took long: what differs is wanted, not what is usual."""
    a, b = recording(15, 2), recording(16, 2)
    b.totals = [
        replace(part, inclusive_ns=tuple(90 * ns for ns in part.inclusive_ns))
        if (part.index, part.rank) == (1, "0")
        else part
        for part in b.totals
    ]
    found = compared(tmp_path, a, b)
    assert [change.frame for change in found.changes if change.beyond_noise][:2] == ["mlp", "attn"]
    assert all(change.noise_us is None for change in found.changes)
    assert found.summary.endswith("; the noise is not known")
    assert [note.split(":")[0] for note in found.notes] == [
        f"{side} has too few steps to see its noise by" for side in "AB"
    ]
    same = compared(tmp_path / "same", recording(17, 2, spread=0), recording(18, 2, spread=0))
    assert same.summary.endswith("no frame moved by more than 0.5% of the step")


def test_what_the_named_frames_leave_unexplained_is_told(tmp_path: Path) -> None:
    """Forty noisy frames are 4 % slower each, which none shows for itself; a steady one is by a little."""
    many = {f"step;execute_model;layer{n}": 100.0 for n in range(40)}

    def side(seed: int, factor: float, steady: float) -> Recording:
        stacks = {**STACKS, **{stack: us * factor for stack, us in many.items()}}
        made = recording(seed, 80, stacks, spread=0.08)
        return with_steady(made, steady)

    def with_steady(made: Recording, us: float) -> Recording:
        ns = round(us * 1000)
        made.totals = [with_more(part, ns) for part in made.totals]
        return made

    def with_more(part: StepTotals, ns: int) -> StepTotals:
        above = ("step", "step;execute_model")
        longer = [ns * (stack in above) + old for stack, old in zip(part.stacks, part.inclusive_ns, strict=True)]
        if part.rank != "0":
            return replace(part, inclusive_ns=tuple(longer))
        stacks = (*part.stacks, "step;execute_model;steady")
        return replace(part, stacks=stacks, calls=(*part.calls, 1), inclusive_ns=(*longer, ns))

    found = compared(tmp_path, side(19, 1.0, 400), side(20, 1.04, 450))
    assert [change.frame for change in found.changes if change.beyond_noise] == ["steady"]
    assert re.search(r"steady \+0\.050; \+0\.\d+ is spread over frames that moved no further", found.summary)


def test_counts_are_not_told_as_times(tmp_path: Path) -> None:
    ids = [
        write_imported(tmp_path, Profile(values, unit="samples"), "file", str(values).encode())
        for values in ({"main": 1000, "main;work": 9000}, {"main": 1000, "main;work": 4000})
    ]
    a, b = (Selected(find_run(tmp_path, each), Selection("all")) for each in ids)
    assert compare(a, b).summary == "all 10,000 → 5,000 samples (−50.0%): work −5,000; the noise is not known"


def test_files_without_steps_are_compared_by_their_sums(tmp_path: Path) -> None:
    ids = [
        write_imported(tmp_path, Profile(values, unit="samples"), "file", str(values).encode())
        for values in ({"main": 10, "main;work": 90}, {"main": 10, "main;work": 45, "main;rest": 3})
    ]
    a, b = (Selected(find_run(tmp_path, each), Selection("all")) for each in ids)
    found = compare(a, b)
    assert [(change.frame, change.state) for change in found.changes] == [
        ("work", "changed"),
        ("rest", "appeared"),
        ("main", "unchanged"),
    ]
    assert all(change.noise_us is None for change in found.changes)
    assert any("no steps to see its noise by" in note for note in found.notes)
