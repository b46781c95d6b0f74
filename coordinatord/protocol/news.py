"""Marks on the fields of messages: whether a change is sent at once, and whether it is news to the receiver.

Both sides send whole states again and again. The marks show which changes matter.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from functools import cache
from operator import attrgetter
from typing import Annotated, TypeVar, get_type_hints

from msgspec import Struct


class Mark(Enum):
    """A mark on a field."""

    AT_ONCE = auto()
    QUIET = auto()


T = TypeVar("T")

AtOnce = Annotated[T, Mark.AT_ONCE]
"""A field whose change is sent at once. The others go with the next heartbeat, or with the answer to one."""

Quiet = Annotated[T, Mark.QUIET]
"""A field whose change is no news: an age, a time that is granted, or a fact that is only read when something else
happens."""


@cache
def marked(kind: type[Struct], mark: Mark) -> frozenset[str]:
    """Return the names of the fields of a message, or of a part of one, that have a mark."""
    hints = get_type_hints(kind, include_extras=True)
    return frozenset(name for name, hint in hints.items() if mark in getattr(hint, "__metadata__", ()))


def is_news(now: object, before: object) -> bool:
    """Whether two messages, or two values of a field, differ in a field that is not quiet, also of a message within.

    Tuples are compared as a whole.
    """
    if not isinstance(now, Struct) or type(now) is not type(before):
        return now != before
    names, values = _loud(type(now))
    # The first comparison is cheap, and enough for most heartbeats.
    return values(now) != values(before) and any(is_news(getattr(now, name), getattr(before, name)) for name in names)


@cache
def _loud(kind: type[Struct]) -> tuple[list[str], Callable[[object], object]]:
    """Return the names of the fields that are not quiet, and the function that returns their values."""
    names = [name for name in kind.__struct_fields__ if name not in marked(kind, Mark.QUIET)]
    return names, attrgetter(*names)
