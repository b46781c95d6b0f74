"""Tuples in a schema: a list of data becomes a tuple of what its items are, within bounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import pytest

from coordinatord.protocol.schema import Length, Range, SchemaError, check_for

Small = Annotated[int, Range(0, 9)]


@dataclass(frozen=True, slots=True)
class Point:
    """An item that is a message itself."""

    x: Small


@dataclass(frozen=True, slots=True)
class Drawing:
    """Tuples of numbers, of messages, one that may be missing, and one of numbers that may be."""

    sizes: Annotated[tuple[Small, ...], Length(0, 3)]
    points: Annotated[tuple[Point, ...], Length(1, 2)]
    more: Annotated[tuple[Small, ...], Length(1, 2)] | None
    gaps: Annotated[tuple[Small | None, ...], Length(0, 3)]


check = check_for(Drawing)


def test_a_list_becomes_a_tuple_of_checked_items() -> None:
    drawing = check({"sizes": [1, 2, 3], "points": [{"x": 4}], "more": None, "gaps": [6, None, 7]}, "drawing")
    assert drawing == Drawing((1, 2, 3), (Point(4),), None, (6, None, 7))
    assert check({"sizes": [], "points": [{"x": 4}], "more": [5], "gaps": []}, "drawing").more == (5,)


@pytest.mark.parametrize(
    ("field", "value", "error"),
    [
        ("sizes", None, "drawing.sizes must be a list, not None"),
        ("sizes", "123", "drawing.sizes must be a list, not '123'"),
        ("sizes", (1, 2), "drawing.sizes must be a list, not tuple"),
        ("sizes", {"0": 1}, "drawing.sizes must be a list, not dict"),
        ("sizes", [1, 2, 3, 4], "drawing.sizes must have 0 to 3 items, not 4"),
        ("sizes", [1, 10], "drawing.sizes[1] must be within 0 and 9, not 10"),
        ("sizes", [1, None], "drawing.sizes[1] must be of type int, not None"),
        ("points", [], "drawing.points must have 1 to 2 items, not 0"),
        ("points", [{"x": 1}, 2], "drawing.points[1] must be a map, not 2"),
        ("points", [{"x": 1}, {"x": "2"}], "drawing.points[1].x must be of type int, not '2'"),
        ("points", [{"y": 1}], "drawing.points[0] lacks x"),
        ("more", [], "drawing.more must have 1 to 2 items, not 0"),
        ("gaps", None, "drawing.gaps must be a list, not None"),
        ("gaps", [None, 1, 10], "drawing.gaps[2] must be within 0 and 9, not 10"),
        ("gaps", [None, False], "drawing.gaps[1] must be of type int, not False"),
    ],
)
def test_anything_else_is_refused_by_its_place(field: str, value: object, error: str) -> None:
    body: dict[str, object] = {"sizes": [], "points": [{"x": 1}], "more": None, "gaps": []}
    with pytest.raises(SchemaError) as caught:
        check(body | {field: value}, "drawing")
    assert str(caught.value) == error


def test_a_list_is_measured_before_its_items_are_looked_at() -> None:
    with pytest.raises(SchemaError, match="must have 0 to 3 items, not 1000000"):
        check({"sizes": ["wrong"] * 1_000_000, "points": [{"x": 1}], "more": None, "gaps": []}, "drawing")


@dataclass(frozen=True, slots=True)
class Named:
    """What another class inherits from, with slots of its own."""

    name: Annotated[str, Length(1, 9)]


@dataclass(frozen=True, slots=True)
class Span(Named):
    """A class that compares two fields after its construction."""

    begin: Small
    end: Small

    def __post_init__(self) -> None:
        """Refuse a span that ends before it begins. Raises `SchemaError`."""
        if self.end < self.begin:
            raise SchemaError("ends before it begins")


def test_what_is_made_is_what_its_class_makes() -> None:
    span = check_for(Span)({"name": "a", "begin": 1, "end": 2}, "span")
    assert (type(span), span, hash(span)) == (Span, Span("a", 1, 2), hash(Span("a", 1, 2)))
    assert repr(span) == "Span(name='a', begin=1, end=2)"
    with pytest.raises(SchemaError, match="ends before it begins"):
        check_for(Span)({"name": "a", "begin": 2, "end": 1}, "span")
