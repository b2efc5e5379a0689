"""Trees rebuilt from flat logs."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vime_otel.data.spans import Frame, Node, Span, StackNames, flatten, rebuild

ROOT = Span("decode step", "", "step", 1000, 2000, b"r" * 8)


def ids() -> list[bytes]:
    return [bytes([n]) * 8 for n in range(50)]


def test_a_span_contains_the_earlier_written_ones_that_began_after_it() -> None:
    (outer,) = rebuild([1, 11, 12, 1, 13, 14, 0, 10, 15])
    assert outer == Node(0, 10, 15, [Node(1, 11, 12, []), Node(1, 13, 14, [])])


def test_siblings_at_the_top_stay_apart() -> None:
    assert [(n.start, n.end) for n in rebuild([0, 1, 2, 0, 3, 4])] == [(1, 2), (3, 4)]


def test_a_child_that_starts_at_the_same_tick_is_inside() -> None:
    (outer,) = rebuild([1, 10, 12, 0, 10, 15])
    assert outer.children == [Node(1, 10, 12, [])]


def test_a_torn_log_is_refused() -> None:
    with pytest.raises(ValueError, match=r"4 integers .* is not whole"):
        rebuild([1, 2, 3, 4])


def test_an_empty_log_has_no_trees() -> None:
    assert rebuild([]) == []


def test_flattened_spans_carry_stack_parent_and_unix_times() -> None:
    frames = [Frame("execute_model"), Frame("mlp:Block", "layers.0.mlp")]
    spans = flatten([Node(0, 10, 90, [Node(1, 20, 30, [])])], StackNames(frames), ROOT, 1000, ids())
    outer, inner = spans
    assert (outer.stack, outer.start_unix_nano, outer.end_unix_nano) == ("step;execute_model", 1010, 1090)
    assert inner.stack == "step;execute_model;mlp:Block"
    assert inner.module == "layers.0.mlp"
    assert (outer.parent_span_id, inner.parent_span_id) == (ROOT.span_id, outer.span_id)


def test_a_span_is_cut_to_its_parents_times() -> None:
    (span,) = flatten([Node(0, -50, 5000, [])], StackNames([Frame("f")]), ROOT, 1000, ids())
    assert (span.start_unix_nano, span.end_unix_nano) == (1000, 2000)


def test_a_frame_name_can_not_break_a_stack() -> None:
    (span,) = flatten([Node(0, 1, 2, [])], StackNames([Frame("a;b\nc")]), ROOT, 1000, ids())
    assert span.name == "a;b\nc"
    assert span.stack == "step;a%3Bb%0Ac"


@st.composite
def forests(draw: st.DrawFn) -> list[Node]:
    """Random trees on a clock that ticks at every event."""
    chance = random.Random(draw(st.integers(0, 2**32)))
    tick = 0

    def grow(depth: int) -> Node:
        nonlocal tick
        tick += 1
        node = Node(chance.randrange(5), tick, 0, [])
        if depth < 6:
            node.children = [grow(depth + 1) for _ in range(chance.randrange(4))]
        tick += 1
        node.end = tick
        return node

    return [grow(0) for _ in range(draw(st.integers(0, 4)))]


@given(forests())
def test_any_forest_survives_being_written_and_rebuilt(forest: list[Node]) -> None:
    log: list[int] = []

    def write(node: Node) -> None:
        for child in node.children:
            write(child)
        log.extend((node.frame, node.start, node.end))

    for tree in forest:
        write(tree)
    assert rebuild(log) == forest
