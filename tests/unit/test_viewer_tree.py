"""The flame graph's tree says what the folded stacks say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import sample_recording

from viewer.tree import MAX_DEPTH, Frame, all_frames, build, depth
from vime_otel.data.errors import VimeOtelError
from vime_otel.data.folded import inclusive
from vime_otel.data.recording import sum_overall

stacks = st.dictionaries(
    st.lists(st.sampled_from("abcd"), min_size=1, max_size=5).map(";".join), st.integers(0, 10**9), max_size=40
)


@given(stacks)
def test_self_times_add_up_to_the_root(self_us: dict[str, int]) -> None:
    root = build(self_us, {})
    assert root.total_us == sum(self_us.values()) == sum(frame.self_us for frame in all_frames(root))
    for frame in all_frames(root):
        assert frame.total_us == frame.self_us + sum(child.total_us for child in frame.children)


@given(stacks)
def test_totals_and_calls_are_the_folded_ones(self_us: dict[str, int]) -> None:
    calls = {stack: index + 1 for index, stack in enumerate(self_us)}
    tree = _by_stack(build(self_us, calls))
    for stack, total in inclusive(self_us).items():
        assert tree[stack].total_us == total
    for stack, count in calls.items():
        assert tree[stack].calls == count


def test_the_sample_has_step_as_its_root_and_widest_children_first() -> None:
    folded = sum_overall(sample_recording().of_kind("decode"))
    root = build({stack: ns // 1000 for stack, ns in folded.self_ns().items()}, folded.calls)
    assert root.name == "step"
    assert root.calls == folded.calls["step"] == 36
    for frame in all_frames(root):
        widths = [child.total_us for child in frame.children]
        assert widths == sorted(widths, reverse=True)
    assert depth(root) == 8


def test_stacks_without_a_shared_first_frame_get_a_root() -> None:
    root = build({"load": 3, "step;wait": 4}, {"step": 2})
    assert (root.name, root.total_us, depth(root)) == ("all", 7, 3)
    assert [(child.name, child.calls) for child in root.children] == [("step", 2), ("load", 0)]


def test_nothing_recorded_is_an_empty_root() -> None:
    assert build({}, {}).as_dict() == {
        "name": "all", "category": "engine", "value": 0, "self": 0, "calls": 0, "children": []
    }  # fmt: skip


def test_escaped_names_are_shown_as_they_were() -> None:
    root = build({"step;a%3Bb%25": 1}, {})
    assert root.children[0].name == "a;b%"


def test_a_frame_inherits_what_it_stands_in() -> None:
    root = build({"step;self_attn:Attention;qkv_proj:QKVParallelLinear": 1, "step;up_proj:ColumnParallelLinear": 2}, {})
    categories = {frame.name: frame.category for frame in all_frames(root)}
    assert categories["qkv_proj:QKVParallelLinear"] == "attention"
    assert categories["up_proj:ColumnParallelLinear"] == "mlp"


def test_a_stack_too_deep_to_draw_is_refused_in_words() -> None:
    build({";".join("f" * MAX_DEPTH): 1}, {})
    with pytest.raises(VimeOtelError, match="251 frames"):
        build({";".join("f" * (MAX_DEPTH + 1)): 1}, {})


def test_layers_stand_together_in_the_order_of_their_numbers() -> None:
    widths = {"layers.10:L": 9, "norm:N": 12, "layers.2:L": 3, "layers.0:L": 5, "embed": 18}
    root = build({f"step;{name}": width for name, width in widths.items()}, {})
    assert [child.name for child in root.children] == ["embed", "layers.0:L", "layers.2:L", "layers.10:L", "norm:N"]


def _by_stack(root: Frame) -> dict[str, Frame]:
    """Frames by stack; a root that was made up has none."""
    found: dict[str, Frame] = {}

    def walk(frame: Frame, above: str) -> None:
        stack = f"{above};{frame.name}" if above else frame.name
        found[stack] = frame
        for child in frame.children:
            walk(child, stack)

    for top in root.children if root.name == "all" else [root]:
        walk(top, "")
    return found
