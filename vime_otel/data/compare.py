"""What changed between two recordings, ranks or ranges of steps; pure but for reading the runs.

First whether the two were given the same work: where they were not, steps of a like number of tokens are compared,
and where there are too few of these, nothing is. A frame counts as changed when its self time per step moved by
more than it moves between parts of the same recording.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from .folded import Folded, inclusive, unescape_frame
from .loads import Load, compare_loads, in_time, match
from .profile import MICROSECONDS
from .recording import StepRow
from .selection import Selected
from .selection import self_us as self_us_of

PARTS = 8
"""Into so many parts, one after another, a recording's steps are cut to see how it varies by itself."""

FEWEST = 5
"""Steps that have to match on each side for a comparison, and that show a side's noise."""

LEAST_SHARE = 0.005
"""Of the step: smaller changes are noise whatever the spread."""

FEWEST_HALVED = 16
"""From so many steps on the shortest and the longest quarter are left out."""


@dataclass(frozen=True)
class Change:
    """A frame's self time per step in microseconds on both sides, wherever it stands, and what is noise."""

    frame: str
    a_us: float
    b_us: float
    noise_us: float | None
    state: str
    """`changed`, `unchanged`, `appeared` or `vanished`."""
    beyond_noise: bool

    @property
    def delta_us(self) -> float:
        """How much longer B takes."""
        return self.b_us - self.a_us


@dataclass
class Side:
    """What of one side is compared: the steps, their sum, and the sums of the parts that show its noise."""

    name: str
    steps: int
    rows: list[StepRow]
    per_step_us: dict[str, float]
    """Self time in microseconds per step by stack."""
    parts: list[dict[str, float]] = field(default_factory=list)
    left_out: int = 0

    @property
    def step_us(self) -> float:
        """Microseconds per step."""
        return sum(self.per_step_us.values())


@dataclass
class Comparison:
    """The two sides, what differs in their work, and the frames, most changed first.

    `verdict` is `compared`, `matched` (on steps of like token counts) or `loads differ`; `changes` is empty then.
    """

    kind: str
    verdict: str
    loads: list[Load]
    notes: list[str]
    a: Side
    b: Side
    changes: list[Change]
    summary: str

    @property
    def noise_known(self) -> bool:
        """Whether both sides have steps enough to show theirs."""
        return _noise_known(self.a, self.b)

    def as_dict(self) -> dict[str, Any]:
        """For JSON, times in microseconds per step."""
        return {
            "kind": self.kind,
            "verdict": self.verdict,
            "summary": self.summary,
            "loads": [asdict(load) for load in self.loads],
            "notes": self.notes,
            "sides": [
                {"name": s.name, "steps": s.steps, "left_out": s.left_out, "step_us": s.step_us}
                for s in (self.a, self.b)
            ],
            "changes": [{**asdict(change), "delta_us": change.delta_us} for change in self.changes],
        }


def compare(a: Selected, b: Selected, names: tuple[str, str] = ("A", "B")) -> Comparison:
    """Compare two selections of one kind."""
    loads = compare_loads(a.rows, b.rows)
    verdict = "compared"
    rows_a, rows_b = a.rows, b.rows
    if any(not load.alike for load in loads):
        rows_a, rows_b = match(a.rows, b.rows)
        verdict = "matched" if len(rows_a) >= FEWEST else "loads differ"
        if verdict == "loads differ":
            rows_a, rows_b = a.rows, b.rows
    side_a, side_b = (_side(each, rows, name) for each, rows, name in zip((a, b), (rows_a, rows_b), names, strict=True))
    changes = [] if verdict == "loads differ" else _changes(side_a, side_b)
    notes = _notes(a, b, verdict, side_a, side_b)
    kind = a.selection.kind
    if verdict == "loads differ":
        summary = _loads_differ(kind, loads)
    else:
        summary = _summary(kind, side_a, side_b, changes, str(a.run.header.get("unit") or MICROSECONDS))
    return Comparison(kind, verdict, loads, notes, side_a, side_b, changes, summary)


