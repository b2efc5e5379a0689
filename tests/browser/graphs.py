"""The flame graphs of a page as its tests see them: what is painted has no elements to ask for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Page

LAYERED = "1a7e4ed000000001"
SLOWER = "510e400000000001"
AXE = Path(__file__).parent / "vendor" / "axe-core" / "axe.min.js"


class Graph:
    """A flame graph of the page: `page.panel.graph`, `page.graph` of a comparison, `page.panel.callers`, …"""

    def __init__(self, page: Page, name: str = "page.panel.graph") -> None:
        self.page = page
        self.name = name

    def wait(self) -> Graph:
        """Until it is drawn."""
        self.page.wait_for_function(f"() => window.page && window.{self.name}?.tree && window.{self.name}.width > 0")
        return self

    def ask(self, expression: str, argument: Any = None) -> Any:
        """The value of an expression in `graph`, `tree`, `argument`, and `find(name)`, a frame's number."""
        return self.page.evaluate(f"argument => {self._graph(expression)}", argument)

    def box(self, frame: str) -> dict[str, float]:
        """Where the first frame of this name is in the window."""
        found: dict[str, float] = self.ask("graph.boxOf(find(argument))", frame)
        return found

    def names(self) -> list[str]:
        """The names of all frames."""
        found: list[str] = self.ask("[...tree.name].map(i => tree.names[i])")
        return found

    def middle(self, frame: str) -> tuple[float, float]:
        """A point within the box of a frame."""
        box = self.box(frame)
        left, right = max(box["x"], 1), min(box["x"] + box["width"], self.page.viewport_size["width"] - 1)  # type: ignore[index]
        return (left + right) / 2, box["y"] + box["height"] / 2

    def click(self, frame: str) -> None:
        """Click on a frame's box."""
        self.page.mouse.click(*self.middle(frame))

    def hover(self, frame: str) -> None:
        """Point at a frame's box."""
        self.page.mouse.move(*self.middle(frame))

    def pixel(self, frame: str, dx: float = 0.0) -> tuple[int, int, int]:
        """The colour that is painted near the top left corner of a frame's box."""
        script = """const ratio = window.devicePixelRatio, area = graph.canvas.getBoundingClientRect();
            const box = graph.boxOf(find(argument[0]));
            const at = [box.x - area.left + argument[1], box.y - area.top + 3].map(value => Math.round(value * ratio));
            return [...graph.canvas.getContext('2d').getImageData(at[0], at[1], 1, 1).data].slice(0, 3)"""
        red, green, blue = self.page.evaluate(f"argument => {self._function(script)}", [frame, dx])
        return red, green, blue

    def focused(self) -> str:
        """The name of the focused frame."""
        return str(self.ask("tree.nameOf(graph.focused)"))

    def _graph(self, expression: str) -> str:
        return self._function(f"return {expression}")

    def _function(self, body: str) -> str:
        return (
            f"(() => {{ const graph = window.{self.name}, tree = graph.tree;"
            " const find = name => [...Array(tree.size).keys()].find(i => tree.nameOf(i) === name);"
            f" {body}; }})()"
        )


def serious_findings(page: Page) -> list[str]:
    """What axe finds serious or critical on the page, one line each."""
    page.evaluate(AXE.read_text("utf-8"))
    found = page.evaluate(
        "axe.run().then(({violations}) => violations.filter(({impact}) => ['serious', 'critical'].includes(impact))"
        ".map(({id, nodes}) => `${id}: ${nodes.map(({target}) => target.join(' ')).join(', ')}`))"
    )
    return list(found)
