"""Turns the bytes of one input into choices, so that whoever mutates the bytes mutates what happens.

A fuzzer that is guided by coverage and Hypothesis both draw bytes. Each choice takes the next of them, and is the first
of what there is to choose from when no byte is left. So every input is legal, and a shorter one does less.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from msgspec import Meta

from tests.support.field_hints import field_hints

Item = TypeVar("Item")

PLAIN = "ab-0"

LETTERS = "a é\N{GRINNING FACE}\x1b\n\0"
"""Letters of texts that need not be legal: some that a text may have, and some that none may."""

MOSTLY = 200
"""The bytes below this draw what is usual."""

LONG = 255
"""The byte that draws a list of the greatest length."""


class Choices:
    """The choices that one input makes."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self.wild = False
        """Values that are drawn may be illegal."""

    @property
    def left(self) -> bool:
        """Whether there are bytes left."""
        return self._at < len(self._data)

    def byte(self) -> int:
        """Return the next byte; 0 after the last."""
        if self._at >= len(self._data):
            return 0
        self._at += 1
        return self._data[self._at - 1]

    def number(self, size: int) -> int:
        """Return a number of so many bytes."""
        return int.from_bytes(self.take(size))

    def take(self, size: int) -> bytes:
        """Return the next bytes, as far as there are any."""
        taken = self._data[self._at : self._at + size]
        self._at += size
        return taken

    def rest(self) -> bytes:
        """Return all bytes that are left."""
        return self.take(len(self._data))

    def of(self, items: Sequence[Item]) -> Item:
        """Return one of some items, of which there are at most 256."""
        return items[self.byte() % len(items)]

    def one_in(self, several: int) -> bool:
        """Return True for one in so many values of the next byte, and never when none is left."""
        return self.byte() % several == several - 1


Drawn = Mapping[str, Callable[[], Any]]
"""What draws the fields of some names, where any legal value would seldom lead anywhere."""


def draw(choices: Choices, kind: type[Any], drawn: Drawn) -> Any:
    """Draw a message of a class. Raises `SchemaError` if its fields are legal and do not go together."""
    ways = _ways_to_draw(kind)  # type: ignore[arg-type] # classes are hashable
    return kind(*(drawn[name]() if name in drawn else way(choices, drawn) for name, way in ways))


Draw = Callable[[Choices, Drawn], Any]


@cache
def _ways_to_draw(kind: type[Any]) -> tuple[tuple[str, Draw], ...]:
    hints = field_hints(kind)
    return tuple((name, _way_to_draw(hints[name])) for name in kind.__struct_fields__)


def _way_to_draw(annotation: Any) -> Draw:
    if get_origin(annotation) is Annotated:
        return _way_to_draw_bounded(*get_args(annotation))
    if get_origin(annotation) in {UnionType, Union}:
        (inner,) = (_way_to_draw(part) for part in get_args(annotation) if part is not NoneType)
        return lambda choices, drawn: inner(choices, drawn) if choices.one_in(2) else None
    if isinstance(annotation, type) and issubclass(annotation, StrEnum):
        members = tuple(annotation)
        return lambda choices, _: choices.of(members)
    if annotation is bool:
        return lambda choices, _: choices.one_in(2)
    return lambda choices, drawn: draw(choices, annotation, drawn)


def _way_to_draw_bounded(kind: Any, bound: Any) -> Draw:
    if get_origin(kind) is tuple:
        item = _way_to_draw(get_args(kind)[0])
        return lambda choices, drawn: _several(choices, item, bound, drawn)
    if kind in {str, bytes}:
        return lambda choices, _: _text(choices, bound, kind)
    return lambda choices, _: _number(choices, kind, bound)


def _number(choices: Choices, kind: type[int | float], bound: Meta) -> Any:
    """Draw a number: a small one mostly, and now and then one at the edge of what is legal."""
    near, least, most = kind(choices.byte()), bound.ge or 0, bound.le or 0
    edges = (least + near, least, most, most - near)
    number = edges[0 if (place := choices.byte()) < MOSTLY else place % len(edges)]
    if choices.wild:
        return most + 1
    return min(max(number, least), most)


def _text(choices: Choices, bound: Meta, kind: type[str | bytes]) -> str | bytes:
    """Draw a text: a few letters mostly, and now and then one as long as is legal."""
    size, least, most = choices.byte(), bound.min_length or 0, bound.max_length or 0
    if choices.wild:
        text = LETTERS[size % len(LETTERS)] * (most + size % 2)
    elif size > MOSTLY:
        text = PLAIN[size % len(PLAIN)] * most
    else:
        text = "".join(PLAIN[byte % len(PLAIN)] for byte in choices.take(size % 4)) or PLAIN[0] * least
    return text if kind is str else text.encode()


def _several(choices: Choices, item: Draw, bound: Meta, drawn: Drawn) -> tuple[Any, ...]:
    size = choices.byte()
    if size == LONG:
        return (item(choices, drawn),) * ((bound.max_length or 0) + choices.wild)
    return tuple(item(choices, drawn) for _ in range(max(size % 3, bound.min_length or 0)))
