"""Measures and cuts texts by their width on a terminal, in columns. Pure."""

from __future__ import annotations

import unicodedata


def width(text: str) -> int:
    """Return the width of a text on a terminal, in columns."""
    return len(text) if text.isascii() else sum(map(_width_of, text))


def beginning(text: str, columns: int) -> str:
    """Return as much of a text as fits into a width in columns."""
    for at, character in enumerate(text):
        columns -= _width_of(character)
        if columns < 0:
            return text[:at]
    return text


def cut(text: str, columns: int) -> str:
    """Cut a text to a width in columns, with a mark at the cut."""
    if width(text) <= columns:
        return text
    return f"{beginning(text, columns - 1).rstrip()}…" if columns > 0 else ""


def _width_of(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "FW" else 1
