"""Folded stacks as the tree that a flame graph draws; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vime_otel.data.errors import VimeOtelError
from vime_otel.data.folded import layers_of, unescape_frame

from .colors import category

ALL = "all"
"""The root's name where stacks do not share their first frame."""

MAX_DEPTH = 250
"""Frames in a stack; JSON that nests deeper than this can't be written."""


@dataclass(slots=True)
class Frame:
    """A box of the flame graph: times in microseconds and calls, summed over all its steps."""

    name: str
    category: str
    depth: int
    self_us: int = 0
    total_us: int = 0
    calls: int = 0
    children: list[Frame] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """The frame and all below it, for JSON."""
        return {
            "name": self.name,
            "category": self.category,
            "value": self.total_us,
            "self": self.self_us,
            "calls": self.calls,
            "children": [child.as_dict() for child in self.children],
        }


def build(self_us: Mapping[str, int], calls: Mapping[str, int]) -> Frame:
    """The tree of the stacks in `self_us`, each frame's widest child first, numbered layers by their number.

    Raises VimeOtelError for stacks of more than MAX_DEPTH frames.
    """
    deepest = max((stack.count(";") + 1 for stack in self_us), default=0)
    if deepest > MAX_DEPTH:
        raise VimeOtelError(f"a stack has {deepest} frames; the viewer draws no more than {MAX_DEPTH}")
    firsts = {stack.partition(";")[0] for stack in self_us}
    shared = firsts.pop() if len(firsts) == 1 else ""
    root = Frame(unescape_frame(shared) or ALL, category(shared or ALL), 0)
    frames = {shared: root}
    for stack in self_us:
        _add_path(frames, shared, stack)
    for stack, value in self_us.items():
        frames[stack].self_us += value
    for stack, value in calls.items():
        if stack in frames:
            frames[stack].calls += value
    _sum_up(list(frames.values()))
    return root


def all_frames(root: Frame) -> list[Frame]:
    """The root and all below it, parents before their children."""
    found = [root]
    for frame in found:
        found.extend(frame.children)
    return found


def depth(root: Frame) -> int:
    """Number of rows that the tree takes."""
    return max(frame.depth for frame in all_frames(root)) + 1


def _add_path(frames: dict[str, Frame], shared: str, stack: str) -> None:
    missing = []
    while stack not in frames:
        missing.append(stack)
        stack = stack.rpartition(";")[0] or shared
    for path in reversed(missing):
        parent = frames[path.rpartition(";")[0] or shared]
        name = unescape_frame(path.rpartition(";")[2])
        frames[path] = Frame(name, category(name, parent.category), parent.depth + 1)
        parent.children.append(frames[path])


def _sum_up(frames: list[Frame]) -> None:
    # Children were made after their parents, so backwards every child is summed before its parent.
    for frame in reversed(frames):
        frame.total_us = frame.self_us + sum(child.total_us for child in frame.children)
        frame.children = _in_order(frame.children)


def _in_order(children: list[Frame]) -> list[Frame]:
    """The widest first; layers stand together, as wide as they are together, in the order of their numbers."""
    layers = {child.name: layers_of(child.name) for child in children}
    together: dict[str, int] = {}
    for child in children:
        for name, _ in layers[child.name]:
            together[name] = together.get(name, 0) + child.total_us

    def place(child: Frame) -> tuple[int, str, int, str]:
        for name, number in layers[child.name]:
            return -together[name], name, number, child.name
        return -child.total_us, child.name, 0, child.name

    return sorted(children, key=place)
