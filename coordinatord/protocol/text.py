"""Sanitizes, compares and abbreviates texts for people, and formats sizes and durations. Pure."""

from __future__ import annotations

import heapq
import operator
import re
from collections.abc import Iterable, Sequence
from itertools import islice, takewhile

TEXT_MAX = 1_536
"""The most characters of a text in a message: two such texts fit a frame even in the widest letters."""

RANKS_NAMED_MAX = 4
"""How many ranks a text names; of the others it says only that there are more."""

NAMES_MAX = 8
"""How many nodes a sentence names; the others are counted, so that texts stay short with a thousand nodes."""

COMPARED_MAX = 50
"""The most names with which a wrong one is compared: 3 ms each where names have 120 characters."""

_CLAUSE_END = re.compile(r"[.:;!?] +(?=\S)")

_LEFT_OUT = " ... "

_NUMBER = re.compile(r"0x[0-9a-f]+|\d+")


def clip(text: str, most: int = TEXT_MAX) -> str:
    """Make a text fit for a message: unprintable characters become blanks, and at most `most` characters stay."""
    if not text.isprintable():
        text = "".join(character if character.isprintable() else " " for character in text)
    return text if len(text) <= most else f"{text[: most - 3]}..."


def shorten(text: str, most: int) -> str:
    """Clip a text in its middle: an error begins with what is wrong, and often ends with what to do.

    The end keeps as many whole sentences and clauses as fit in half of `most`. If none does, it is cut off.
    """
    text = clip(text, max(most, len(text)))  # only to replace characters
    if len(text) <= most or (end := _CLAUSE_END.search(text, len(text) - most // 2)) is None:
        return clip(text, most)
    last = text[end.end() :]
    return f"{text[: most - len(_LEFT_OUT) - len(last)].rstrip()}{_LEFT_OUT}{last}"


def sized(size: int) -> str:
    """Format a size in bytes, in MiB, GiB, TiB, PiB or EiB."""
    number, unit = size / 2**20, "MiB"
    for larger in ("GiB", "TiB", "PiB", "EiB"):
        if number >= 1024:  # noqa: PLR2004  # one of the larger unit
            number, unit = number / 1024, larger
    return f"{number:.0f} {unit}" if number >= 100 else f"{number:.3g} {unit}"  # noqa: PLR2004  # three digits


def is_same_error(one: str, other: str) -> bool:
    """Whether two errors differ in numbers at most, such as ranks and process ids; two empty ones are not the same."""
    return bool(one) and (one == other or _plain(one) == _plain(other))


def _plain(error: str) -> str:
    return _NUMBER.sub("0", error)


def name_ranks(ranks: Sequence[int]) -> str:
    """Name ranks: `ranks 0, 2`; only the first of many."""
    named = ", ".join(map(str, ranks[:RANKS_NAMED_MAX]))
    more = " and more" if len(ranks) > RANKS_NAMED_MAX else ""
    return f"rank{'' if len(ranks) == 1 else 's'} {named}{more}"


def most_similar(wrong: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the known name that is most similar to a wrong one, if any is; `cutoff` is that of `difflib`."""
    import difflib  # noqa: PLC0415 - few names are wrong

    return next(iter(difflib.get_close_matches(wrong, list(known), n=1, cutoff=cutoff)), None)


def most_similar_of_many(wrong: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most similar to a wrong one, if any is.

    To bound the time, only the `COMPARED_MAX` names that begin most like it are compared.
    """
    begin_alike = heapq.nsmallest(COMPARED_MAX, known, key=lambda name: (-_alike(name, wrong), name))
    return most_similar(wrong, begin_alike)


def _alike(one: str, other: str) -> int:
    """Return how many characters two names have in common at their beginning."""
    return sum(1 for _ in takewhile(bool, map(operator.eq, one, other)))


def spans(numbers: Iterable[int]) -> list[str]:
    """Format sorted numbers, with ranges: `0-2`, `8`."""
    found: list[list[int]] = []
    for number in numbers:
        if found and found[-1][-1] == number - 1:
            found[-1][1:] = [number]
        else:
            found.append([number])
    return ["-".join(map(str, span)) for span in found]


def unstepped_words(ranks: Sequence[int]) -> str:
    """Say that ranks have trained without a `ctx.step` so far, and what follows."""
    have = "has" if len(ranks) == 1 else "have"
    return f"{name_ranks(ranks)} {have} not called ctx.step, so no step is kept; call it on every rank"


def counted(number: int, noun: str) -> str:
    """Format a number with its noun: `1 node`, `2 nodes`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def redone_words(redone: int | None, *, at_least: bool = False) -> str:
    """Say how many steps a round does again: `4 steps redone`. `redone` is None if not known."""
    if redone is None or (at_least and not redone):  # "at least 0" would say nothing
        return "an unknown number of steps redone"
    return f"{'at least ' if at_least else ''}{counted(redone, 'step')} redone"


def listed(texts: Iterable[str], count: int, most: int = NAMES_MAX) -> str:
    """List the first `most` of `count` texts, and count the rest, also those that are not given: `a, b and 3 more`."""
    shown = [*islice(texts, most)]
    return ", ".join(shown) + (f" and {count - len(shown)} more" if count > len(shown) else "")


def name_some(names: Iterable[str], count: int, noun: str = "node", most: int = NAMES_MAX) -> str:
    """Name a few of `count` things of one kind, and count the rest: `node a`, `nodes a, b and 3 more`."""
    return f"{noun}{'' if count == 1 else 's'} {listed(names, count, most)}"


def lasted(seconds: float) -> str:
    """Format a duration in two units at most: `0.06 s`, `12 s`, `1 min 15 s`, `2 h 5 min`."""
    if seconds < 10:  # noqa: PLR2004 - there, tenths matter
        return f"{seconds:.2g} s"
    minutes, whole_s = divmod(round(seconds), 60)
    if not minutes:
        return f"{whole_s} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {whole_s} s"


def ago(seconds: float) -> str:
    """Format a duration in one unit: `12 s`, `5 min`, `3 h`, `2 days`."""
    for least, unit, name in ((2 * 86_400, 86_400, "days"), (2 * 3_600, 3_600, "h"), (120, 60, "min")):
        if seconds >= least:
            return f"{seconds // unit:.0f} {name}"
    return f"{max(0.0, seconds):.0f} s"
