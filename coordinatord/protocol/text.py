"""Texts: those from outside made fit for a message or a terminal, and compared; many names shortened. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import islice

TEXT_MAX = 1_536
"""The length in characters, so that a message with two such texts fits a frame even in the widest letters."""

RANKS_NAMED_MAX = 4
"""How many ranks a text names."""

NAMES_MAX = 8
"""The most nodes that one sentence names; the others are counted, so that texts stay short with a thousand nodes."""

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


def name_ranks(ranks: Sequence[int]) -> str:
    """Name some ranks: `ranks 0, 2`; of many the first ones."""
    named = ", ".join(map(str, ranks[:RANKS_NAMED_MAX]))
    more = " and more" if len(ranks) > RANKS_NAMED_MAX else ""
    return f"rank{'' if len(ranks) == 1 else 's'} {named}{more}"


def name_some(names: Iterable[str], count: int) -> str:
    """Name a few of `count` nodes and count the rest."""
    text = ", ".join(islice(names, NAMES_MAX))
    more = f" and {count - NAMES_MAX} more" if count > NAMES_MAX else ""
    return f"{'node' if count == 1 else 'nodes'} {text}{more}"
