"""Texts from outside: made fit for a message or a terminal, and compared. Pure."""

from __future__ import annotations

import re

TEXT_MAX = 1_536
"""The length in characters, so that a message with two such texts fits a frame even in the widest letters."""

_NUMBER = re.compile(r"0x[0-9a-f]+|\d+")


def clip(text: str, most: int = TEXT_MAX) -> str:
    """Make a text fit for a message: printable, and not longer than `most` characters."""
    if not text.isprintable():
        text = "".join(character if character.isprintable() else " " for character in text)
    return text if len(text) <= most else f"{text[: most - 3]}..."


def is_same_error(one: str, other: str) -> bool:
    """Return whether two errors are the same except for numbers: ranks, addresses and process ids differ.

    Two empty errors are not the same.
    """
    return bool(one) and _plain(one) == _plain(other)


def _plain(error: str) -> str:
    return _NUMBER.sub("0", error)
