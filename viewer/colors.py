"""What a frame is, and the colour that says so: one palette for the page and the SVG."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Category:
    """One kind of frame: its key, its name for people, and its fill colour."""

    key: str
    label: str
    color: str


# Paul Tol's "light" scheme: nine fills that stay apart for the colour-blind and carry dark text.
CATEGORIES = (
    Category("engine", "engine", "#eedd88"),
    Category("runner", "model runner", "#99ddff"),
    Category("attention", "attention", "#77aadd"),
    Category("moe", "mixture of experts", "#ee8866"),
    Category("mlp", "MLP and linear", "#44bb99"),
    Category("norm", "norms", "#bbcc33"),
    Category("sampling", "logits and sampling", "#ffaabb"),
    Category("embedding", "embedding", "#aaaa00"),
    Category("other", "model and other", "#dddddd"),
)
BY_KEY = {category.key: category for category in CATEGORIES}
TEXT_COLOR = "#111114"


_DARK_PANEL = "#1b1e25"
_DARK_SHARE = 0.86
"""Of a colour on a dark page, where pastel fills would glare; the rest is the panel's."""


def palette_css() -> str:
    """The palette as variables of a style sheet, and the swatches that use them."""
    variables = [f"  --frame-{each.key}: light-dark({each.color}, {dimmed(each.color)});" for each in CATEGORIES]
    swatches = [
        f'.swatch[data-category="{each.key}"] {{ background: var(--frame-{each.key}); }}' for each in CATEGORIES
    ]
    return "\n".join([":root {", *variables, f"  --frame-text: {TEXT_COLOR};", "}", *swatches, ""])


def dimmed(color: str) -> str:
    """The colour as it is on a dark page."""
    pairs = zip(_channels(color), _channels(_DARK_PANEL), strict=True)
    return "#" + "".join(f"{round(_DARK_SHARE * own + (1 - _DARK_SHARE) * back):02x}" for own, back in pairs)


def _channels(color: str) -> list[int]:
    return [int(color[start : start + 2], 16) for start in (1, 3, 5)]


_RUNNER = "execute_model|forward|pre_?process|post_?process|prepare_inputs?|book_?keep(ing)?|draft|eplb"
# First match wins. Class names such as Qwen3MoeDecoderLayer or Qwen3MoeAttention contain `moe`
# and are no mixture of experts, so that rule asks for more than the three letters.
_RULES = tuple(
    (key, re.compile(pattern))
    for key, pattern in (
        ("engine", r"^(all|step|schedule|wait|update_from_output)$"),
        ("runner", rf"^({_RUNNER})$"),
        ("norm", r"norm"),
        ("attention", r"attn|attention|rotary|\bmla\b"),
        ("moe", r"^moe\.|moe$|moe_?(block|layer)|sparse_?moe|fused_?moe|expert|router"),
        ("sampling", r"sampl|logit|lm_?head"),
        ("embedding", r"embed"),
        ("mlp", r"mlp|linear|_proj\b|act_fn|silu|gelu"),
    )
)
# A projection inside attention is part of attention: these win over what lies below them.
_OWNERS = frozenset({"attention", "moe", "sampling", "embedding"})
_OWNED = frozenset({"mlp", "other", "runner"})


def category(frame: str, parent: str | None = None) -> str:
    """The key of what a frame is; `parent` is the key of the frame above it."""
    name = frame.lower()
    own = next((key for key, pattern in _RULES if pattern.search(name)), "other")
    if parent in _OWNERS and own in _OWNED:
        return parent
    return own
