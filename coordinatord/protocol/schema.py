"""Checks data from outside against annotated structs, and makes these of it: `msgspec` does the work.

A struct has one definition and no second list of rules. Nothing is coerced: a number in a text's place is an error.
`Meta` bounds numbers, bytes and tuples, and `printable` bounds texts. A field that is missing has its default; if it
has none it is an error. Unknown fields are errors in a `Strict` struct, whose two sides agree on a version, and are
left out of any other, whose two sides may be of different releases.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar

from msgspec import Meta, Struct, convert
from msgspec.structs import asdict

from coordinatord.protocol.errors import OperationalError
from coordinatord.protocol.text import clip

Made = TypeVar("Made")

ERRORS = (ValueError, RecursionError)
"""What `msgspec` raises for wrong data: its own errors and those of bad UTF-8 are `ValueError`s."""

ERROR_MAX = 200
"""The limit in characters of what is wrong: `msgspec` repeats the names of unknown fields, however long they are."""

PRINTABLE = (
    r"^[^\x00-\x1f\x7f-\xa0\xad\u061c\u1680\u180e\u2000-\u200f\u2028-\u202f\u205f-\u206f\u3000\ud800-\uf8ff\ufeff\ufff0-\ufffb"
    r"\ufffe\uffff\U000e0000-\U000e00ff\U000f0000-\U0010ffff]*\Z"
)
"""Texts end up in environments, logs and terminals. No null byte, escape sequence, end of a line, turn of the writing
direction or blank but the common one gets that far. `str.isprintable` also refuses letters that are newer than Python's
own tables, and two hosts may have different ones."""

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
    """The data is not the message that it claims to be; the text names the field. Nothing has changed."""


class Strict(Struct, frozen=True, forbid_unknown_fields=True):
    """The base of structs in which an unknown field is an error."""


def printable(most: int, least: int = 0) -> Meta:
    """Bound a text, in characters, all of them printable; both bounds are included."""
    return Meta(min_length=least, max_length=most, pattern=PRINTABLE)


def check(data: object, kind: type[Made], place: str) -> Made:
    """Make a struct of a decoded map; `place` names the map in errors. Raises `SchemaError`."""
    try:
        return convert(data, kind)
    except ERRORS as error:
        raise wrong(error, place) from None


def wrong(error: Exception, place: str) -> SchemaError:
    """Return an error of `msgspec` in our words, after the path of the wrong value."""
    text, _, path = str(error).rpartition(" - at `$")
    problem = text or path
    for theirs, ours in _WORDS.items():
        problem = problem.replace(theirs, ours)
    if problem.startswith("Expected `"):
        problem = re.sub(r"`([^`]*)`", _types, problem).replace("Expected", "expected").replace(", got", ", not")
    return SchemaError(f"{place}{path.removesuffix('`') if text else ''}: {clip(problem, ERROR_MAX)}")


def _types(quoted: re.Match[str]) -> str:
    return " or ".join(_TYPES.get(name, name) for name in quoted[1].split(" | "))


Without = Mapping[type[Any], frozenset[str]]
"""Fields to leave out, by class."""


def lacking(value: Any, without: Without) -> Any:
    """Return a struct, or a part of one, as plain data that lacks some fields."""
    if isinstance(value, tuple):
        return [lacking(item, without) for item in value]
    if not isinstance(value, Struct):
        return value
    left_out = without.get(type(value), ())
    return {name: lacking(inner, without) for name, inner in asdict(value).items() if name not in left_out}
