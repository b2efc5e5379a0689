"""The stand-alone SVG: everything that the page's graph shows, in one file without script."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

from samples import sample_recording

from viewer.colors import BY_KEY
from viewer.svg import MARGIN, NARROWEST, WIDTH, render_svg
from viewer.tree import Tree, build
from vime_otel.data.recording import sum_overall

SVG = "{http://www.w3.org/2000/svg}"
SELF_US = {"step": 1_000, "step;forward": 3_000, "step;forward;attn:Attention": 16_000}
CALLS = {"step": 2, "step;forward": 2, "step;forward;attn:Attention": 48}


def test_a_tooltip_tells_times_per_step_share_self_and_calls() -> None:
    tooltip = _boxes(render_svg(SELF_US, CALLS, 2, "t"))[1].findtext(f"{SVG}title")
    assert tooltip == (
        "forward\n9.50 ms per step · 95.0% of the step\nself 1.50 ms per step\n1 calls per step · 9.50 ms per call"
    )


def test_boxes_are_readable_without_hovering() -> None:
    labels = [box.findtext(f"{SVG}text") for box in _boxes(render_svg(SELF_US, CALLS, 2, "t"))]
    assert labels == ["step  10.00 ms", "forward  9.50 ms", "attn:Attention  8.00 ms"]


def test_a_box_without_room_for_its_time_shows_no_part_of_it() -> None:
    self_us = {"step;moe.experts": 960_000, "step;moe.route": 40_000}
    labels = [box.findtext(f"{SVG}text") for box in _boxes(render_svg(self_us, {}, 1, "t"))]
    assert labels == ["step  1000.0 ms", "moe.experts  960.0 ms", "route"]


def test_every_frame_wide_enough_to_see_has_its_box_below_its_parent() -> None:
    folded = sum_overall(sample_recording().of_kind("decode"))
    self_us = {stack: ns // 1000 for stack, ns in folded.self_ns().items()}
    tree = build(self_us, folded.calls)
    scale = (WIDTH - 2 * MARGIN) / tree.total_us[0]
    names = [
        tree.names[name] for name, total in zip(tree.name, tree.total_us, strict=True) if total * scale >= NARROWEST
    ]
    boxes = _boxes(render_svg(self_us, folded.calls, 36, "t"))
    assert [_name(box) for box in boxes] == names
    _assert_children_within(tree, {_name(box): box for box in boxes})


def test_boxes_and_legend_have_the_colours_of_what_the_frames_are() -> None:
    text = render_svg(SELF_US, CALLS, 2, "t")
    rect = _boxes(text)[2].find(f"{SVG}rect")
    assert rect is not None
    assert rect.get("fill") == BY_KEY["attention"].color
    shown = [element.text for element in ElementTree.fromstring(text).findall(f"{SVG}text")]
    assert shown == ["t · 10.00 ms per step · 2 steps", "engine", "model runner", "attention"]


def test_names_are_escaped_and_stay_the_same_names() -> None:
    hostile = '</title><script>alert(1)</script>&\x00"'
    text = render_svg({f"step;{hostile}": 5}, {}, 1, hostile)
    assert "<script" not in text
    assert _name(_boxes(text)[1]) == hostile.replace("\x00", "\N{REPLACEMENT CHARACTER}")


def test_a_recording_without_time_is_still_a_picture() -> None:
    assert len(_boxes(render_svg({}, {}, 0, "nothing"))) == 1


def _boxes(text: str) -> list[ElementTree.Element]:
    return ElementTree.fromstring(text).findall(f"{SVG}svg")


def _name(box: ElementTree.Element) -> str:
    return (box.findtext(f"{SVG}title") or "").partition("\n")[0]


def _assert_children_within(tree: Tree, boxes: dict[str, ElementTree.Element]) -> None:
    above: list[ElementTree.Element] = []
    for name, depth in zip(tree.name, tree.depth, strict=True):
        box = boxes.get(tree.names[name])
        if box is None:
            continue
        above[depth:] = [box]
        if depth:
            parent = above[depth - 1]
            assert float(box.get("y", 0)) > float(parent.get("y", 0))
            assert float(box.get("x", 0)) >= float(parent.get("x", 0)) - 0.01
            right = float(parent.get("x", 0)) + float(parent.get("width", 0))
            assert float(box.get("x", 0)) + float(box.get("width", 0)) <= right + 0.51


def test_counts_are_told_as_they_are() -> None:
    text = render_svg({"main": 3, "main;work": 5}, {}, 1, "t", "samples")
    assert "t · 8 samples" in text
    assert "work\n5 samples · 62.5% of the whole" in text
    assert "ms" not in text