def _side(selected: Selected, rows: Sequence[StepRow], name: str) -> Side:
    """Sum a side's steps in parts; a run without rows (an imported file) has one part and no spread."""
    if not rows:
        values, steps = selected.values()[0], max(selected.steps, 1)
        return Side(name, steps, [], {stack: value / steps for stack, value in values.items()})
    usual = _typical(rows)
    count = min(PARTS, len(usual))
    part_of = {(row.engine, row.index): number * count // len(usual) for number, row in enumerate(in_time(usual))}
    sums = selected.grouped(part_of)
    steps_of = [sum(1 for part in part_of.values() if part == number) for number in range(count)]
    parts = [
        {stack: value / steps_of[number] for stack, value in self_us_of(sums.get(number, Folded())).items()}
        for number in range(count)
    ]
    whole: dict[str, float] = {}
    for number, part in enumerate(parts):
        for stack, value in part.items():
            whole[stack] = whole.get(stack, 0.0) + value * steps_of[number] / len(usual)
    shown = parts if len(usual) >= FEWEST else []
    return Side(name, len(usual), list(usual), whole, shown, len(rows) - len(usual))


def _typical(rows: Sequence[StepRow]) -> list[StepRow]:
    """The middle half of the steps by their length: what happens to a few, another process say, is not compared."""
    cut = len(rows) // 4 if len(rows) >= FEWEST_HALVED else 0
    return sorted(rows, key=lambda row: row.interval_ns)[cut : len(rows) - cut]


def by_frame(per_step_us: Mapping[str, float]) -> dict[str, float]:
    """Self time by the last frame of the stacks."""
    found: dict[str, float] = {}
    for stack, value in per_step_us.items():
        frame = stack.rpartition(";")[2]
        found[frame] = found.get(frame, 0.0) + value
    return found


class Noise:
    """By how much a value differs between parts of one recording at most, of the side that varies more."""

    def __init__(
        self, parts_a: Sequence[Mapping[str, float]], parts_b: Sequence[Mapping[str, float]], floor: float
    ) -> None:
        self._sides = (parts_a, parts_b)
        self._floor = floor
        self.known = bool(parts_a) and bool(parts_b)

    def of(self, key: str) -> float:
        """The noise of one stack or frame; only the floor where a side has no parts to compare."""
        ranges = [
            max(values) - min(values) for parts in self._sides if (values := [part.get(key, 0.0) for part in parts])
        ]
        return max([self._floor, *ranges])


def _changes(a: Side, b: Side) -> list[Change]:
    frames_a, frames_b = by_frame(a.per_step_us), by_frame(b.per_step_us)
    spread = Noise([by_frame(part) for part in a.parts], [by_frame(part) for part in b.parts], _floor(a, b))
    changes = []
    for frame in frames_a.keys() | frames_b.keys():
        before, after = frames_a.get(frame, 0.0), frames_b.get(frame, 0.0)
        limit = spread.of(frame)
        beyond = abs(after - before) > limit
        state = "changed" if beyond else "unchanged"
        if frame not in frames_a:
            state = "appeared"
        elif frame not in frames_b:
            state = "vanished"
        noise_us = limit if spread.known else None
        changes.append(Change(unescape_frame(frame), before, after, noise_us, state, beyond))
    return sorted(changes, key=lambda each: (not each.beyond_noise, -abs(each.delta_us), each.frame))


def _floor(a: Side, b: Side) -> float:
    return LEAST_SHARE * max(a.step_us, b.step_us)


@dataclass(frozen=True)
class Boxes:
    """Columns of the flame graph of two sides, by stack: total microseconds per step, and what is noise."""

    a_us: dict[str, float]
    b_us: dict[str, float]
    noise_us: dict[str, float]


def boxes(comparison: Comparison) -> Boxes:
    """The inclusive times of every stack of either side."""
    a, b = _inclusive(comparison.a.per_step_us), _inclusive(comparison.b.per_step_us)
    parts_a, parts_b = ([_inclusive(part) for part in side.parts] for side in (comparison.a, comparison.b))
    spread = Noise(parts_a, parts_b, _floor(comparison.a, comparison.b))
    return Boxes(a, b, {stack: spread.of(stack) for stack in a.keys() | b.keys()})


def _inclusive(per_step_us: Mapping[str, float]) -> dict[str, float]:
    """Inclusive microseconds, to the nanosecond."""
    totals = inclusive({stack: round(value * 1000) for stack, value in per_step_us.items()})
    return {stack: value / 1000 for stack, value in totals.items()}


def _notes(a: Selected, b: Selected, verdict: str, side_a: Side, side_b: Side) -> list[str]:
    told = []
    if verdict == "matched":
        told.append(
            f"the two were given different work: {side_a.steps + side_a.left_out} steps of A and"
            f" {side_b.steps + side_b.left_out} of B with like numbers of requests and tokens are compared"
        )
    if verdict != "loads differ" and (side_a.left_out or side_b.left_out):
        told.append("compared is the middle half of the steps by length")
    for name, values in (
        ("timing", [selected.run.header.get("timing") for selected in (a, b)]),
        ("execution", [" + ".join(sorted({row.execution for row in each.rows})) for each in (a, b)]),
        ("model", [", ".join(_models(each)) for each in (a, b)]),
        ("unit", [selected.run.header.get("unit") for selected in (a, b)]),
    ):
        if values[0] != values[1] and values[0] and values[1]:
            told.append(f"{name} differs: {values[0]} in A, {values[1]} in B")
    for letter, side in (("A", side_a), ("B", side_b)):
        if verdict != "loads differ" and not side.parts:
            few = "too few" if side.rows else "no"
            told.append(
                f"{letter} has {few} steps to see its noise by: changes under {LEAST_SHARE:.1%} of a step are passed"
                " over"
            )
    return told


def _models(selected: Selected) -> list[str]:
    return sorted(
        {str(engine.get("model")) for engine in selected.run.header.get("engines", []) if engine.get("model")}
    )


def _loads_differ(kind: str, loads: Sequence[Load]) -> str:
    differing = ", ".join(f"{load.name} {load.a[1]:g} and {load.b[1]:g}" for load in loads if not load.alike)
    return f"loads differ ({differing}), and too few steps are alike: {kind} steps are not compared"


def _summary(kind: str, a: Side, b: Side, changes: Sequence[Change], unit: str) -> str:
    """The step on both sides, the frames that moved most, and what these leave unexplained."""
    delta = b.step_us - a.step_us
    ratio = f" ({delta / a.step_us:+.1%})".replace("-", "−") if a.step_us else ""
    counted = "ms" if unit == MICROSECONDS else unit
    per_step = " per step" if a.rows or b.rows or max(a.steps, b.steps) > 1 else ""
    head = f"{kind} {_amount(a.step_us, unit)} → {_amount(b.step_us, unit)} {counted}{per_step}{ratio}"
    moved = [change for change in changes if change.beyond_noise]
    told = [f"{change.frame} {_signed(change.delta_us, unit)}" for change in moved[:4]]
    more = f" and {len(moved) - 4} more" if len(moved) > 4 else ""
    rest = delta - sum(change.delta_us for change in moved)
    step_moved = abs(delta) > _step_noise(a, b).of("")
    known = _noise_known(a, b)
    if not told and not known:
        return f"{head}: no frame moved by more than {LEAST_SHARE:.1%} of the step"
    if not told:
        within = "no frame moved beyond its noise, the step as a whole did"
        return f"{head}: {within if step_moved else 'nothing changed beyond the noise'}"
    spread = ""
    if step_moved and abs(rest) > abs(delta) / 2:
        spread = f"; {_signed(rest, unit)} is spread over frames that moved no further than their noise"
    return f"{head}: {', '.join(told)}{more}{spread}{'' if known else '; the noise is not known'}"


def _noise_known(a: Side, b: Side) -> bool:
    return bool(a.parts and b.parts)


def _step_noise(a: Side, b: Side) -> Noise:
    """Of the step as a whole, under the key of an empty stack."""
    of_a, of_b = ([{"": sum(part.values())} for part in side.parts] for side in (a, b))
    return Noise(of_a, of_b, _floor(a, b))


def _amount(value: float, unit: str) -> str:
    if unit != MICROSECONDS:
        return f"{value:,.0f}"
    return f"{value / 1000:.2f}" if value >= 1000 else f"{value / 1000:.3f}"


def _signed(value: float, unit: str) -> str:
    return f"{'−' if value < 0 else '+'}{_amount(abs(value), unit)}"
