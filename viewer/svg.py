"""A flame graph as one stand-alone SVG: no script, no style sheet, readable without hovering."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape

from . import tree
from .colors import BY_KEY, CATEGORIES, TEXT_COLOR
from .tree import Frame

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


def render_svg(self_us: Mapping[str, int], calls: Mapping[str, int], steps: int, title: str) -> str:
    """The flame graph of folded self times in microseconds, root on top, times per step."""
    root = tree.build(self_us, calls)
    steps = max(steps, 1)
    height = TOP + tree.depth(root) * ROW + MARGIN
    heading = f"{title} · {_ms(root.total_us, steps)} ms per step · {steps} step{'s' * (steps != 1)}"
    lines = [
        '<svg xmlns="http://www.w3.org/2000/svg"'
        f' viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
        f' font-family="system-ui, sans-serif" font-size="12" fill="{TEXT_COLOR}">',
        f"<title>{_text(heading)}</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="{MARGIN}" y="26" font-size="16" font-weight="600">{_text(heading)}</text>',
        *_legend(root),
    ]
    lines.extend(_box(frame, x, width, root, steps) for frame, x, width in _placed(root))
    return "\n".join([*lines, "</svg>", ""])


def _placed(root: Frame) -> Iterator[tuple[Frame, float, float]]:
    """Every visible frame with its left edge and width in pixels."""
    scale = (WIDTH - 2 * MARGIN) / (root.total_us or 1)
    waiting = [(root, float(MARGIN))]
    while waiting:
        frame, x = waiting.pop()
        width = frame.total_us * scale
        if width < NARROWEST and frame is not root:
            continue
        yield frame, x, width
        below = []
        for child in frame.children:
            below.append((child, x))
            x += child.total_us * scale
        waiting.extend(reversed(below))


def _box(frame: Frame, x: float, width: float, root: Frame, steps: int) -> str:
    y = TOP + frame.depth * ROW
    label = _label(frame, steps, width)
    text = f'<text x="4" y="14">{_text(label)}</text>' if label else ""
    # An <svg> within an <svg> cuts off what juts out, whichever font the reader has.
    return (
        f'<svg x="{x:.2f}" y="{y}" width="{max(width - 0.5, NARROWEST):.2f}" height="{ROW - 1}">'
        f"<title>{_text(_tooltip(frame, root, steps))}</title>"
        f'<rect width="100%" height="100%" rx="2" fill="{BY_KEY[frame.category].color}"/>{text}</svg>'
    )


def _tooltip(frame: Frame, root: Frame, steps: int) -> str:
    lines = [
        frame.name,
        f"{_ms(frame.total_us, steps)} ms per step · {frame.total_us / (root.total_us or 1):.1%} of the step",
        f"self {_ms(frame.self_us, steps)} ms per step",
    ]
    if frame.calls:
        per_call = _ms(frame.total_us, frame.calls)
        lines.append(f"{frame.calls / steps:.4g} calls per step · {per_call} ms per call")
    return "\n".join(lines)


def _legend(root: Frame) -> Iterator[str]:
    """A swatch and a name for each kind of frame that occurs."""
    used = {frame.category for frame in tree.all_frames(root)}
    x = float(MARGIN)
    for category in CATEGORIES:
        if category.key in used:
            yield (
                f'<rect x="{x:.1f}" y="39" width="12" height="12" rx="2" fill="{category.color}"/>'
                f'<text x="{x + 17:.1f}" y="49">{_text(category.label)}</text>'
            )
            x += 37 + len(category.label) * _CHARACTER


def _label(frame: Frame, steps: int, width: float) -> str:
    """What a box has room for: name and time, the name, the part that tells most; or nothing.

    A number is never cut short: it would read as another number.
    """
    room = int((width - 8) / _CHARACTER)
    shortest = frame.name.partition(":")[0].rpartition(".")[2] or frame.name
    for text in (f"{frame.name}  {_ms(frame.total_us, steps)} ms", frame.name, shortest):
        if len(text) <= room:
            return text
    return f"{shortest[: room - 1]}…" if room >= 3 else ""


def _ms(us: int, parts: int) -> str:
    """Microseconds divided over `parts`, as milliseconds with three digits that matter."""
    value = us / 1000 / parts
    return f"{value:.1f}" if value >= 100 else f"{value:.2f}" if value >= 1 else f"{value:.3f}"


def _text(text: str) -> str:
    return escape(text.translate(_UNWRITABLE))
