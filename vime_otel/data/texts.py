"""Texts of others, made fit to be shown."""

from __future__ import annotations


def printable(text: str) -> str:
    """The text on one line, without what would move a terminal's cursor, change its colours or turn its letters.

    Line breaks and other white space become spaces, what else isn't printable becomes U+FFFD.
    """
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else " " if letter.isspace() else "\ufffd" for letter in text)
