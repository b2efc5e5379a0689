"""Folded stacks as the tree that a flame graph draws, in columns; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vime_otel.data.folded import layers_of, unescape_frame

from .colors import CATEGORIES, category

ALL = "all"
"""The root's name where stacks do not share their first frame."""


@dataclass(frozen=True)
class Tree:
    """The frames in the order in which they are drawn: each before its children, the widest child first.

    The columns run parallel: `name` and `category` are numbers into `names` and `categories`, times are
    microseconds and calls summed over all steps. A made-up root stands in no stack.
    """

    made_up_root: bool
    names: list[str]
    categories: list[str]
    name: list[int]
    depth: list[int]
    category: list[int]
    self_us: list[int]
    total_us: list[int]
    calls: list[int]

    def __len__(self) -> int:
        return len(self.name)

    def as_dict(self) -> dict[str, Any]:
        """The tree for JSON. Totals are left out: they follow from the rest."""
        return {
            "made_up_root": self.made_up_root,
            "names": self.names,
            "categories": self.categories,
            "legend": [[each.key, each.label] for each in CATEGORIES if each.key in self.categories],
            "name": self.name,
            "depth": self.depth,
            "category": self.category,
            "self": self.self_us,
            "calls": self.calls,
        }


def build(self_us: Mapping[str, int], calls: Mapping[str, int]) -> Tree:
    """The tree of the stacks in `self_us`; numbered layers stand by their number."""
    grown = _Grown(self_us, calls)
    order = grown.drawing_order()
    categories: dict[str, int] = {}
    numbers = [categories.setdefault(key, len(categories)) for key in grown.category]
    return Tree(
        made_up_root=grown.made_up_root,
        names=list(map(unescape_frame, grown.names)),
        categories=list(categories),
        name=[grown.name[i] for i in order],
        depth=[grown.depth[i] for i in order],
        category=[numbers[i] for i in order],
        self_us=[grown.self_us[i] for i in order],
        total_us=[grown.total_us[i] for i in order],
        calls=[grown.calls[i] for i in order],
    )


class _Grown:
    """The frames in the order in which their stacks came, each after its parent."""

    def __init__(self, self_us: Mapping[str, int], calls: Mapping[str, int]) -> None:
        firsts = {stack.partition(";")[0] for stack in self_us}
        self._shared = firsts.pop() if len(firsts) == 1 else ""
        self.made_up_root = not self._shared
        self._index: dict[str, int] = {}
        self._names: dict[str, int] = {}
        self._kinds: dict[str | None, dict[str, str]] = {}
        self.name: list[int] = []
        self.parent: list[int] = []
        self.depth: list[int] = []
        self.category: list[str] = []
        self._add(self._shared, self._shared or ALL, -1)
        index = self._index
        for stack in self_us:
            if stack not in index:
                head, _, name = stack.rpartition(";")
                parent = index.get(head or self._shared)
                self._add(stack, name, self._add_path(head) if parent is None else parent)
        self.names = list(self._names)
        self.self_us = [0] * len(self.name)
        self.calls = [0] * len(self.name)
        for stack, value in self_us.items():
            self.self_us[index[stack]] += value
        for stack, value in calls.items():
            if stack in index:
                self.calls[index[stack]] += value
        self.total_us = self.self_us.copy()
        for child in range(len(self.name) - 1, 0, -1):
            self.total_us[self.parent[child]] += self.total_us[child]

    def _add_path(self, stack: str) -> int:
        """The number of a stack that is no entry of its own, made with those above it that are missing, too."""
        missing = []
        while stack not in self._index:
            missing.append(stack)
            stack = stack.rpartition(";")[0] or self._shared
        parent = self._index[stack]
        for path in reversed(missing):
            parent = self._add(path, path.rpartition(";")[2], parent)
        return parent

    def _add(self, stack: str, name: str, parent: int) -> int:
        above = self.category[parent] if parent >= 0 else None
        kinds = self._kinds.setdefault(above, {})
        if name not in kinds:
            kinds[name] = category(unescape_frame(name), above)
        number = self._index[stack] = len(self.name)
        self.name.append(self._names.setdefault(name, len(self._names)))
        self.parent.append(parent)
        self.depth.append(self.depth[parent] + 1 if parent >= 0 else 0)
        self.category.append(kinds[name])
        return number

    def drawing_order(self) -> list[int]:
        """The numbers of the frames as they are drawn."""
        children: dict[int, list[int]] = {}
        for child in range(1, len(self.name)):
            children.setdefault(self.parent[child], []).append(child)
        layers = {number: found for number, name in enumerate(self.names) if (found := layers_of(name))}
        for siblings in children.values():
            if len(siblings) > 1:
                self._sort(siblings, layers)
        order = []
        waiting = [0]
        while waiting:
            frame = waiting.pop()
            order.append(frame)
            if frame in children:
                waiting.extend(reversed(children[frame]))
        return order

    def _sort(self, siblings: list[int], layers: Mapping[int, tuple[tuple[str, int], ...]]) -> None:
        """The widest first; layers stand together, as wide as they are together, in the order of their numbers."""
        siblings.sort(key=self.total_us.__getitem__, reverse=True)
        layered = [child for child in siblings if self.name[child] in layers]
        if not layered:
            return
        together: dict[str, int] = {}
        for child in layered:
            for name, _ in layers[self.name[child]]:
                together[name] = together.get(name, 0) + self.total_us[child]

        def place(child: int) -> tuple[int, str, int]:
            for name, number in layers.get(self.name[child], ()):
                return -together[name], name, number
            return -self.total_us[child], "", 0

        siblings.sort(key=place)
