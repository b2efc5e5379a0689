from __future__ import annotations

import pytest

from vime_otel.data.texts import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("model:Qwen3MoeModel  注意力", "model:Qwen3MoeModel  注意力"),
        ("two\nlines\tand a\u00a0space", "two lines and a space"),
        ("\x1b[2J", "\ufffd[2J"),
        ("a\u202egnp.exe", "a\ufffdgnp.exe"),
    ],
)
def test_what_would_steer_a_terminal_is_replaced(text: str, shown: str) -> None:
    assert printable(text) == shown
