"""The flame graph's tree says what the folded stacks say."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st
from samples import sample_recording

from viewer.colors import CATEGORIES
from viewer.tree import Tree, build
from vime_otel.data.folded import inclusive
from vime_otel.data.recording import sum_overall

stacks = st.dictionaries(
    st.lists(st.sampled_from("abcd"), min_size=1, max_size=5).map(";".join), st.integers(0, 10**9), max_size=40
)


def parents(tree: Tree) -> list[int]:
    """The number of the frame above each, −1 for the root."""
    open_frames: list[int] = []
    found = []
    for number, depth in enumerate(tree.depth):
        found.append(open_frames[depth - 1] if depth else -1)
        open_frames[depth:] = [number]
    return found


def by_stack(tree: Tree) -> dict[str, int]:
    """Frames by stack; a root that was made up has none."""
    path: list[str] = []
    found = {}
    for number, depth in enumerate(tree.depth):
        path[depth:] = [tree.names[tree.name[number]]]
        stack = ";".join(path[1:] if tree.made_up_root else path)
        if stack:
            found[stack] = number
    return found


def children(tree: Tree, parent: int) -> Iterator[int]:
    return (number for number, above in enumerate(parents(tree)) if above == parent)


@given(stacks)
def test_self_times_add_up_to_the_root(self_us: dict[str, int]) -> None:
    tree = build(self_us, {})
    assert tree.total_us[0] == sum(self_us.values()) == sum(tree.self_us)
    sums = tree.self_us.copy()
    above = parents(tree)
    for number in range(len(tree) - 1, 0, -1):
        sums[above[number]] += sums[number]
    assert sums == tree.total_us


@given(stacks)
def test_totals_and_calls_are_the_folded_ones(self_us: dict[str, int]) -> None:
    calls = {stack: index + 1 for index, stack in enumerate(self_us)}
    tree = build(self_us, calls)
    number = by_stack(tree)
    whole = inclusive(self_us)
    assert set(number) == set(whole)
    assert {stack: tree.total_us[at] for stack, at in number.items()} == whole
    assert {stack: tree.calls[number[stack]] for stack in calls} == calls


@given(stacks)
def test_a_subtree_is_a_range_and_siblings_stand_by_width(self_us: dict[str, int]) -> None:
    tree = build(self_us, {})
    assert tree.depth[0] == 0
    assert all(depth <= before + 1 for before, depth in zip(tree.depth, tree.depth[1:], strict=False))
    for number in range(len(tree)):
        widths = [tree.total_us[child] for child in children(tree, number)]
        assert widths == sorted(widths, reverse=True)


def test_the_sample_has_step_as_its_root() -> None:
    folded = sum_overall(sample_recording().of_kind("decode"))
    tree = build({stack: ns // 1000 for stack, ns in folded.self_ns().items()}, folded.calls)
    assert (tree.names[tree.name[0]], tree.made_up_root, max(tree.depth)) == ("step", False, 7)
    assert tree.calls[0] == folded.calls["step"] == 36


def test_stacks_without_a_shared_first_frame_get_a_root() -> None:
    tree = build({"load": 3, "step;wait": 4}, {"step": 2})
    assert (tree.names[tree.name[0]], tree.made_up_root, tree.total_us[0]) == ("all", True, 7)
    assert [(tree.names[tree.name[child]], tree.calls[child]) for child in children(tree, 0)] == [
        ("step", 2),
        ("load", 0),
    ]


def test_nothing_recorded_is_an_empty_root() -> None:
    tree = build({}, {})
    assert (len(tree), tree.names, tree.self_us, tree.calls) == (1, ["all"], [0], [0])


def test_escaped_names_are_shown_as_they_were() -> None:
    assert "a;b%" in build({"step;a%3Bb%25": 1}, {}).names


def test_a_frame_inherits_what_it_stands_in() -> None:
    tree = build({"step;self_attn:Attention;qkv_proj:QKVParallelLinear": 1, "step;up_proj:ColumnParallelLinear": 2}, {})
    categories = {tree.names[name]: tree.categories[kind] for name, kind in zip(tree.name, tree.category, strict=True)}
    assert categories["qkv_proj:QKVParallelLinear"] == "attention"
    assert categories["up_proj:ColumnParallelLinear"] == "mlp"


def test_the_legend_names_what_there_is_in_the_palettes_order() -> None:
    legend = build({"step;moe.route": 1, "step;attn:Attention": 2}, {}).as_dict()["legend"]
    assert legend == [[each.key, each.label] for each in CATEGORIES if each.key in ("engine", "attention", "moe")]


def test_stacks_of_any_depth_are_drawn() -> None:
    tree = build({";".join("f" * 20_000): 1}, {})
    assert (len(tree), max(tree.depth), tree.total_us[0]) == (20_000, 19_999, 1)


def test_layers_stand_together_in_the_order_of_their_numbers() -> None:
    widths = {"layers.10:L": 9, "norm:N": 12, "layers.2:L": 3, "layers.0:L": 5, "embed": 18}
    tree = build({f"step;{name}": width for name, width in widths.items()}, {})
    names = [tree.names[tree.name[child]] for child in children(tree, 0)]
    assert names == ["embed", "layers.0:L", "layers.2:L", "layers.10:L", "norm:N"]
