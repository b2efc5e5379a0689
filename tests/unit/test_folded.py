"""The folded format and its sums."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vime_otel.data.folded import (
    Folded,
    dumps,
    dumps_self_us,
    escape_frame,
    inclusive,
    layers_of,
    merge_layers,
    parse,
    unescape_frame,
)

CASES = Path(__file__).parents[3] / "shared" / "cases" / "folded"
_FRAMES = st.text(min_size=1, max_size=8)
_STACKS = st.lists(st.sampled_from("abcd"), min_size=1, max_size=5).map(lambda frames: ";".join(["step", *frames]))
_ENTRIES = st.lists(st.tuples(_STACKS, st.integers(0, 10**12), st.integers(1, 1000)), max_size=20)


def folded_of(entries: list[tuple[str, int, int]]) -> Folded:
    folded = Folded()
    for stack, value, calls in entries:
        folded.add(stack, value, calls)
    return folded


@given(_FRAMES)
def test_any_frame_name_survives(name: str) -> None:
    escaped = escape_frame(name)
    assert unescape_frame(escaped) == name
    assert not set(escaped) & set(";\n\r")


@given(_ENTRIES, st.randoms())
def test_merging_commutes(entries: list[tuple[str, int, int]], random: object) -> None:
    shuffled = list(entries)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    half = len(shuffled) // 2
    merged = folded_of(shuffled[half:])
    merged.merge(folded_of(shuffled[:half]))
    assert merged == folded_of(entries)


@given(st.dictionaries(_STACKS | st.just("step"), st.integers(0, 10**12), max_size=20))
def test_self_times_add_up_to_the_root(own: dict[str, int]) -> None:
    whole = inclusive(own)
    folded = Folded(whole, dict.fromkeys(whole, 1))
    assert folded.overlap_ns() == 0
    assert sum(folded.self_ns().values()) == whole.get("step", 0) == sum(own.values())
    assert {stack: value for stack, value in folded.self_ns().items() if value} == {
        stack: value for stack, value in own.items() if value
    }


def test_children_that_overlap_are_told_and_never_negative() -> None:
    folded = folded_of([("step", 100, 1), ("step;a", 70, 1), ("step;b", 50, 1)])
    assert folded.self_ns() == {"step": 0, "step;a": 70, "step;b": 50}
    assert folded.overlap_ns() == 20


def test_the_mean_is_rounded_to_the_nearest() -> None:
    assert folded_of([("a", 3, 3), ("b", 4, 4)]).divided(2) == Folded({"a": 2, "b": 2}, {"a": 2, "b": 2})
    assert folded_of([("a", 7, 7)]).divided(3) == Folded({"a": 2}, {"a": 2})


def test_the_text_is_sorted_and_in_microseconds() -> None:
    folded = folded_of([("step;b", 1_499, 2), ("step", 4_000, 1), ("step;a", 1_500, 1)])
    assert dumps_self_us(folded) == "step 1\nstep;a 2\nstep;b 1\n"
    assert dumps(folded.calls) == "step 1\nstep;a 1\nstep;b 2\n"


@given(st.dictionaries(_STACKS, st.integers(0, 10**15), max_size=10))
def test_what_was_written_is_read(values: dict[str, int]) -> None:
    parsed = parse(dumps(values).splitlines())
    assert (parsed.values, parsed.invalid_lines) == (values, 0)


def test_lines_of_no_format_are_skipped_and_counted() -> None:
    parsed = parse(["step;a 1", "", "no number", "5", "step;a 2.5", "step;a 3", "step;b -1", f"step;b {'9' * 5000}"])
    assert (parsed.values, parsed.invalid_lines) == ({"step;a": 4}, 5)


@pytest.mark.parametrize(
    ("name", "encoding", "stacks", "invalid"),
    [
        ("simple-crlf.txt", "utf-8", 3, 0),
        ("simple-utf16-le.txt", "utf-16", 3, 0),
        ("simple-with-invalids.txt", "utf-8", 3, None),
        ("recursion.txt", "utf-8", None, 0),
        ("perf-vertx-stacks-01-collapsed-all.txt", "utf-8", None, 0),
    ],
)
def test_files_of_other_tools(name: str, encoding: str, stacks: int | None, invalid: int | None) -> None:
    if not CASES.is_dir():
        pytest.skip(f"{CASES} is not there")
    text = (CASES / name).read_text(encoding=encoding)
    parsed = parse(text.splitlines())
    assert parsed.values
    if stacks is not None:
        assert len(parsed.values) == stacks
    if invalid is not None:
        assert parsed.invalid_lines == invalid
    else:
        assert parsed.invalid_lines > 0
    whole = inclusive(parsed.values)
    roots = {stack for stack in whole if ";" not in stack}
    assert sum(whole[root] for root in roots) == sum(parsed.values.values())
    assert all(first < second for first, second in pairwise(dumps(parsed.values).splitlines()))


@pytest.mark.parametrize(
    ("stack", "merged", "layers"),
    [
        ("step;model:M;layers.3:Layer;mlp:Moe;moe.route", "step;model:M;Layer;mlp:Moe;moe.route", (("layers", 3),)),
        ("layers.11:Layer", "Layer", (("layers", 11),)),
        ("step;layers.3:Layer;experts.0:MLP", "step;Layer;MLP", (("layers", 3), ("experts", 0))),
        ("step;.3:Layer", "step;Layer", (("", 3),)),
        ("step;moe.route;a.b:C;model:M.1:x", "step;moe.route;a.b:C;model:M.1:x", ()),
        ("step;layers.x:Layer", "step;layers.x:Layer", ()),
    ],
)
def test_layers_are_merged_and_named(stack: str, merged: str, layers: tuple[tuple[str, int], ...]) -> None:
    assert merge_layers(stack) == merged
    assert layers_of(stack) == layers
    assert merge_layers(merged) == merged
