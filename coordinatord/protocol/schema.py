"""Validates data from outside and converts it to structs, with `msgspec`.

Types are not coerced: a number instead of a text is an error. `Meta` limits numbers, bytes and tuples, and `printable`
limits texts. A missing field gets its default, or is an error without one. An unknown field is an error in a `Strict`
struct, whose two sides agree on a version, and is dropped in any other, whose two sides may be of different releases.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from threading import Lock
from typing import Any, TypeVar, Union

from msgspec import Meta, Struct, convert
from msgspec.msgpack import Decoder
from msgspec.structs import asdict

from coordinatord.protocol.errors import OperationalError
from coordinatord.protocol.text import clip

Made = TypeVar("Made")

ERRORS = (ValueError, RecursionError)
"""The errors of `msgspec` for invalid data: its own and those of bad UTF-8 are `ValueError`s, and deep nesting is a
`RecursionError`."""

ERROR_MAX = 200
"""The limit of an error in characters: `msgspec` repeats the names of unknown fields, which may be long."""

PRINTABLE = (
    r"^[^\x00-\x1f\x7f-\xa0\xad\u061c\u1680\u180e\u2000-\u200f\u2028-\u202f\u205f-\u206f\u3000\ud800-\uf8ff\ufeff\ufff0-\ufffb"
    r"\ufffe\uffff\U000e0000-\U000e00ff\U000f0000-\U0010ffff]*\Z"
)
"""The pattern of printable texts, which end up in environments, logs and terminals. It rejects null bytes, escape
sequences, line ends, changes of the writing direction, and unusual blanks. `str.isprintable` depends on Python's tables
of letters, which may differ between two hosts."""

_WORDS = {
    f" matching regex {PRINTABLE!r}": " of printable characters",
    "Object missing required field": "missing field",
    "Object contains unknown field": "unknown field",
}
"""Our words for those of `msgspec`."""

_TYPES = {
    "object": "an object",
    "array": "a list",
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
}
"""Our words for the types in an error of `msgspec`."""


class SchemaError(OperationalError):
    """The data is no valid message; the text names the field. Nothing has changed."""


class Strict(Struct, frozen=True, forbid_unknown_fields=True):
    """The base of structs in which an unknown field is an error."""


def printable(most: int, least: int = 0) -> Meta:
    """Limit a text to printable characters, from `least` to `most` of them."""
    return Meta(min_length=least, max_length=most, pattern=PRINTABLE)


_first_use = Lock()


@cache
def decoder(kinds: tuple[type[Any], ...]) -> Decoder[Any]:
    """Return the decoder of messages of these classes.

    At the first use of a class, `msgspec` examines it and the classes of its fields. Another thread that uses one of
    these meanwhile crashes. So each class is first used here, by one thread at a time.
    """
    with _first_use:
        return Decoder(Union[kinds])  # noqa: UP007 - the classes are no expression


def check(data: object, kind: type[Made], place: str) -> Made:
    """Convert a decoded map to a struct; `place` names the map in errors. Raises `SchemaError`."""
    decoder((kind,))  # so that `convert` is not the first use of the class
    try:
        return convert(data, kind)
    except ERRORS as error:
        raise schema_error(error, place) from None


def schema_error(error: Exception, place: str) -> SchemaError:
    """Convert an error of `msgspec` to our words, after the path of the wrong value."""
    text, _, path = str(error).rpartition(" - at `$")
    problem = text or path  # without a path in the error, `rpartition` leaves all of it in `path`
    for theirs, ours in _WORDS.items():
        problem = problem.replace(theirs, ours)
    if problem.startswith("Expected `"):
        problem = re.sub(r"`([^`]*)`", _types, problem).replace("Expected", "expected").replace(", got", ", not")
    return SchemaError(f"{place}{path.removesuffix('`') if text else ''}: {clip(problem, ERROR_MAX)}")


def _types(quoted: re.Match[str]) -> str:
    return " or ".join(_TYPES.get(name, name) for name in quoted[1].split(" | "))


LeftOut = Mapping[type[Any], frozenset[str]]
"""Fields to leave out, by class."""


def plain_without(value: Any, left_out: LeftOut) -> Any:
    """Return a struct, or a part of one, as plain data without some fields."""
    if isinstance(value, tuple):
        return [plain_without(item, left_out) for item in value]
    if not isinstance(value, Struct):
        return value
    names = left_out.get(type(value), ())
    return {name: plain_without(inner, left_out) for name, inner in asdict(value).items() if name not in names}
