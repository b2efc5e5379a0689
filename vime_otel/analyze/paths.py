"""Stacks as small numbers: each path is a frame under another path."""

from __future__ import annotations

from collections.abc import Sequence

from ..data.folded import escape_frame
from ..data.texts import printable

TOP = -1
"""The parent of the outermost frames."""

MAX_FRAMES = 200
"""Deeper frames of a stack are left out: no flame graph shows them."""


class Paths:
    """All stacks of one trace. A frame is the number of its name in `names`."""

    def __init__(self, names: list[str]) -> None:
        self.names = names
        self.parents: list[int] = []
        self.frames: list[int] = []
        self.depths: list[int] = []
        self.ids: dict[int, int] = {}
        """(parent << 32) + frame → the path's number."""
        self.implied: set[int] = set()
        """Paths that stand for no event of their own; they contain just what is under them."""
        self.on_device: set[int] = set()
        """Paths of kernels and copies."""

    def child(self, parent: int, frame: int) -> int:
        """The path of a frame under `parent`; made where there is none, and never before its parent."""
        key = (parent << 32) + frame
        path = self.ids.get(key)
        if path is None:
            path = self.ids[key] = len(self.parents)
            self.parents.append(parent)
            self.frames.append(frame)
            self.depths.append(1 if parent == TOP else self.depths[parent] + 1)
        return path

    def root(self, name: str) -> int:
        """The outermost frame of this name."""
        if name not in self.names:
            self.names.append(name)
        path = self.child(TOP, self.names.index(name))
        self.implied.add(path)
        return path

    def name(self, path: int) -> str:
        """The name of a path's last frame."""
        return self.names[self.frames[path]]

    def root_of(self, path: int) -> int:
        """The outermost frame above a path."""
        while self.parents[path] != TOP:
            path = self.parents[path]
        return path

    def texts(self) -> list[str]:
        """The stack of each path, as folded files have it."""
        texts: list[str] = []
        for parent, frame, depth in zip(self.parents, self.frames, self.depths, strict=True):
            text = escape_frame(printable(self.names[frame]))
            above = texts[parent] if parent != TOP else ""
            texts.append(above if depth > MAX_FRAMES else f"{above};{text}" if above else text)
        return texts

    def fill(self, account: dict[int, list[int]]) -> None:
        """Give each implied path above those of an account what its children have in it."""
        pending = sorted(account, reverse=True)
        above: dict[int, int] = {}
        for path in pending:
            _pass_up(self, path, account[path][0], above)
        for path, value in above.items():
            account[path] = [value, 0]


def _pass_up(paths: Paths, path: int, value: int, above: dict[int, int]) -> None:
    parent = paths.parents[path]
    while parent in paths.implied:
        above[parent] = above.get(parent, 0) + value
        parent = paths.parents[parent]


def self_times(account: dict[int, list[int]], parents: Sequence[int]) -> dict[int, int]:
    """Nanoseconds in each path's last frame itself, of an account."""
    own = {path: value for path, (value, _) in account.items()}
    for path, (value, _) in account.items():
        parent = parents[path]
        if parent in own:
            own[parent] -= value
    return own
