"""A flame graph as one stand-alone SVG: no script, no style sheet, readable without hovering."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import escape

from vime_otel.data.profile import MICROSECONDS
from vime_otel.data.summary import counted

from . import tree
from .colors import BY_KEY, CATEGORIES, TEXT_COLOR
from .tree import Tree

WIDTH = 1400
ROW = 20
MARGIN = 12
TOP = 62
"""Pixels above the graph, for the title and the legend."""

NARROWEST = 0.3
"""Boxes of fewer pixels are left out."""

_CHARACTER = 6.8
"""Mean width of a character at the font size of the boxes in a wide font, in pixels."""

_CONTROLS = (*range(0x0A), *range(0x0B, 0x20), 0xFFFE, 0xFFFF)
_UNWRITABLE = dict.fromkeys(_CONTROLS, "\N{REPLACEMENT CHARACTER}")
"""Control characters that XML can't hold, not even escaped."""


def render_svg(
    self_us: Mapping[str, int], calls: Mapping[str, int], steps: int, title: str, unit: str = MICROSECONDS
) -> str:
    """The flame graph of folded self times in microseconds, root on top, times per step; or of counts of a `unit`."""
    graph = tree.build(self_us, calls)
    steps = max(steps, 1)
    height = TOP + (max(graph.depth) + 1) * ROW + MARGIN
    heading = f"{title} · {_heading(graph.total_us[0], steps, unit)}"
    lines = [
        '<svg xmlns="http://www.w3.org/2000/svg"'
        f' viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
        f' font-family="system-ui, sans-serif" font-size="12" fill="{TEXT_COLOR}">',
        f"<title>{_text(heading)}</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="{MARGIN}" y="26" font-size="16" font-weight="600">{_text(heading)}</text>',
        *_legend(graph),
    ]
    amount = _Amount(steps, unit)
    lines.extend(_box(graph, frame, x, width, amount) for frame, x, width in _placed(graph))
    return "\n".join([*lines, "</svg>", ""])


def _placed(graph: Tree) -> Iterator[tuple[int, float, float]]:
    """Every visible frame with its left edge and width in pixels."""
    scale = (WIDTH - 2 * MARGIN) / (graph.total_us[0] or 1)
    ends = [float(MARGIN)]  # by depth: where the next frame of that depth begins
    for frame, depth in enumerate(graph.depth):
        width = graph.total_us[frame] * scale
        x = ends[depth]
        ends[depth] += width
        ends[depth + 1 :] = [x]
        if width >= NARROWEST or frame == 0:
            yield frame, x, width


def _box(graph: Tree, frame: int, x: float, width: float, amount: _Amount) -> str:
    y = TOP + graph.depth[frame] * ROW
    label = _label(graph, frame, amount, width)
    color = BY_KEY[graph.categories[graph.category[frame]]].color
    text = f'<text x="4" y="14">{_text(label)}</text>' if label else ""
    # An <svg> within an <svg> cuts off what juts out, whichever font the reader has.
    return (
        f'<svg x="{x:.2f}" y="{y}" width="{max(width - 0.5, NARROWEST):.2f}" height="{ROW - 1}">'
        f"<title>{_text(_tooltip(graph, frame, amount))}</title>"
        f'<rect width="100%" height="100%" rx="2" fill="{color}"/>{text}</svg>'
    )


def _tooltip(graph: Tree, frame: int, amount: _Amount) -> str:
    total, calls = graph.total_us[frame], graph.calls[frame]
    lines = [
        graph.names[graph.name[frame]],
        f"{amount.of(total)}{amount.per_step} · {total / (graph.total_us[0] or 1):.1%} of the {amount.whole}",
        f"self {amount.of(graph.self_us[frame])}{amount.per_step}",
    ]
    if calls:
        lines.append(f"{calls / amount.steps:.4g} calls per step · {_ms(total, calls)} ms per call")
    return "\n".join(lines)


@dataclass(frozen=True)
class _Amount:
    """How values are told: times per step, or counts as they are."""

    steps: int
    unit: str

    @property
    def is_time(self) -> bool:
        return self.unit == MICROSECONDS

    @property
    def per_step(self) -> str:
        return " per step" if self.is_time else ""

    @property
    def whole(self) -> str:
        return "step" if self.is_time else "whole"

    def of(self, value: int) -> str:
        return f"{_ms(value, self.steps)} ms" if self.is_time else f"{value:,} {self.unit}"


def _heading(value: int, steps: int, unit: str) -> str:
    amount = _Amount(steps, unit)
    return f"{amount.of(value)} per step · {counted(steps, 'step')}" if amount.is_time else amount.of(value)


def _legend(graph: Tree) -> Iterator[str]:
    """A swatch and a name for each kind of frame that occurs."""
    x = float(MARGIN)
    for category in CATEGORIES:
        if category.key in graph.categories:
            yield (
                f'<rect x="{x:.1f}" y="39" width="12" height="12" rx="2" fill="{category.color}"/>'
                f'<text x="{x + 17:.1f}" y="49">{_text(category.label)}</text>'
            )
            x += 37 + len(category.label) * _CHARACTER


def _label(graph: Tree, frame: int, amount: _Amount, width: float) -> str:
    """What a box has room for: name and time, the name, the part that tells most; or nothing.

    A number is never cut short: it would read as another number.
    """
    room = int((width - 8) / _CHARACTER)
    name = graph.names[graph.name[frame]]
    shortest = name.partition(":")[0].rpartition(".")[2] or name
    for text in (f"{name}  {amount.of(graph.total_us[frame])}", name, shortest):
        if len(text) <= room:
            return text
    return f"{shortest[: room - 1]}…" if room >= 3 else ""


def _ms(us: int, parts: int) -> str:
    """Microseconds divided over `parts`, as milliseconds with three digits that matter."""
    value = us / 1000 / parts
    return f"{value:.1f}" if value >= 100 else f"{value:.2f}" if value >= 1 else f"{value:.3f}"


def _text(text: str) -> str:
    return escape(text.translate(_UNWRITABLE))
